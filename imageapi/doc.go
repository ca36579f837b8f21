// Package imageapi is the kind Image of image.openshift.io/v1 as an API server serves it: its
// scheme, defaults, validation, strategies, REST storage, field selectors and table.
//
// [Install] registers the kinds with a scheme; [New] returns the REST storages of all resources
// over any generic.RESTOptionsGetter.
//
// The Go types are those of github.com/openshift/api. When an Image is written, the server computes
// the fields that a client may leave out from the manifest and config that the Image carries
// (package manifest): reads serve stored bytes. Computed fields, and others that describe content,
// never change again: a write that changes one is answered with 422 naming the field. A write that
// leaves such a field out keeps it.
//
// [Options] supply what is not in an Image's own fields: who judges its signatures and summarizes
// them, and which pods use it. The table has columns and the field selectors have fields for them.
// The verdict and its signers are index entries of the storage; use is asked for at each read.
// [Views] has the same for SQL.
//
// Behaviour follows openshift-apiserver's; docs/reference/images.md lists the differences that
// clients notice.
package imageapi
