// Package admission answers a cluster's API server that asks whether a pod may run
// (https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/). A pod is judged by what is
// stored about the images that it names. No registry is asked while it waits, but that an image of which nothing is
// known is imported, for as long as the API server waits.
//
// # Who asks
//
// The handler stands behind authentication and authorization: a caller needs the right to create admissionreviews of
// tidewaiter.dev. Whoever proves nothing is answered 401 and learns nothing.
//
// # What is never refused
//
// Mirror pods, which stand for static ones: the kubelet runs those whatever the API server says, and runs nothing that is
// written into a mirror pod. Pods of exempt namespaces. Images that a pod names already.
//
// # Bounds
//
// A review has at most 6 MiB and a pod at most 256 images. Images of which nothing is known are waited for in a number of
// places; a namespace has eight of them at most, and where all are taken the namespace with the most gives one up. A place
// is kept until the time to wait is over, also when the caller goes away: nobody makes more imports by going away.
package admission
