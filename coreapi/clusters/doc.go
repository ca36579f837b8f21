// Package clusters follows the pods of other clusters, so that it is known where images run.
//
// [New] makes the storage of two kinds of the group tidewaiter.dev, which clients read and the server alone writes:
// a Cluster for each cluster of the configuration, with when it was last seen, and a ClusterPod for each of its pods, with
// what its containers run. [Clusters.Run] follows them with client-go's informers. What was last seen is stored, so that it
// is there when a cluster cannot be reached, and its age with it.
//
// # Bounds
//
// A pod of two containers takes less than 1 KiB of memory: 0.3 KiB are what an informer holds of it, as much is its entry in package
// usage, the rest is what serves it and the server itself (BenchmarkFollowedPods in coreapi). What many pods share is held once.
// An image or a state that a cluster tells is cut at 512 bytes, and 100 containers of a pod count. Each cluster has
// eight goroutines that write.
package clusters
