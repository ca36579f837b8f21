// Package admission answers a cluster's API server that asks whether a pod may run
// (https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/). It
// judges a pod by what is stored about the images that the pod names. It asks no registry while the
// pod waits, with one exception: it imports an unknown image, for as long as the API server waits.
//
// # Who asks
//
// The handler stands behind authentication and authorization: a caller needs the right to create
// admissionreviews of tidewaiter.dev. A caller without a credential gets 401 and learns nothing.
//
// # What is never refused
//
// Mirror pods, which stand for static ones: the kubelet runs the static pods whatever the API
// server says, and runs nothing that is written into a mirror pod. Pods of exempt namespaces.
// Images that a pod names already.
//
// # Bounds
//
// A review has at most 6 MiB and a pod at most 256 images. There is a bounded number of places to
// wait for images of which nothing is known. A namespace has at most eight of them. If all are
// taken, the namespace with the most gives one up. A place is kept until the time to wait is over,
// even if the caller goes away, so that leaving does not allow more imports.
package admission
