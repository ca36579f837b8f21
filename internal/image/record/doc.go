// Package record merges what registries said of images and tags with what is stored of them.
//
// [Store] does so for an image and [Tag.Store] for a tag, in whatever keeps them. The server does
// it for its clients: an ImageRecord is a request that has what an importer read, of many images
// and tags at a time. Nothing of an ImageRecord is stored but what follows from it.
package record
