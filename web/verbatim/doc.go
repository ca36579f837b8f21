// Package verbatim answers requests with the bytes that are stored.
//
// What a storage holds of some kinds is what a JSON client gets, but for its
// resourceVersion. Of these, a [Kind] each, reads, lists, creations and watches are
// answered without decoding anything; whatever is not plain JSON, or has a selector, is
// left to the API server's own handlers.
//
// It stands between the registries and any storage.Interface, as a watch cache does: a
// [Getter] gives each storage a codec that leaves objects as they are, so what watches are
// told of is an [Object], which is decoded if somebody asks for another form, and encoded
// once for each form. That works with every storage, Kubernetes' etcd3 store as well.
// A storage that is a [Source] is also read directly, by [Getter.Serve].
package verbatim
