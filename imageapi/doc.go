// Package imageapi is the kind Image of image.openshift.io/v1 as an API server serves it: its
// scheme, defaults, validation, strategies, REST storage, field selectors and table.
//
// [Install] registers the kinds with a scheme; [Storage] returns the REST storage of the resources
// images (all verbs) and imagesignatures (create and delete) over any generic.RESTOptionsGetter.
//
// The Go types are those of github.com/openshift/api. What a client may leave out, the server
// computes from the manifest and config that an Image carries (package manifest), once, when it is
// written: reads serve stored bytes. What was computed, and whatever else describes content, never
// changes again: a write that tries is answered with 422 naming the field. A write that leaves such a
// field out keeps it.
//
// What an Image's own fields do not say comes through [Options]: who judges its signatures and sums
// them up, which pods use it. They are columns of the table and field selectors; the verdict and its
// signers are index entries of the storage, use is asked for at each read. [Views] says the same to
// SQL.
//
// Behaviour follows openshift-apiserver's; docs/images.md lists every deliberate difference.
package imageapi
