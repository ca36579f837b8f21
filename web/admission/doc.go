// Package admission is an admission webhook for pods
// (https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/). It
// judges a pod by the stored verdicts on the images that the pod names. It sends no request to a
// registry. If an image is unknown, it queues an import, and waits for that as long as the API
// server waits.
//
// # Callers
//
// The handler stands behind authentication and authorization: a caller needs the right to create
// admissionreviews of tidewaiter.dev. A caller without a credential gets 401 and learns nothing.
//
// # What is never refused
//
// Three things are never refused. Mirror pods, which show static pods: the kubelet runs static pods
// whatever the API server answers, and ignores changes of a mirror pod. Pods of exempt namespaces.
// Images that a pod already named before.
//
// # Bounds
//
// A review has at most 6 MiB and a pod at most 256 images. The number of places for waiting on
// unknown images is bounded, and a namespace has at most eight. If all are taken, the namespace
// with the most loses one. If a caller disconnects, its place stays taken until the deadline, so
// that disconnecting does not allow more imports.
package admission
