// Package record merges what an importer read about images and tags with the stored objects.
//
// [Store] does so for an image and [Tag.Store] for a tag, through interfaces. The server merges for
// its clients: an ImageRecord is a request with everything that an importer read about many images
// and tags. The ImageRecord itself is not stored.
package record
