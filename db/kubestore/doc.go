// Package kubestore lets Kubernetes' registries keep their objects in a db.DB.
//
// [Store] implements k8s.io/apiserver/pkg/storage.Interface with the semantics
// of the etcd3 store; the suite k8s.io/apiserver/pkg/storage/testing is the
// contract and passes whole. [Getter] hands a Store to every registry through
// generic.RESTOptionsGetter; there is no watch cache between them. A cache of
// every decoded object is what makes API servers large; here reads go to the
// file, which the operating system caches as bytes, and all watches of a
// resource share one decoding of each event. It knows nothing of requests and their
// answers: package web/storedjson stands above it, and reads stored bytes through
// [Store.ReadStored] and [Store.ScanStored].
//
// What differs from etcd3's store, on purpose:
//
//   - Indexes that a registry declares (generic.StoreOptions.TriggerFunc and
//     Indexers) are kept in the database, so a list by an indexed field reads
//     only what matches.
//   - Watches that allow bookmarks get them, as from the watch cache.
//   - A watch's events are decoded once for all watchers, into what the codec
//     chooses. If there are several watchers, each is given a copy, or the
//     object itself if it is a runtime.CacheableObject.
//   - An update of a small object that was written a moment ago begins with what
//     was written, not with a read. As with etcd3's store behind a watch cache,
//     that may be out of date; it is read again if it decides anything.
//   - A full or failing disk is answered with 503 and the reason.
package kubestore
