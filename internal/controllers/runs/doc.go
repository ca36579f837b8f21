// Package runs records what ran when: it writes ImageRuns, see package imageruns.
//
// A [Recorder] observes the followers of clusters. They call it for each stored pod, and it counts
// the pods of each stretch in memory, without waiting for anything. [Recorder.Run] writes what
// changed once a second: one write for a stretch that begins, changes or ends, whatever the number
// of its pods. It asks for the verdict of a stretch when it begins, when its image is judged again,
// and every five minutes, because a verdict may end with time.
//
// # Gaps
//
// The status of a Cluster has the times for which records are complete. While the cluster cannot be
// followed, or no server records, there is a gap. A stretch that exists before and after the gap
// continues, and contains the gap. A stretch that is missing after the gap ended at an unknown time
// within it.
//
// Only one server writes. When a server begins to record, it first stores that nothing is known
// since the end of the records. Before each write it checks that the stored records are still its
// own. If they are not, another server has begun to record, or the store was restored to an earlier
// state: the server then reads everything again.
//
// A moment counts as recorded once all changes up to it are written. After a crash, the gap begins
// at the last such moment.
//
// # Bounds
//
// Memory holds what runs, by stretch and by pod, and at most 100,000 ended stretches that are not
// written yet. Beyond that, the oldest are dropped and their time becomes a gap. Memory also holds
// how the last 10,000 images were admitted. Eight goroutines write. If several servers share a
// store, all of them count pods, and only the leader writes and deletes. It deletes at most 1,000
// old stretches at once, and holds up to 2,000 in memory for that.
package runs
