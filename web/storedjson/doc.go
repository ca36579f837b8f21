// Package storedjson answers requests with the stored bytes of objects.
//
// For some kinds a storage holds exactly what a JSON client gets, except for the resourceVersion.
// Each such kind is a [Kind]: the package answers its reads, lists, creations and watches without
// decoding an object. The API server's own handlers answer requests with a selector and requests
// for anything but plain JSON.
//
// The package stands between the registries and any storage.Interface, as a watch cache does. A
// [Getter] gives each storage a codec that leaves objects as they are, so a watch delivers an
// [Object]. The Object is decoded only if a client wants another encoding, and is encoded once for
// each encoding. That works with every storage, also with Kubernetes' etcd3 store. A storage that
// is a [Source] is also read directly, by [Getter.Serve].
package storedjson
