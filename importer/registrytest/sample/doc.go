// Package sample builds images that look like real ones: layers that are tar
// archives of a small file system, a config with history, environment, labels
// and the digests of the uncompressed layers, indexes for several platforms
// with BuildKit's attestations.
//
// The same [Spec] always gives the same bytes. Nothing here needs a test or a
// network: demonstrations use it as well. Start with [New] for one image and
// [MultiPlatform] for an index.
package sample
