// Package clusters follows the pods of other clusters, so that it is known where images run, and
// their workloads, so that it is known which images are needed without running.
//
// [New] makes the storage of two kinds of the group tidewaiter.dev, which clients read and only the
// server writes: a Cluster for each cluster of the configuration, with when it was last seen, and a
// ClusterPod for each of its pods, with what its containers run. [Clusters.Run] follows the
// clusters with client-go's informers. It stores the last state with its age, for the time when a
// cluster cannot be reached. The needs of workloads go to an index alone.
//
// The follower sends a cluster a request every two seconds. If the cluster has not answered for
// five seconds, or if a watch of pods was away for so long, its data counts as old, and the
// follower lists everything again.
//
// # Bounds
//
// A pod of two containers takes less than 1 KiB of memory: an informer holds 0.3 KiB of it, its
// entry in package usage takes as much, and the rest is the storage's and the server's
// (BenchmarkFollowedPods in coreapi). Texts that many pods share are held once. A text from a
// cluster is cut at 512 bytes, and only 100 containers of a pod count. Eight goroutines write for
// each cluster.
//
// Of a workload its name and its images are held, by the index. Workloads are streamed one by one,
// or read in pages of 100 where a cluster does not stream.
package clusters
