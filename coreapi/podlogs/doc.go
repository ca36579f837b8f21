// Package podlogs serves the log subresource of pods from two sources.
//
// Files come first: the log files that a container runtime writes in the CRI
// format below one directory, as the kubelet lays them out
// (<namespace>_<pod>_<uid>/<container>/<restarts>.log). A pod that has no
// directory there is asked of the kubelet of its node. [NewREST] builds the
// REST storage; its options say which sources exist.
//
// Parameters, their validation and the choice of the container are Kubernetes'
// own (core/v1 PodLogOptions). Files are read as the kubelet reads them, but in
// parts of bounded size; a fuzz target holds what comes out to what
// k8s.io/cri-client/pkg/logs makes of the same file. A followed log is looked at
// four times a second and read on through rotation; following ends when the pod's
// status says that the container has ended, when the pod is gone, or when the
// client leaves.
//
// # What may be read
//
// No name leads out of the log directory: every element of the path is looked
// up below an [os.Root], must be one plain name, and a symbolic link is
// refused wherever it stands, also one that points inside. (A container that
// mounts its node's log directory can put a link there; following it has
// handed out a node's files before.) The files themselves are opened by path a
// moment later, and not if they are links then, so whoever may rename the
// directories above them is trusted, as is the runtime that writes the lines.
//
// # Bounds
//
// A stream holds one goroutine, one open file and at most 64 KiB of it: of a line
// without end, as much as that. (A runtime cuts lines at 16 KiB, but a file is
// what somebody wrote.) It ends at once when the client leaves or has its
// limitBytes. Streams from files are limited to [Options.MaxStreams]; past it the
// answer is 429.
package podlogs
