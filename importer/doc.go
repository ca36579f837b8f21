// Package importer turns an image reference into Image objects.
//
// Start with [New], then call [Importer.Import] once per reference:
//
//	im, err := importer.New(importer.Options{})
//	ref, err := reference.Parse("quay.io/acme/web:v1")
//	result, err := im.Import(ctx, ref, images)
//
// One Importer is meant to live as long as the process. For each registry host it holds the
// connections, the rate limit and the time until which the host asked to be left alone; for each
// repository it holds the credentials. It is safe for concurrent use.
//
// # What an import does
//
// A HEAD names the digest behind the reference. If [Images] already holds that
// digest the import is over after noting the new reference, so a second import
// costs one request. Otherwise the manifest and the config are read, checked
// and sent as an Image named by its digest. An index is an Image too, and so is
// each of its platforms; the index is stored last, so an index that is stored
// had all the platforms asked for. Attestations and other artifacts are not
// images: inside an index they are listed in [Result.Skipped], by themselves
// they are an [pull.Error] with reason [pull.NotAnImage].
//
// Images are sent with the raw manifest and config only; what can be derived
// from those bytes (layers, size, platforms) is left to the API that stores
// them.
//
// If [Options.Files] know mirrors of a registry, those are asked first. Images are stored with the
// reference's own name, wherever they were read; [Result.Mirror] tells where.
//
// For many references, wrap [Images] in a [Prefetcher]: it reads what is stored of them with lists,
// and takes the images of a repository of which nothing was known for new.
//
// # What it promises about registries
//
// A registry is not trusted. Every byte is checked against a digest, manifests
// are refused beyond [manifest.MaxManifestSize] and configs beyond
// [manifest.MaxConfigSize] before and while reading, a registry that stalls or drips is cut,
// and a registry that says 429 is left alone for as long as it asked. Plain
// HTTP and unverified TLS are spoken with loopback addresses and with hosts
// [Options.Registries] marks insecure, with no other. Credentials go to the
// registry they were stored for and to its token server (see
// [pull.Registry.TokenHosts]); a redirect never carries them elsewhere.
//
// # Why not remote.Puller
//
// Authentication is go-containerregistry's transport package. Its
// remote.Puller is not used to read manifests: it greets the registry once more
// for every repository, keeps what it learned forever, admits 100 MiB
// manifests, and reports a digest mismatch or an incomplete HEAD as plain text.
// A [SignatureFinder] can still use package remote: it is given this package's
// authenticated transport.
//
// # Limits
//
// Digests are sha256 or sha512, and an image is stored under the digest that it was asked for by. A
// redirect or a token server at an address that is not public is refused, unless it is the registry
// itself or the configuration names it: see package guard.
package importer
