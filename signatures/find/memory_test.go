package find_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// remembering is a fixture that is searched again and again by one Finder.
type remembering struct {
	*fixture
	finder *find.Finder
	clock  *clocktesting.FakePassiveClock
}

// demands are policies that demand the same of each image.
type demands struct{ signatures, attestations bool }

func (d demands) Demands(reference.Reference) (signatures, attestations bool) {
	return d.signatures, d.attestations
}

// nothing demands nothing.
var nothing = demands{}

// demandsOf checks for which image it is called.
type demandsOf struct {
	demands
	t    *testing.T
	want reference.Reference
}

func (d demandsOf) Demands(image reference.Reference) (signatures, attestations bool) {
	if image != d.want {
		d.t.Errorf("asked what is demanded of %s, want %s", image, d.want)
	}
	return d.demands.Demands(image)
}

func newRemembering(t *testing.T, referrersAPI bool) *remembering {
	r := &remembering{fixture: newFixture(t, referrersAPI), clock: clocktesting.NewFakePassiveClock(time.Now())}
	absent := filepath.Join(t.TempDir(), "absent")
	var err error
	if r.finder, err = find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent, Clock: r.clock, Demands: nothing}); err != nil {
		t.Fatal(err)
	}
	r.requests = nil
	return r
}

// search searches for one of many digests of the repository, with 0 for that of the image. It
// returns the requests and how many signatures there are.
func (r *remembering) search(repository string, n int, since time.Time) (requests []string, found int) {
	r.t.Helper()
	d := r.digest
	if n > 0 {
		d = fmt.Sprintf("sha256:%064x", n)
	}
	digest, err := name.NewDigest(r.host + "/" + repository + "@" + d)
	if err != nil {
		r.t.Fatal(err)
	}
	r.requests = nil
	all, _, _, err := r.finder.Find(r.t.Context(), digest, inRepository, r.client.Transport, since, false)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, request := range r.requests {
		requests = append(requests, strings.NewReplacer("GET /v2/", "", "@", "", digest.DigestStr(), "", strings.Replace(digest.DigestStr(), ":", "-", 1), "tag").Replace(request))
	}
	return requests, len(all)
}

func wantRequests(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if text := strings.Join(got, " "); text != want {
		t.Errorf("%s: requests are %q, want %q", what, text, want)
	}
}

// Before, each digest cost four requests, all answered 404.
func TestManyDigestsCostOneListOfTags(t *testing.T) {
	r := newRemembering(t, false)
	begun := r.clock.Now()
	got, _ := r.search("demo/app", 0, begun)
	wantRequests(t, "the first", got, "demo/app/referrers/ demo/app/tags/list")
	for n := range 100 {
		got, _ := r.search("demo/app", n+1, begun)
		wantRequests(t, "another", got, "")
	}
	// An hour later it may have an API.
	r.clock.SetTime(begun.Add(time.Hour + time.Second))
	got, _ = r.search("demo/app", 0, begun)
	wantRequests(t, "an hour later", got, "demo/app/referrers/")
}

// A list that a caller passes to Listed is not read again before it is too old, however long it is.
func TestListsThatAreGiven(t *testing.T) {
	r := newRemembering(t, false)
	begun := r.clock.Now()
	r.search("demo/other", 0, begun) // finds that there is no referrers API
	repository, err := name.NewRepository(r.repository())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{1, 150} {
		tags := []string{"v1", r.tag(".sig")}
		for i := range n {
			tags = append(tags, fmt.Sprintf("sha256-%064x.sig", i+1))
		}
		r.finder.Listed(repository, tags, begun)
		got, _ := r.search("demo/app", 1000, begun)
		wantRequests(t, "one that is not listed", got, "")
		got, _ = r.search("demo/app", 0, begun)
		wantRequests(t, "one that is", got, "demo/app/manifests/tag.sig")
		r.clock.SetTime(begun.Add(time.Second))
		got, _ = r.search("demo/app", 1001, begun.Add(time.Second))
		wantRequests(t, "after the list", got, "demo/app/tags/list")
		r.finder.Forget(repository)
		r.search("demo/other", 0, begun)
	}
}

func TestReferrersAreAskedForEachDigest(t *testing.T) {
	r := newRemembering(t, true)
	begun := r.clock.Now()
	r.search("demo/app", 0, begun)
	got, _ := r.search("demo/app", 1, begun)
	wantRequests(t, "another", got, "demo/app/referrers/")
}

// A list of tags from before a signature was pushed does not hide it.
func TestAttackSignatureBehindARememberedListOfTags(t *testing.T) {
	r := newRemembering(t, false)
	key := signaturestest.NewKey(t, signaturestest.P256)
	begun := r.clock.Now()
	r.search("demo/app", 0, begun)
	r.push(r.tag(".sig"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{r.cosignLayer(key.SimpleSigning(t, r.digest, r.repository()))}})
	if _, found := r.search("demo/app", 0, begun); found != 0 {
		t.Fatal("the list is not remembered")
	}
	r.clock.SetTime(begun.Add(time.Second))
	if _, found := r.search("demo/app", 0, r.clock.Now()); found != 1 {
		t.Error("what is newer than the list is not found")
	}

	other := newRemembering(t, false)
	other.search("demo/app", 0, begun)
	other.push(other.tag(".sig"), map[string]any{"config": other.blob(emptyConfig, []byte("{}")), "layers": []any{other.cosignLayer(key.SimpleSigning(t, other.digest, other.repository()))}})
	repository, err := name.NewRepository(other.repository())
	if err != nil {
		t.Fatal(err)
	}
	other.finder.Forget(repository)
	if _, found := other.search("demo/app", 0, begun); found != 1 {
		t.Error("what was told of is not found")
	}
}

// A push of a signature is reported while a search reads the list of tags. The list is not used,
// because it may have begun before the push.
func TestAttackListOfTagsUnderWayWhenASignatureIsTold(t *testing.T) {
	r := newRemembering(t, false)
	key := signaturestest.NewKey(t, signaturestest.P256)
	listing, goOn := make(chan bool), make(chan bool)
	var once sync.Once
	r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
		if !strings.HasSuffix(req.URL.Path, "/tags/list") {
			inner.ServeHTTP(w, req)
			return
		}
		first := false
		once.Do(func() { first = true })
		if first {
			listing <- true
			<-goOn
			io.WriteString(w, `{"tags":["v1"]}`)
			return
		}
		inner.ServeHTTP(w, req)
	}
	digest, err := name.NewDigest(r.repository() + "@" + r.digest)
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := r.clock.Now(), make(chan bool)
	go func() {
		// what it finds is old
		_, _, _, _ = r.finder.Find(t.Context(), digest, inRepository, r.client.Transport, begun, false)
		close(ended)
	}()
	<-listing
	r.push(r.tag(".sig"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{r.cosignLayer(key.SimpleSigning(t, r.digest, r.repository()))}})
	r.finder.Forget(digest.Context())
	close(goOn)
	<-ended
	if _, found := r.search("demo/app", 0, begun); found != 1 {
		t.Error("what was told of is not found")
	}
}

// A proxy, or another kind of registry behind the same host, answers in place of the referrers API.
// That does not count as the registry's answer.
func TestAttackNoReferrersOnTheWordOfAnother(t *testing.T) {
	r := newRemembering(t, true)
	for _, tt := range []struct {
		answer, contentType string
		status              int
	}{
		{"<html>not here</html>", "text/html; charset=utf-8", http.StatusNotFound},
		{"{}", "application/json", http.StatusBadRequest},
		{"<html>log in</html>", "text/html", http.StatusOK},
		{"{", "application/json", http.StatusOK},
	} {
		r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
			if !strings.Contains(req.URL.Path, "/referrers/") {
				inner.ServeHTTP(w, req)
				return
			}
			w.Header().Set("Content-Type", tt.contentType)
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.answer)
		}
		r.search("demo/app", 0, r.clock.Now())
		r.around = nil
		if got, _ := r.search("demo/app", 0, r.clock.Now()); !strings.Contains(strings.Join(got, " "), "/referrers/") {
			t.Errorf("%d %s: referrers are not asked for any more: %q", tt.status, tt.contentType, got)
		}
	}
	// A plain 404 counts for repositories with the same first element.
	r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
		if strings.Contains(req.URL.Path, "/referrers/") {
			http.NotFound(w, req)
			return
		}
		inner.ServeHTTP(w, req)
	}
	r.search("demo/app", 0, r.clock.Now())
	r.around = nil
	for repository, asked := range map[string]bool{"demo/app": false, "demo/other": false, "remote/app": true} {
		got, _ := r.search(repository, 0, r.clock.Now())
		if strings.Contains(strings.Join(got, " "), "/referrers/") != asked {
			t.Errorf("%s: %q, asked for referrers should be %t", repository, got, asked)
		}
	}
}

// Lists that may lack tags prove nothing.
func TestAttackListsOfTagsThatAreCut(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	tags := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"v%d"`, i)
		}
		return `{"tags":[` + strings.Join(list, ",") + `]}`
	}
	for name, answer := range map[string]func(http.ResponseWriter, *http.Request){
		"nothing":          func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"tags":null}`) },
		"a page":           func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, tags(1000)) },
		"a small page":     func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, tags(100)) },
		"a web page":       func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"not allowed":      func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"a server's fault": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
		"elsewhere": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Link", `<http://169.254.169.254/latest>; rel="next"`)
			io.WriteString(w, tags(7))
		},
		"a page that leads back": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Link", fmt.Sprintf(`<%s>; rel="next"`, req.URL))
			io.WriteString(w, tags(7))
		},
		"pages without end": func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Link", fmt.Sprintf(`</v2/demo/app/tags/list?n=1000&last=%s0>; rel="next"`, req.FormValue("last")))
			io.WriteString(w, tags(1000))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemembering(t, false)
			r.push(r.tag(".sig"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{r.cosignLayer(key.SimpleSigning(t, r.digest, r.repository()))}})
			r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
				if strings.HasSuffix(req.URL.Path, "/tags/list") {
					answer(w, req)
					return
				}
				inner.ServeHTTP(w, req)
			}
			begun := r.clock.Now()
			for n := range 20 { // also when there are enough digests to read all pages
				r.search("demo/app", n+1, begun)
			}
			if _, found := r.search("demo/app", 0, begun); found != 1 {
				t.Error("the signature is not found")
			}
		})
	}
}

// A list with a round number of tags was never trusted, so each digest cost two to three more
// requests. One request shows whether there are more tags.
func TestListsOfARoundNumberOfTags(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	for _, n := range []int{50, 51, 100, 149, 150} {
		r := newRemembering(t, false)
		r.push(r.tag(".sig"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{r.cosignLayer(key.SimpleSigning(t, r.digest, r.repository()))}})
		all := []string{"sha256-" + strings.Repeat("0", 64) + ".sig"}
		for i := range n - 2 {
			all = append(all, fmt.Sprintf("a%03d", i))
		}
		all = append(all, r.tag(".sig"))
		slices.Sort(all)
		// It has fifty tags on a page, and no link to the next page.
		r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
			if !strings.HasSuffix(req.URL.Path, "/tags/list") {
				inner.ServeHTTP(w, req)
				return
			}
			page := slices.DeleteFunc(slices.Clone(all), func(tag string) bool { return tag <= req.FormValue("last") })
			_ = json.NewEncoder(w).Encode(map[string]any{"tags": page[:min(50, len(page))]})
		}
		begun, lists := r.clock.Now(), 0
		for i := range 40 {
			got, _ := r.search("demo/app", i+1, begun)
			for _, request := range got {
				if strings.HasSuffix(request, "/tags/list") {
					lists++
				}
			}
			if i >= 16 && len(got) > 0 && !strings.HasSuffix(got[0], "/tags/list") {
				t.Errorf("%d tags: another digest costs %q", n, got)
			}
		}
		if want := n/50 + 1; lists != want {
			t.Errorf("%d tags: %d pages were read, want %d", n, lists, want)
		}
		if _, found := r.search("demo/app", 0, begun); found != 1 {
			t.Errorf("%d tags: the signature is not found", n)
		}
	}
}

// A proxy's list has only the tags that it keeps, or that it takes for images. A tag that a policy
// demands is requested all the same, and no other.
func TestAttackTagsLeftOutOfTheList(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	const bundleType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	sig := func(r *remembering) {
		r.push(r.tag(".sig"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{r.cosignLayer(key.SimpleSigning(t, r.digest, r.repository()))}})
	}
	fallback := func(r *remembering) {
		d := r.refer(bundleType, nil, r.blob(bundleType, signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(r.digest, payload.PredicateCosignSign)))))
		r.push(r.tag(""), map[string]any{"mediaType": "application/vnd.oci.image.index.v1+json", "manifests": []any{map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": d, "size": 1}}})
	}
	att := func(r *remembering) {
		l := r.blob(payload.MediaTypeEnvelope, []byte("{}"))
		l["annotations"] = map[string]string{payload.AnnotationSignature: ""}
		r.push(r.tag(".att"), map[string]any{"config": r.blob(emptyConfig, []byte("{}")), "layers": []any{l}})
	}
	for _, tt := range []struct {
		name                     string
		api                      bool
		signatures, attestations bool // are demanded
		push                     func(r *remembering)
		asked                    string // which of the tags
		found                    string
	}{
		{"cosign's tag", true, true, false, sig, ".sig", signatures.TypeSimpleSigning},
		{"the fallback tag", false, true, false, fallback, ". .sig", signatures.TypeBundle},
		{"attestations", true, false, true, att, ".att", signatures.TypeAttestation},
		{"attestations beside signatures", true, true, true, func(r *remembering) { sig(r); att(r) }, ".sig .att", signatures.TypeSimpleSigning + " " + signatures.TypeAttestation},
		{"there is none", true, true, false, func(*remembering) {}, ".sig", ""},
		{"nothing is demanded", false, false, false, func(r *remembering) { sig(r); fallback(r); att(r) }, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRemembering(t, tt.api)
			r.t = t
			r.push("v2", map[string]any{"config": r.blob(emptyConfig, []byte("{}"))})
			tt.push(r)
			r.around = func(w http.ResponseWriter, req *http.Request, inner http.Handler) {
				if strings.HasSuffix(req.URL.Path, "/tags/list") {
					io.WriteString(w, `{"name":"demo/app","tags":["v1","v2"]}`)
					return
				}
				inner.ServeHTTP(w, req)
			}
			got := r.find(find.Options{Demands: demandsOf{demands{tt.signatures, tt.attestations}, t, inRepository.WithDigest(r.digest)}})
			if got.err != nil || got.types() != tt.found {
				t.Errorf("found %q, %v, want %q", got.types(), got.err, tt.found)
			}
			var asked []string
			for _, request := range r.requests {
				if suffix, ok := strings.CutPrefix(request, "GET /v2/demo/app/manifests/"+r.tag("")); ok {
					asked = append(asked, "."+strings.TrimPrefix(suffix, "."))
				}
			}
			if text := strings.Join(asked, " "); text != tt.asked {
				t.Errorf("asked for the tags %q, want %q", text, tt.asked)
			}
		})
	}
}

// If a list of tags takes longer than a search, the next searches continue it. Meanwhile each tag
// is requested by itself.
func TestLongListOfTagsIsReadByManySearches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pages, slow = 20, 12 * time.Second
		read, signed := map[int]int{}, fmt.Sprintf("sha256:%064x", 7)
		registry := answers(func(r *http.Request) (int, string, string) {
			if !strings.HasSuffix(r.URL.Path, "/tags/list") {
				return http.StatusNotFound, "", `{"errors":[{"code":"MANIFEST_UNKNOWN"}]}`
			}
			page := 1
			fmt.Sscan(r.URL.Query().Get("page"), &page)
			select {
			case <-time.After(slow):
			case <-r.Context().Done():
				return 0, "", ""
			}
			read[page]++
			next, tags := "", fmt.Sprintf(`"v%d"`, page)
			if page == pages {
				tags = `"` + strings.Replace(signed, ":", "-", 1) + `.sig"`
			} else {
				next = fmt.Sprintf("</v2/demo/app/tags/list?page=%d>; rel=next", page+1)
			}
			return http.StatusOK, next, `{"tags":[` + tags + `]}`
		})
		absent := filepath.Join(t.TempDir(), "absent")
		finder, err := find.New(find.Options{RegistriesDirs: []string{absent}, Storage: absent, Demands: nothing})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for n := range 30 {
			digest, err := name.NewDigest(fmt.Sprintf("registry.example.com/demo/app@sha256:%064x", n+100))
			if err != nil {
				t.Fatal(err)
			}
			if _, annotations, _, err := finder.Find(t.Context(), digest, inRepository, registry, began, false); err != nil || annotations[annotation.Unread] != "" {
				t.Fatalf("search %d: %v, %v", n, annotations, err)
			}
		}
		if len(read) != pages {
			t.Errorf("%d of %d pages were read: %v", len(read), pages, read)
		}
		for page, times := range read {
			if times != 1 {
				t.Errorf("page %d was read %d times", page, times)
			}
		}
	})
}

// answers is a registry that answers a request with a status, the header Link, and a body; 0 means
// no answer.
type answers func(*http.Request) (status int, link, body string)

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	status, link, body := a(r)
	if status == 0 {
		return nil, r.Context().Err()
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if link != "" {
		header.Set("Link", link)
	}
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r}, nil
}
