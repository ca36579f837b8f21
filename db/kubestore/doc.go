// Package kubestore stores the objects of Kubernetes' registries in a db.DB.
//
// [Store] implements k8s.io/apiserver/pkg/storage.Interface with the semantics of the etcd3 store;
// it passes the whole test suite k8s.io/apiserver/pkg/storage/testing, which is the contract.
// [Getter] provides a Store to every registry through generic.RESTOptionsGetter, without a watch
// cache. A cache of every decoded object is what makes API servers large. Here, reads go to the
// file, which the operating system caches as bytes, and all watches of a resource share one
// decoding of each event. The package does not depend on HTTP: package web/storedjson is above it,
// and reads stored bytes through [Store.ReadStored] and [Store.ScanStored].
//
// Intended differences from the etcd3 store:
//
//   - Indexes that a registry declares (generic.StoreOptions.TriggerFunc and
//     Indexers) are kept in the database, so a list by an indexed field reads
//     only what matches.
//   - Watches that allow bookmarks get them, as from the watch cache.
//   - A watch's events are decoded once for all watchers, into an object that the codec chooses. If
//     there are several watchers, each gets a copy, or the object itself if it is a
//     runtime.CacheableObject.
//   - An update of a small object that was written a moment ago begins with the written object,
//     without a read. As with the etcd3 store behind a watch cache, that object may be out of date;
//     it is read again before the update is refused.
//   - A full or failing disk is answered with 503 and the reason.
package kubestore
