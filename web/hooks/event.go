package hooks

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/opencontainers/go-digest"
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
// their canonical form (docker.io is index.docker.io, and library/ is written).
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
	s := j.Host + "/" + j.Repository
	switch {
	case j.Tag != "":
		return s + ":" + j.Tag
	case j.Digest != "":
		return s + "@" + j.Digest
	}
	return s
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
	host, err := canonicalHost(e.Host)
	if err != nil || !rc.allows(host) {
		return Event{}, reasonHost
	}
	repo, err := name.NewRepository(host + "/" + e.Repository)
	if err != nil || repo.RegistryStr() != host || !repositoryName.MatchString(repo.RepositoryStr()) {
		return Event{}, reasonRepository
	}
	e.Host, e.Repository = host, repo.RepositoryStr()
	if !matchAny(rc.Repositories, e.Repository) {
		return Event{}, reasonRepository
	}

	if e.Digest == "" && isDigest(e.Tag) {
		e.Digest = e.Tag // Harbor, zot and Gitea put a digest in the tag's place
	}
	if !isDigest(e.Digest) {
		e.Digest = "" // GitHub's own examples carry 40 hex digits: the tag must do
	}
	if !isTag(e.Tag) {
		e.Tag = ""
	}
	if e.Action == ActionPush && e.Tag == "" && e.Digest == "" {
		return Event{}, reasonReference
	}
	return e, ""
}

// repositoryName is the distribution specification's <name>. Looser rules let a
// "../" through to the URL of a registry's API.
var repositoryName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)

// isDigest reports whether s is a whole, well-formed digest.
func isDigest(s string) bool {
	_, err := digest.Parse(s)
	return err == nil
}

// isTag reports whether s is a tag by the distribution specification.
func isTag(s string) bool {
	if s == "" || len(s) > 128 || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-') {
			return false
		}
	}
	return true
}

// canonicalHost returns host[:port] in lower case, docker.io by the name its
// API is served under.
func canonicalHost(host string) (string, error) {
	if host == "" {
		return "", fmt.Errorf("a registry host is empty")
	}
	reg, err := name.NewRegistry(strings.ToLower(host), name.StrictValidation)
	if err != nil {
		return "", fmt.Errorf("%q is not a registry host (write host or host:port, without a scheme or a path)", host)
	}
	// By the rules of image references, a first segment without a dot or a port is
	// a repository of Docker Hub, not a host.
	if repo, err := name.NewRepository(reg.RegistryStr() + "/a"); err != nil || repo.RegistryStr() != reg.RegistryStr() {
		return "", fmt.Errorf("%q cannot stand in an image reference; give it with its port, as in %s:443", host, host)
	}
	return reg.RegistryStr(), nil
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
