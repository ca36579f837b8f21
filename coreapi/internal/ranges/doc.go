// Package ranges keeps the numbers that were handed out of a range (cluster IPs, node
// ports) in one stored core/v1 RangeAllocation: a bitmap beside the text of its range.
//
// Kubernetes' own allocators (k8s.io/kubernetes/pkg/registry/core/service/ipallocator and
// portallocator) choose the numbers. Kubernetes' own keeper of the bitmap can only be
// built over etcd. [Store] is that keeper over any [storage.Interface]: open one with
// [New] in the allocator's factory, and give the same Store to the repair controller as
// its RangeRegistry.
//
// Every change is one compare-and-swap of the stored object, so two servers over one
// storage never hand out one number twice. A number that was handed out and never used
// (the server died in between) is freed by the repair controllers. Nothing is handed out
// before the first repair has written the object: an empty bitmap would hand out numbers
// that stored services hold.
//
// Memory: the bitmap and its base64 form, 8 KiB each for a range of 65,536
// numbers, 128 KiB for the largest that services may have.
package ranges
