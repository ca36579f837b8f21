package console

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sharingAPI answers about images with their layers, by repository, and an index of some of them.
type sharingAPI struct {
	layers     map[string][]string // of images, by digest
	repository map[string]string
	platforms  []string
	mu         sync.Mutex
	asked      []string // layers whose images were listed
	most       int      // images that a list has
}

// answers are those of the API, of an image whose digest is digestA.
func (s *sharingAPI) answers() map[string]any {
	image := func(digest string) m {
		var layers l
		for _, name := range s.layers[digest] {
			layers = append(layers, m{"name": name, "size": 1_000_000})
		}
		return m{"metadata": m{"name": digest}, "dockerImageLayers": layers}
	}
	meaning := m{"digest": digestA, "reference": "r.io/app:v1", "repository": "r.io/app", "tag": "v1"}
	if len(s.platforms) > 0 {
		var all l
		for i, digest := range s.platforms {
			all = append(all, m{"platform": fmt.Sprint("linux/p", i), "digest": digest})
		}
		meaning["platforms"] = append(all, m{"platform": "unknown/unknown", "digest": "sha256:attestation"})
	}
	answers := map[string]any{
		"POST " + reviewsPath:               answered(func(string) m { return m{"state": "Found", "meaning": meaning} }),
		"GET " + imagesPath + "/" + digestA: image(digestA), "GET " + packagesPath: m{}, "GET " + runsPath: m{},
	}
	answers["GET "+imagesPath] = func(q url.Values) any {
		field, value, _ := strings.Cut(q.Get("fieldSelector"), "=")
		var items, rows l
		for _, digest := range slices.Sorted(maps.Keys(s.layers)) {
			if field == "digest" && slices.Contains(strings.Split(value, "|"), digest) || field == "layer" && slices.Contains(s.layers[digest], value) {
				items = append(items, image(digest))
				rows = append(rows, m{"cells": l{digest, s.repository[digest]}})
			}
		}
		if field == "layer" {
			s.mu.Lock()
			s.asked = append(s.asked, value)
			s.mu.Unlock()
		}
		metadata := m{}
		if s.most > 0 && field == "layer" && len(items) > s.most {
			metadata, items = m{"continue": "more"}, items[:s.most]
		}
		return m{"metadata": metadata, "items": items, "rows": rows, "columnDefinitions": l{m{"name": "Name"}, m{"name": "Repository"}}}
	}
	return answers
}

// The page of an index draws which of its platforms, and which other repositories, share layers.
func TestSharedLayers(t *testing.T) {
	api := &sharingAPI{
		layers: map[string][]string{
			"sha256:amd": {"sha256:base", "sha256:tools", "sha256:x"}, "sha256:arm": {"sha256:base", "sha256:tools", "sha256:y", "sha256:z"},
			"sha256:o1": {"sha256:base", "sha256:tools"}, "sha256:o2": {"sha256:base", "sha256:tools"}, "sha256:o3": {"sha256:y"}, digestA: nil,
		},
		repository: map[string]string{"sha256:o1": "r.io/other", "sha256:o2": "r.io/other", "sha256:o3": "r.io/third"},
		platforms:  []string{"sha256:amd", "sha256:arm", "sha256:away"},
	}
	b := newBrowser(t, api.answers())
	b.signIn("good")
	body := b.do("GET", Root+"image?ref=app:v1", nil).Body.String()
	for want, n := range map[string]int{
		"Of 5 layers, 2 are in several platforms, and 3 are in other images, too. Not in the picture: linux/p2.": 1,
		`class="box index"`: 1, `class="box platform"`: 2, `class="box layers shared"`: 2, `class="box layers"`: 2, `class="box other"`: 2,
		`class="tie"`: 2 + 5 + 2, // from the index, to the layers, and to the other repositories
		`>2 layers, 2 MB</a> of linux/p0, linux/p1: shared with others: r.io/other`: 1,
		`>1 layer, 1 MB</a> of linux/p1: not shared</li>`:                           1,
		link("images", "layer", "sha256:tools"):                                     2, // of the picture, and of the words
		`href="/console/repository?name=r.io%2Fother"`:                              1,
		`<title>sha256:base, 1 MB; sha256:tools, 1 MB</title>`:                      1,
	} {
		if got := strings.Count(body, want); got != n {
			t.Errorf("the page has %q %d times, want %d", want, got, n)
		}
	}
	if t.Failed() {
		t.Log(body[strings.Index(body, `"h-sharing"`):])
	}

	// Without others there is nothing to draw.
	api.layers = map[string][]string{"sha256:amd": {"sha256:x"}, "sha256:arm": {"sha256:y"}, digestA: nil}
	if body := b.do("GET", Root+"image?ref=app:v1", nil).Body.String(); strings.Contains(body, "h-sharing") {
		t.Error("nothing is shared, and there is a picture of it")
	}

	// An image has the indexes that list it, and counts the images with each layer.
	api.platforms, api.layers = nil, map[string][]string{digestA: {"sha256:x", "sha256:y"}, "sha256:o1": {"sha256:y"}}
	b.api.answers = api.answers()
	body = b.do("GET", Root+"image?ref=app:v1", nil).Body.String()
	for _, want := range []string{"Of 2 layers, 1 is in other images, too.", "in this image alone", "in 2 images", "this image"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page of an image lacks %q", want)
		}
	}
}

// What is read and drawn has bounds, and what is beyond them is named.
func TestManySharedLayers(t *testing.T) {
	api := &sharingAPI{layers: map[string][]string{digestA: nil}, repository: map[string]string{}, most: layerUpTo}
	for i := range 20 {
		digest := fmt.Sprintf("sha256:p%02d", i)
		api.platforms = append(api.platforms, digest)
		for j := range 10 {
			layer := fmt.Sprintf("sha256:l%02d-%02d", i, j)
			api.layers[digest] = append(api.layers[digest], layer)
			for k := range 11 {
				other := fmt.Sprintf("sha256:o%02d-%02d-%02d", i, j, k)
				api.layers[other], api.repository[other] = []string{layer}, "r.io/"+other
			}
		}
	}
	b := newBrowser(t, api.answers())
	b.signIn("good")
	body := b.do("GET", Root+"image?ref=app:v1", nil).Body.String()
	if len(api.asked) != countedLayers {
		t.Errorf("the images of %d layers were listed, want %d", len(api.asked), countedLayers)
	}
	for want, n := range map[string]int{`class="box platform"`: drawnPlatforms, `class="box layers`: drawnGroups, `class="box other"`: drawnOthers} {
		if got := strings.Count(body, want); got != n {
			t.Errorf("the picture has %q %d times, want %d", want, got, n)
		}
	}
	for _, want := range []string{"Of 48 it is not known.", "There is more than the picture has.", "Not in the picture: linux/p8, ", "in more than 10 images", "elsewhere: unknown"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}

	// Who may not list images sees no picture, and the rest of the page.
	b.api.answers["GET "+imagesPath] = http.StatusForbidden
	if body := b.do("GET", Root+"image?ref=app:v1", nil).Body.String(); strings.Contains(body, "h-sharing") || !strings.Contains(body, "h-verdict") {
		t.Errorf("who may not list images sees\n%s", body)
	}
}
