// Package podlogs serves the log subresource of pods from two sources.
//
// Files come first: the log files that a container runtime writes in the CRI
// format below one directory, as the kubelet lays them out
// (<namespace>_<pod>_<uid>/<container>/<restarts>.log). A pod that has no
// directory there is asked of the kubelet of its node. [NewREST] builds the
// REST storage; its options say which sources exist.
//
// Parameters, their validation and the choice of the container are Kubernetes'
// own (core/v1 PodLogOptions). Files are read by k8s.io/cri-client/pkg/logs,
// which follows a log through rotation; following ends when the pod's status
// says that the container has ended, when the pod is gone, or when the client
// leaves.
//
// # What may be read
//
// No name leads out of the log directory: every element of the path is looked
// up below an [os.Root], must be one plain name, and a symbolic link is
// refused wherever it stands, also one that points inside. (A container that
// mounts its node's log directory can put a link there; following it has
// handed out a node's files before.) The files themselves are opened by path a
// moment later, so whoever may rename entries inside the log directory is
// trusted, as is the runtime that writes the lines.
//
// # Bounds
//
// A stream holds one goroutine, one line in memory (a runtime cuts lines at
// 16 KiB) and, when following, one inotify instance, of which Linux gives a
// user 128 by default (fs.inotify.max_user_instances). Streams from files are
// limited to [Options.MaxStreams]; past it the answer is 429.
package podlogs
