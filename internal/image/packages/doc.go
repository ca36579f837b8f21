// Package packages has ImagePackages: which packages an image has by the SBOMs (software bills of
// materials) that its builders attached, and what VEX documents say of it. A list holds name,
// version, package URL and licence of each package, and where the document is; the document stays
// in the registry.
//
//	list := &packages.ImagePackages{…}
//	q, err := packages.ParseQuery("pkg:deb/debian/openssl")
//	found := q.In(list)
//
// The text of a document comes from strangers: those who attached it. Package sbom of the importer
// bounds it and makes it printable.
package packages
