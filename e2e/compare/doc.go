// Package compare measures a commit and this tree in turn, beside a limit and kube-apiserver with
// etcd:
//
//	make bench-compare BASE=v1.2.3                                # some minutes
//	make bench-compare BASE=main COMPARE='-rounds 9 -objects 6000'
//	make bench-replicas COMPARE='-rounds 1 -objects 20000'        # beside SQLite, kube-apiservers
//
// In each round all servers restart, and get the same requests in turn, a part at a time, so
// that a machine whose speed changes disturbs all alike. The result is the median of the rounds'
// ratios. kube-apiserver keeps each Image as a ConfigMap of the same size, which is the fastest
// that it can do; beside several servers, as a custom resource, which is what a user would run.
// The limit is a server that stores what it gets and sends what it has, by the same
// libraries, and does nothing else.
package compare
