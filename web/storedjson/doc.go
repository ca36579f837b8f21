// Package storedjson answers requests with the bytes that are stored.
//
// For some kinds a storage holds exactly what a JSON client gets, except for the
// resourceVersion. Each such kind is a [Kind]: its reads, lists, creations and watches are
// answered without decoding anything. Requests for anything but plain JSON, and those with
// a selector, are answered by the API server's own handlers.
//
// The package stands between the registries and any storage.Interface, as a watch cache
// does. A [Getter] gives each storage a codec that leaves objects as they are, so a watch
// delivers an [Object]. The Object is decoded only if somebody asks for another encoding, and
// encoded once for each encoding. That works with every storage, also with Kubernetes' etcd3
// store. A storage that is a [Source] is also read directly, by [Getter.Serve].
package storedjson
