package hooks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Spool stores events until they are processed.
type Spool interface {
	// Enqueue stores all of the events or none, and returns nil only when they will survive a crash.
	// It skips an event, without an error, if one with the same (Receiver, ID) was stored in the last
	// 24 hours. An event with an empty ID never counts as a repeat.
	Enqueue(ctx context.Context, events []push.Event) error
}

// Media types of manifests and indexes. Events about other types are ignored.
// https://distribution.github.io/distribution/spec/manifest-v2-2/ and
// https://github.com/opencontainers/image-spec/blob/main/media-types.md
var manifestMediaTypes = map[string]bool{
	"application/vnd.docker.distribution.manifest.v1+json":      true,
	"application/vnd.docker.distribution.manifest.v1+prettyjws": true,
	"application/vnd.docker.distribution.manifest.v2+json":      true,
	"application/vnd.docker.distribution.manifest.list.v2+json": true,
	"application/vnd.oci.image.manifest.v1+json":                true,
	"application/vnd.oci.image.index.v1+json":                   true,
}

// Reasons to refuse an event, the values of the metric's label.
const (
	reasonMalformed  = "malformed"  // JSON, but not in the vendor's shape
	reasonAction     = "action"     // a pull, a scan, a ping, …
	reasonMediaType  = "media_type" // a layer, a config, …
	reasonHost       = "host"       // outside the allow-list, or unknown
	reasonRepository = "repository" // outside the patterns, or not a repository name
	reasonReference  = "reference"  // a push with neither a tag nor a digest
)

// check converts a decoder's event to an event of the receiver, in canonical form, or returns the
// reason to refuse it.
func (rc *receiver) check(e push.Event) (push.Event, string) {
	e.Source, e.Actor = push.OfWebhook(rc.Name), printable.Line(e.Actor, push.MaxActor)
	if e.Action != push.Pushed && e.Action != push.Deleted {
		return push.Event{}, reasonAction
	}
	// Deletions have no type, and some registries never send it. Then the importer sends a HEAD
	// request for it.
	e.MediaType, _, _ = strings.Cut(e.MediaType, ";")
	if e.MediaType != "" && !manifestMediaTypes[e.MediaType] {
		return push.Event{}, reasonMediaType
	}
	if e.Host == "" && len(rc.hosts) == 1 {
		e.Host = rc.hosts[0]
	}
	host, err := reference.ParseHost(e.Host)
	if err != nil || !rc.allows(host) {
		return push.Event{}, reasonHost
	}
	// A looser rule would let "../" into the URL of a registry's API.
	repository, err := reference.ParseRepository(host + "/" + e.Repository)
	if err != nil {
		return push.Event{}, reasonRepository
	}
	e.Host, e.Repository = repository.Host, repository.Repository
	if len(rc.Repositories) > 0 && !slices.ContainsFunc(rc.Repositories, func(p string) bool { return reference.MatchPath(p, e.Repository) }) {
		return push.Event{}, reasonRepository
	}

	if e.Digest == "" && reference.IsDigest(e.Tag) {
		e.Digest = e.Tag // Harbor, zot and Gitea put a digest in the tag's place
	}
	if !reference.IsDigest(e.Digest) {
		e.Digest = "" // GitHub's own examples have 40 hex digits: use the tag
	}
	if !reference.IsTag(e.Tag) {
		e.Tag = ""
	}
	if e.Action == push.Pushed && e.Tag == "" && e.Digest == "" {
		return push.Event{}, reasonReference
	}
	return e, ""
}

// explain returns a sentence about why an event was refused.
func (rc *receiver) explain(reason string, e push.Event) string {
	text := ""
	switch reason {
	case reasonAction:
		text = "it reports neither a push nor a deletion"
		if e.Action != "" {
			text = fmt.Sprintf("it reports %s, which is neither a push nor a deletion", e.Action)
		}
	case reasonMediaType:
		text = "it reports something of media type " + e.MediaType + ", which is not a manifest"
	case reasonHost:
		text = "it reports the registry " + e.Host + ", which the receiver's hosts do not name"
		if e.Host == "" {
			text = "it does not show which of the receiver's hosts it is from"
		}
	case reasonRepository:
		text = "it reports the repository " + e.Repository + ", which the receiver's repositories do not cover, or which is not a valid name"
	case reasonReference:
		text = "it reports a push without a tag or a digest to import"
	}
	return printable.Line(text, maxWhy)
}

// textIn returns the text in a part of a payload: a string, or the string under a key of an object.
// It returns "" for a malformed part.
func textIn(raw json.RawMessage, key string) string {
	if key != "" {
		var object map[string]json.RawMessage
		if unmarshal(raw, &object) != nil {
			return ""
		}
		raw = object[key]
	}
	var text string
	if unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// splitReference cuts host/repository[:tag][@digest] into its parts, without checks. A missing part
// is "".
func splitReference(ref string) (host, repository, tag, dgst string) {
	ref, dgst, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref, tag = ref[:i], ref[i+1:]
	}
	host, repository, _ = strings.Cut(ref, "/")
	return host, repository, tag, dgst
}

// hostOf returns the host[:port] of a URL, "" if it has none.
func hostOf(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	host, _, _ := strings.Cut(url, "/")
	return host
}

// itemID returns the ID of the i-th event of a delivery.
func itemID(id string, i int) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s#%d", id, i)
}
