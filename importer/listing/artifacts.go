package listing

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Artifacts is Harbor's list of all that a repository has: ask for Path, give the answer to Read,
// until Path is "" (listArtifacts of Harbor's swagger.yaml). Harbor looks up in the same table
// where a pulled tag leads (src/server/registry/manifest.go of goharbor/harbor), except in a
// project that caches another registry.
type Artifacts struct {
	path    string
	number  int // of pages that were read
	done    bool
	entries []string
	tags    map[string]string
}

// ProjectOf is where Harbor says of what kind a repository's project is; [IsCache] reads that. ok
// is false for a repository that is in no project.
func ProjectOf(repository string) (path string, ok bool) {
	project, _, ok := strings.Cut(repository, "/")
	return "/api/v2.0/projects/" + url.PathEscape(project), ok
}

// IsCache reports whether a project caches another registry. Its lists have what was fetched, and
// not what is there.
func IsCache(raw []byte) (bool, error) {
	var project struct {
		ID       int64 `json:"project_id"`
		Registry int64 `json:"registry_id"`
	}
	err := json.Unmarshal(raw, &project)
	if err == nil && project.ID == 0 {
		err = errors.New("it is no project")
	}
	return project.Registry != 0, err
}

// ArtifactsOf is the list of a repository that [ProjectOf] accepts.
func ArtifactsOf(repository string) *Artifacts {
	project, name, _ := strings.Cut(repository, "/")
	// Harbor has the name encoded twice.
	return &Artifacts{path: fmt.Sprintf("/api/v2.0/projects/%s/repositories/%s/artifacts", url.PathEscape(project), url.PathEscape(url.PathEscape(name))), tags: map[string]string{}}
}

// Path is where to ask for the next page; "" if there is none.
func (a *Artifacts) Path() string {
	if a.done {
		return ""
	}
	return fmt.Sprintf("%s?page=%d&page_size=%d&with_tag=true&with_accessory=true", a.path, a.number+1, harborPage)
}

// Read reads the answer at Path. An error is about a list that says nothing for certain: one that
// changed while it was read, say.
func (a *Artifacts) Read(raw []byte, header http.Header) error {
	var all []struct {
		Digest string `json:"digest"`
		Tags   []struct {
			Name string `json:"name"`
		} `json:"tags"`
		Accessories []struct {
			Digest string `json:"digest"`
		} `json:"accessories"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return err
	}
	count, err := strconv.Atoi(header.Get("X-Total-Count"))
	if err != nil {
		return errors.New("it does not say how many there are")
	}
	a.number++
	for _, one := range all {
		if one.Digest == "" {
			return errors.New("one has no digest")
		}
		var parts []string
		for _, tag := range one.Tags {
			if _, is := a.tags[tag.Name]; is {
				return fmt.Errorf("the tag %.128q is listed twice", tag.Name)
			}
			a.tags[tag.Name] = one.Digest
			parts = append(parts, "tag "+tag.Name)
		}
		for _, accessory := range one.Accessories {
			parts = append(parts, "accessory "+accessory.Digest)
		}
		slices.Sort(parts)
		a.entries = append(a.entries, one.Digest+"\n"+strings.Join(parts, "\n"))
	}
	if a.done = len(a.entries) >= count; a.done && len(a.entries) > count || !a.done && len(all) < harborPage {
		return fmt.Errorf("there are %d by its own count, and it shows %d", count, len(a.entries))
	}
	return nil
}

// Tags is where each tag leads.
func (a *Artifacts) Tags() map[string]string { return a.tags }

// Sum is of all that the list says: of digests, their tags, and signatures and others beside them.
func (a *Artifacts) Sum() [sha256.Size]byte {
	slices.Sort(a.entries)
	text, _ := json.Marshal(a.entries) // of strings
	return sha256.Sum256(text)
}
