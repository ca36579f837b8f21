// Package imageruns keeps what ran when: an ImageRun for each stretch of time in which a workload
// ran an image.
//
// [New] makes the storage of the kind, which clients read and only the server writes: package
// internal/controllers/runs does. An ImageRun is in the namespace of its pods, whichever cluster
// they are in, so that users who may read a namespace see its runs.
//
// # Bounds
//
// A stretch has at most 16 verdicts and 200 gaps. Lists by image, workload, namespace or time use
// an index: a stretch is in at most four buckets of time, and a moment is in one bucket of each of
// 22 sizes.
package imageruns
