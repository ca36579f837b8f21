package hooks

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Action is what happened to a reference.
type Action string

const (
	// ActionPush says a manifest was pushed or a tag was moved.
	ActionPush Action = "push"
	// ActionDelete says a manifest, a tag or a whole repository was deleted.
	ActionDelete Action = "delete"
)

// Event is one thing a registry says happened. A decoder fills it with what the
// payload holds, unchecked; the Job that reaches the Spool holds it checked and
// normalised.
type Event struct {
	// ID is the sender's name for this delivery, the same when it is sent again,
	// or empty when the sender has none.
	ID string `json:"id,omitempty"`
	// Action is ActionPush, ActionDelete, or the vendor's own word for anything
	// else, which is not of interest.
	Action Action `json:"action"`
	// Host is the registry, host[:port].
	Host string `json:"host"`
	// Repository is the path within the registry.
	Repository string `json:"repository"`
	// Tag and Digest name the manifest. In a Job of ActionPush at least one is
	// set; in one of ActionDelete neither means the whole repository.
	Tag    string `json:"tag,omitempty"`
	Digest string `json:"digest,omitempty"`
	// MediaType is the manifest's, empty when the sender does not say.
	MediaType string `json:"mediaType,omitempty"`
	// Time is when the registry says it happened, zero when it does not.
	Time time.Time `json:"time,omitzero"`
}

// Job is an Event to act on: of interest, from an allowed host, its names in
// their canonical form (package reference).
type Job struct {
	// Receiver is the name of the Receiver that took the event.
	Receiver string
	Event
	// Received is when the request arrived.
	Received time.Time
}

// Reference returns the name the job is about: host/repository:tag, else
// host/repository@digest, else host/repository. Jobs with equal References may
// be done as one.
func (j Job) Reference() string {
	ref := reference.Reference{Host: j.Host, Repository: j.Repository, Tag: j.Tag}
	if j.Tag == "" {
		ref.Digest = j.Digest
	}
	return ref.String()
}

// Spool keeps jobs until they are done.
type Spool interface {
	// Enqueue stores all of the jobs or none, and returns nil only when they will
	// survive a crash. A job whose (Receiver, ID) was stored in the last 24 hours
	// is left out without an error; an empty ID is never taken for a repeat.
	Enqueue(ctx context.Context, jobs []Job) error
}

// Media types of manifests and indexes, the only targets of interest.
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

// Reasons an event is refused, the values of the metric's label.
const (
	reasonMalformed  = "malformed"  // JSON, but not in the vendor's shape
	reasonAction     = "action"     // a pull, a scan, a ping, …
	reasonMediaType  = "media_type" // a layer, a config, …
	reasonHost       = "host"       // outside the allow-list, or unknown
	reasonRepository = "repository" // outside the patterns, or not a repository name
	reasonReference  = "reference"  // a push with neither a tag nor a digest
)

// check returns the event in canonical form, or the reason it is refused.
func (rc *receiver) check(e Event) (Event, string) {
	if e.Action != ActionPush && e.Action != ActionDelete {
		return Event{}, reasonAction
	}
	// Registries leave the type out of deletes, and some out of everything; the
	// importer asks with HEAD.
	e.MediaType, _, _ = strings.Cut(e.MediaType, ";")
	if e.MediaType != "" && !manifestMediaTypes[e.MediaType] {
		return Event{}, reasonMediaType
	}
	if e.Host == "" && len(rc.hosts) == 1 {
		e.Host = rc.hosts[0]
	}
	host, err := reference.ParseHost(e.Host)
	if err != nil || !rc.allows(host) {
		return Event{}, reasonHost
	}
	// A looser rule would let a "../" through to the URL of a registry's API.
	repository, err := reference.ParseRepository(host + "/" + e.Repository)
	if err != nil {
		return Event{}, reasonRepository
	}
	e.Host, e.Repository = repository.Host, repository.Repository
	if !matchAny(rc.Repositories, e.Repository) {
		return Event{}, reasonRepository
	}

	if e.Digest == "" && reference.IsDigest(e.Tag) {
		e.Digest = e.Tag // Harbor, zot and Gitea put a digest in the tag's place
	}
	if !reference.IsDigest(e.Digest) {
		e.Digest = "" // GitHub's own examples carry 40 hex digits: the tag must do
	}
	if !reference.IsTag(e.Tag) {
		e.Tag = ""
	}
	if e.Action == ActionPush && e.Tag == "" && e.Digest == "" {
		return Event{}, reasonReference
	}
	return e, ""
}

// splitReference cuts host/repository[:tag][@digest] into its parts. It checks
// nothing; what is missing is empty.
func splitReference(ref string) (host, repository, tag, dgst string) {
	ref, dgst, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		ref, tag = ref[:i], ref[i+1:]
	}
	host, repository, _ = strings.Cut(ref, "/")
	return host, repository, tag, dgst
}

// hostOf returns the host[:port] of a URL's text, empty when there is none.
func hostOf(url string) string {
	if _, rest, ok := strings.Cut(url, "://"); ok {
		url = rest
	}
	host, _, _ := strings.Cut(url, "/")
	return host
}

// parseTime reads an RFC 3339 time, zero when it is not one.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t.UTC()
}

// itemID names the i-th of several events of one delivery.
func itemID(id string, i int) string {
	if id == "" {
		return ""
	}
	return fmt.Sprintf("%s#%d", id, i)
}
