// Package importer turns an image reference into Image objects.
//
// Start with [New], then call [Importer.Import] once per reference:
//
//	im, err := importer.New(importer.Options{})
//	ref, err := reference.Parse("quay.io/acme/web:v1")
//	result, err := im.Import(ctx, ref, images)
//
// Keep one Importer for as long as the process runs. For each registry host it holds the
// connections, the rate limit and the end of a pause that the host asked for; for each repository
// it holds the credentials. It is safe for concurrent use.
//
// # What an import does
//
// An import reads and checks the manifest and the config, and stores them as an Image whose name is
// the digest. For a tag that led somewhere before, it sends a HEAD first. If [Images] already holds
// the digest that the HEAD returns, the import records the reference and ends, so a second import
// costs one request. An index becomes an Image, and so does each of its platforms. The index is
// stored last: if it is stored, so are all requested platforms. Attestations and other artifacts
// are not images. Inside an index they are listed in [Result.Skipped]; by themselves they give a
// [pull.Error] with reason [pull.NotAnImage].
//
// The importer sends Images with the raw manifest and config only. The API that stores them derives
// layers, size and platforms from those bytes.
//
// If [Options.Files] have mirrors of a registry, the importer reads from those first. Images are
// stored under the reference's own name even then; [Result.Mirror] names the mirror.
//
// For many references, wrap [Images] in a [Prefetcher]. It reads their stored tags and Images with
// lists, and assumes that all images of an empty repository are new.
//
// # What it promises about registries
//
// A registry is not trusted. The importer checks every byte against a digest. It refuses manifests
// larger than [manifest.MaxManifestSize] and configs larger than [manifest.MaxConfigSize], before
// and while it reads them. It cuts off a registry that stalls or sends too slowly. After a 429 it
// pauses for as long as the registry asked. It uses plain HTTP and unverified TLS only for loopback
// addresses and for hosts that [Options.Registries] marks insecure. It sends credentials only to
// the registry for which they were stored and to that registry's token server (see
// [pull.Registry.TokenHosts]), and never to a redirect's target.
//
// # Why not remote.Puller
//
// Authentication uses go-containerregistry's package transport. Manifests are not read with its
// remote.Puller, which sends GET /v2/ again for every repository, never forgets the answer, accepts
// manifests of 100 MiB, and reports a digest mismatch or an incomplete HEAD as plain text. A
// [SignatureFinder] can still use package remote: it is given this package's authenticated
// transport.
//
// # Limits
//
// Digests are sha256 or sha512. An image is stored under the digest of the request for it. The
// importer refuses redirects to, and token servers at, addresses that are not public, except the
// registry itself and what the configuration names: see package guard.
package importer
