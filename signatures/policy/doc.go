// Package policy has the policies: which keys or identities must have signed which images.
//
// The documents are OpenShift's ClusterImagePolicy (config.openshift.io/v1), with a few additions
// of ours (see Document). Load reads a file or a folder of them into a Set; a Set and its Policies
// never change afterwards and are safe for concurrent use. Watcher loads them again when files
// change, and keeps the last valid Set if the new one is invalid.
//
//	set, err := policy.Load("policies/")
//	all := set.For(reference)   // none: no policy covers this image
//	all[0].Identity.Match(intended, signed)
//
// A policy that could never accept a signature, or whose author clearly meant something else, is
// refused by Load with the file, the document, the field and the line.
package policy
