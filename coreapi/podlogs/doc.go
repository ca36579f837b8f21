// Package podlogs serves the log subresource of pods from two sources.
//
// Files come first: the log files that a container runtime writes in the CRI format below one
// directory, as the kubelet lays them out (<namespace>_<pod>_<uid>/<container>/<restarts>.log). If
// a pod has no directory there, the request goes to the kubelet of its node. [NewREST] builds the
// REST storage; its options choose the sources.
//
// Parameters, their validation and the choice of the container are Kubernetes' own
// (core/v1 PodLogOptions). Files are read as the kubelet reads them, but in parts of
// bounded size; a fuzz target compares the result with that of k8s.io/cri-client/pkg/logs
// for the same file. A followed log is checked four times a second, and read on through
// rotation. Following ends when the container has ended by the pod's status, when the pod
// is gone, or when the client leaves.
//
// # What may be read
//
// No name leads out of the log directory: every element of the path is looked up below an
// [os.Root] and must be one plain name. A symbolic link is refused anywhere, also one
// that points inside. (A container that mounts its node's log directory can put a link
// there; to follow it has leaked a node's files before.) The files themselves are opened
// by path a moment later, and not if they are links then: so a user who may rename the
// directories above them is trusted, as is the runtime that writes the lines.
//
// # Bounds
//
// A stream holds one goroutine, one open file and at most 64 KiB of its text, also of a
// line without end. (A runtime cuts lines at 16 KiB, but other programs may have written the file.)
// It ends at once when the client leaves or has its limitBytes. [Options.MaxStreams] bounds the
// streams from files, and half of it the streams of one user; beyond it the answer is 429.
package podlogs
