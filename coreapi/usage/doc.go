// Package usage knows which pods use a container image.
//
// An [Index] follows the pods of a storage and answers [Index.PodsUsing] from memory: how many pods
// use the image of a digest or of one of some references. A container uses, in this order, the
// digest in its status' imageID (what really runs), the digest in its spec's image, or the
// reference in its spec's image. A runtime that does not know an image's manifest reports the
// digest of its config: [Index.Named] has it, for callers that know the configs of images. Init and
// ephemeral containers count, image volumes count as containers do, and so does every existing pod,
// whatever its phase.
//
// References are compared in canonical form, as they are pulled: "nginx" is
// "docker.io/library/nginx:latest". A text that is not a reference is not an image.
//
// The digest of a multi-platform image stands for one of the images that it lists: the one for the
// platform of the pod's node, if that is known.
//
// A workload, such as a Deployment, needs the images of its pod template, whether or not it
// runs a pod: it may do so at any time, and a ReplicaSet is what a rollback goes back to.
// [Index.NeededBy] has the workloads, apart from pods.
//
// # Bounds
//
// Memory is proportional to the pods and workloads: each takes its name and one entry for each
// distinct image of its containers (which the size of a pod bounds), about 0.2 KiB for a pod of one
// container. Pods are read in pages of 500 and not kept. [Index.Run] is one goroutine.
package usage
