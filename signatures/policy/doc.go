// Package policy holds the trust policy: which keys or identities must have signed which images.
//
// The documents are OpenShift's ClusterImagePolicy (config.openshift.io/v1), taken verbatim, with a
// few additions of ours (see Document). Load reads a file or a folder of them into a Set; a Set and
// its Policies never change afterwards and are safe for concurrent use. Watcher loads again when
// files change and keeps the last good Set when the new one is broken.
//
//	set, err := policy.Load("policies/")
//	all := set.For(reference)   // none: no policy covers this image
//	all[0].Identity.Match(intended, signed)
//
// A policy that could never accept a signature, or whose author clearly meant something else, is
// refused by Load with the file, the document, the field and the line.
package policy
