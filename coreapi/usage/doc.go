// Package usage knows which pods use a container image.
//
// An [Index] follows the pods of a storage and answers [Index.PodsUsing] from
// memory: how many pods use the image of a digest or of one of some references.
// What a container uses is, in this order, the digest in its status' imageID
// (what really runs), the digest in its spec's image, and the reference in its
// spec's image. Init and ephemeral containers count; so does every pod that
// exists, whatever its phase.
//
// References are compared in canonical form, as they are pulled: "nginx" is
// "docker.io/library/nginx:latest". One that cannot be read is used by nobody.
//
// The digest of a multi-platform image stands for one of the images that it lists:
// which one is told by the platform of the pod's node, where that is known.
//
// [Images] gives the same answer for a single pod, as references to pull.
//
// # Bounds
//
// Memory is proportional to the pods: for each, its name and one entry for each
// distinct image of its containers (and the size of a pod bounds those), about
// 0.2 KiB for a pod of one container. Pods are read in pages of 500 and not
// kept. One goroutine runs ([Index.Run]).
package usage
