// Package runs records what ran when: it writes ImageRuns, see package imageruns.
//
// A [Recorder] observes the followers of clusters. They call it for each stored pod, and it counts
// the pods of each stretch in memory, without waiting for anything. [Recorder.Run] writes what
// changed once a second: one write for a stretch that begins, changes or ends, whatever the number
// of its pods. It asks for the verdict of a stretch when it begins, when its image is judged again,
// and every five minutes, because a verdict may end with time.
//
// # What is not seen
//
// The status of a Cluster has the times for which records are complete. A time in which the cluster
// could not be followed, or no server recorded, becomes a gap. A stretch that is there before and
// after the gap continues, with the gap in it. A stretch that is missing after the gap ended at an
// unknown time within it.
//
// Nobody writes beside another: who begins to record first stores that nothing is known since the
// end of the records, and who writes first looks whether the stored records are its own. If they
// are not, another server records by now, or the store was put back to an earlier state; then
// everything is read again.
//
// A time counts as recorded only after all its changes are written: after a crash, the gap begins
// at the last time up to which everything was written.
//
// # Bounds
//
// Memory holds what runs, by stretch and by pod, and at most 100,000 stretches that have ended and
// are not written yet. If there are more, the oldest are dropped and the time becomes a gap. It
// also holds how the last 10,000 images were admitted. Eight goroutines write. Of several servers
// with one store, all count; only the leader writes, and deletes old stretches: at most 1,000 at
// once, for which it holds up to 2,000 in memory.
package runs
