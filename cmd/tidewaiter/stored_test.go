package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// Reads that are answered with stored bytes say the same as those that the API
// server decodes and encodes: whatever is in an object, on every page, at every
// revision, compressed or not, and also when the answer is an error.
func TestStoredReadsAnswerAsDecodedOnes(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	config := serve(t)
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var names, revisions []string
	for i := range 40 {
		image := randomImage(t, r, i)
		created, err := client.Create(t.Context(), image, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, created.Name)
		revisions = append(revisions, created.ResourceVersion)
		if r.IntN(4) == 0 {
			created.Labels = map[string]string{"changed": "yes"}
			if created, err = client.Update(t.Context(), created, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			revisions = append(revisions, created.ResourceVersion)
		}
		if r.IntN(8) == 0 {
			if err := client.Delete(t.Context(), created.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	const collection = "/apis/image.openshift.io/v1/images"
	c := newComparer(t, config)
	for _, name := range append(names, "absent", "sha256:00") {
		c.compare(collection+"/"+url.PathEscape(name), nil)
	}
	c.compare(collection, nil)
	// Every revision is read in one way, and the last ones and what is no revision in every way.
	for i, rv := range append(revisions, "0", "99999999", "yesterday", "-1") {
		for j, match := range []string{"", "Exact", "NotOlderThan", "Sometimes"} {
			if i < len(revisions)-2 && !isTurn(i, j, 4) {
				continue
			}
			c.compare(collection, url.Values{"resourceVersion": {rv}, "resourceVersionMatch": {match}, "limit": {fmt.Sprint(r.IntN(50))}})
		}
	}
	for _, limit := range []string{"1", "7", "39", "40", "41", "500", "501", "-1", "many"} {
		query := url.Values{"limit": {limit}}
		for pages := 0; pages < 60; pages++ {
			next := c.compare(collection, query)
			if next == "" {
				break
			}
			query.Set("continue", next)
		}
	}
	c.compare(collection, url.Values{"continue": {"nonsense"}})
	c.compare(collection, url.Values{"continue": {"e30"}, "limit": {"3"}})

	// Lists of more than a hundred are of what earlier lists have kept.
	for round := range 3 {
		for i := range 60 {
			created, err := client.Create(t.Context(), randomImage(t, r, 40+60*round+i), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			revisions = append(revisions, created.ResourceVersion)
		}
		c.compare(collection, nil)
		c.compare(collection, url.Values{"resourceVersion": {revisions[r.IntN(len(revisions))]}, "resourceVersionMatch": {"Exact"}})
	}
}

// randomImage is an Image with or without a manifest, with texts that need
// escaping in JSON.
func randomImage(t *testing.T, r *rand.Rand, i int) *imagev1.Image {
	t.Helper()
	image := &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprintf("image-%05d", r.IntN(100)*1000+i),
			Annotations: map[string]string{"text": strings.Repeat("<\"\\&\u2028é\x00>", r.IntN(4)), "metadata": `{"metadata":{`},
		},
		DockerImageReference: fmt.Sprintf("registry.example.com/team/app:%d", i),
	}
	if r.IntN(2) == 0 {
		img, err := sample.New(sample.Spec{Name: fmt.Sprint(i), Layers: 1 + r.IntN(5)})
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := img.RawManifest()
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.RawConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		image.Name, image.DockerImageManifest, image.DockerImageConfig = digest.String(), string(manifest), string(config)
	}
	return image
}

// comparer asks the same question twice.
type comparer struct {
	t      *testing.T
	client *http.Client
	host   string
}

func newComparer(t *testing.T, config *restclient.Config) *comparer {
	t.Helper()
	config = restclient.CopyConfig(config)
	config.DisableCompression = true
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return &comparer{t: t, client: client, host: config.Host}
}

// compare gets path from stored bytes, plain and compressed, and then by the
// API server's own handlers, which "pretty" leads to. It returns the continue
// token of the answer.
func (c *comparer) compare(path string, query url.Values) (next string) {
	c.t.Helper()
	slow := url.Values{"pretty": {"false"}}
	maps.Copy(slow, query)
	var decoded answer
	var stored map[string]answer
	for before := ""; before == "" || before != c.revision(); {
		// the server's own Leases move the revision, too
		before = c.revision()
		stored = map[string]answer{
			"stored": c.get(path, query, "identity"), "stored, compressed": c.get(path, query, "gzip"),
			"again": c.get(path, query, "identity"), "compressed again": c.get(path, query, "gzip"),
		}
		decoded = c.get(path, slow, "identity")
	}
	for name, fast := range stored {
		if fast.code != decoded.code || fast.contentType != decoded.contentType || !reflect.DeepEqual(fast.body, decoded.body) {
			c.t.Errorf("GET %s?%s, %s: %d %s\n%s\ndecoded: %d %s\n%s", path, query.Encode(), name,
				fast.code, fast.contentType, fast.text, decoded.code, decoded.contentType, decoded.text)
		}
	}
	metadata, _ := decoded.body["metadata"].(map[string]any)
	next, _ = metadata["continue"].(string)
	return next
}

// revision is the store's revision now.
func (c *comparer) revision() string {
	c.t.Helper()
	metadata, _ := c.get("/api/v1/namespaces", url.Values{"limit": {"1"}}, "identity").body["metadata"].(map[string]any)
	revision, _ := metadata["resourceVersion"].(string)
	if revision == "" {
		c.t.Fatal("a list without a revision")
	}
	return revision
}

type answer struct {
	code        int
	contentType string
	body        map[string]any
	text        string // its beginning
	whole       string
}

func (c *comparer) get(path string, query url.Values, encoding string) answer {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.host+path+"?"+query.Encode(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(query) == 0 {
		req.URL.ForceQuery = false
		req.URL.RawQuery = ""
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			c.t.Fatal(err)
		}
		if body, err = io.ReadAll(z); err != nil {
			c.t.Fatal(err)
		}
	} else if encoding == "gzip" && len(body) > 200<<10 {
		c.t.Errorf("%s: %d bytes are not compressed", path, len(body))
	}
	a := answer{code: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), text: string(body[:min(len(body), 300)]), whole: string(body)}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(&a.body); err != nil {
		c.t.Fatalf("%s: %v: %s", path, err, a.text)
	}
	return a
}

// The answers above are of stored bytes: if the shortcut were never taken, the
// comparison would compare nothing.
func TestStoredReadsAreTaken(t *testing.T) {
	config := serve(t)
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(t.Context(), &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "one"}, DockerImageReference: "registry.example.com/a:1"}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c := newComparer(t, config)
	order := func(query url.Values) []string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.host+"/apis/image.openshift.io/v1/images/one?"+query.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.URL.ForceQuery = false
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var object struct{ Metadata json.RawMessage }
		if err := json.NewDecoder(resp.Body).Decode(&object); err != nil {
			t.Fatal(err)
		}
		var fields []string
		d := json.NewDecoder(bytes.NewReader(object.Metadata))
		for depth := 0; ; {
			token, err := d.Token()
			if err != nil {
				return fields
			}
			switch token {
			case json.Delim('{'), json.Delim('['):
				depth++
			case json.Delim('}'), json.Delim(']'):
				depth--
			case "name", "resourceVersion":
				if depth == 1 {
					fields = append(fields, token.(string))
				}
			}
		}
	}
	if got := order(nil); !slices.Equal(got, []string{"resourceVersion", "name"}) {
		t.Errorf("a plain read has the fields in the order %v: it is not the stored bytes", got)
	}
	if got := order(url.Values{"pretty": {"false"}}); !slices.Equal(got, []string{"name", "resourceVersion"}) {
		t.Errorf("a read with parameters has the fields in the order %v: it is not the API server's", got)
	}
}

// A creation is answered with the stored bytes, too: they say what a read that
// is decoded says of the object, in every form that a client may ask for.
func TestCreationsAnswerWhatIsStored(t *testing.T) {
	t.Parallel()
	config := serve(t)
	c := newComparer(t, config)
	const collection = "/apis/image.openshift.io/v1/images"
	post := func(body []byte, accept, query string) (code int, text []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.host+collection+query, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", accept)
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, err = io.ReadAll(resp.Body); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, text
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 40 {
		image := randomImage(t, r, i)
		image.APIVersion, image.Kind = imagev1.GroupVersion.String(), "Image"
		body, err := json.Marshal(image)
		if err != nil {
			t.Fatal(err)
		}
		if i%8 == 0 {
			code, text := post(body, "application/json", "?dryRun=All")
			if code != http.StatusCreated || bytes.Contains(text, []byte(`"resourceVersion"`)) {
				t.Fatalf("dry run: %d %s", code, text)
			}
		}
		accept := []string{"application/json", "application/yaml", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", "application/json;as=Table;g=meta.k8s.io;v=v1"}[i%4]
		code, text := post(body, accept, "")
		if code != http.StatusCreated {
			t.Fatalf("%s: %d %s", accept, code, text)
		}
		var got, want map[string]any
		if err := yaml.Unmarshal(text, &got); err != nil {
			t.Fatalf("%s: %v: %s", accept, err, text)
		}
		stored := c.get(collection+"/"+image.Name, url.Values{"pretty": {"false"}}, "identity")
		if err := yaml.Unmarshal([]byte(stored.whole), &want); err != nil {
			t.Fatal(err)
		}
		switch got["kind"] {
		case "Image":
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: created\n%s\nread\n%s", accept, text, stored.whole)
			}
			if taken := bytes.HasPrefix(text, []byte(`{"kind":"Image","apiVersion":"image.openshift.io/v1","metadata":{"resourceVersion":"`)); taken != (accept == "application/json") {
				t.Errorf("%s: answered with stored bytes: %v", accept, taken)
			}
		case "PartialObjectMetadata":
			if !reflect.DeepEqual(got["metadata"], want["metadata"]) {
				t.Errorf("%s: %s", accept, text)
			}
		case "Table":
			object := got["rows"].([]any)[0].(map[string]any)["object"].(map[string]any)
			if !reflect.DeepEqual(object["metadata"], want["metadata"]) {
				t.Errorf("%s: %s", accept, text)
			}
		default:
			t.Errorf("%s: %s", accept, text)
		}
		if code, text := post(body, "application/json", ""); code != http.StatusConflict {
			t.Errorf("created twice: %d %s", code, text)
		}
	}
}

// Watches are told what a read of each revision says, whether their events are
// written from stored bytes, as plain JSON is, or not.
func TestStoredWatchesTellWhatIsRead(t *testing.T) {
	t.Parallel()
	config := serve(t)
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	c := newComparer(t, config)
	const collection = "/apis/image.openshift.io/v1/images"
	start, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	type event struct {
		Type   string
		Object map[string]any
	}
	var want []event
	names := map[string]map[string]any{}
	for i := range 40 {
		created, err := client.Create(t.Context(), randomImage(t, r, i), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		read := func() map[string]any {
			return c.get(collection+"/"+url.PathEscape(created.Name), url.Values{"pretty": {"false"}}, "identity").body
		}
		names[created.Name] = read()
		want = append(want, event{"ADDED", names[created.Name]})
		if r.IntN(3) == 0 {
			created.Labels = map[string]string{"changed": "yes"}
			if created, err = client.Update(t.Context(), created, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			names[created.Name] = read()
			want = append(want, event{"MODIFIED", names[created.Name]})
		}
		if r.IntN(4) == 0 {
			if err := client.Delete(t.Context(), created.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			want = append(want, event{"DELETED", names[created.Name]})
		}
	}

	watch := func(accept string, query url.Values, each func(n int, line []byte)) {
		t.Helper()
		query.Set("watch", "true")
		query.Set("resourceVersion", start.ResourceVersion)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.host+collection+"?"+query.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := c.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		for n := range want {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				t.Fatalf("%s, %s: after %d events: %v", accept, query.Encode(), n, err)
			}
			each(n, line)
		}
	}
	for _, query := range []url.Values{{}, {"allowWatchBookmarks": {"true"}}, {"labelSelector": {"absent!=yes"}}} {
		watch("application/json", query, func(n int, line []byte) {
			var got event
			d := json.NewDecoder(bytes.NewReader(line))
			d.UseNumber()
			if err := d.Decode(&got); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if got.Type == "DELETED" {
				// At the revision of the deletion, which no read shows.
				was, deleted := want[n].Object["metadata"].(map[string]any), got.Object["metadata"].(map[string]any)
				if revision(t, deleted) <= revision(t, was) {
					t.Errorf("deleted at %v, and written at %v", deleted["resourceVersion"], was["resourceVersion"])
				}
				deleted["resourceVersion"] = was["resourceVersion"]
			}
			if !reflect.DeepEqual(got, want[n]) {
				t.Errorf("%s: event %d is %s, want %v", query.Encode(), n, line, want[n])
			}
			if !bytes.Contains(line, []byte(`"object":{"kind":"Image","apiVersion":"image.openshift.io/v1","metadata":{"resourceVersion":"`)) {
				t.Errorf("%s: not written from stored bytes: %s", query.Encode(), line)
			}
		})
	}
	for _, as := range []string{"PartialObjectMetadata", "Table"} {
		watch("application/json;as="+as+";g=meta.k8s.io;v=v1", url.Values{}, func(n int, line []byte) {
			if name := want[n].Object["metadata"].(map[string]any)["name"].(string); !bytes.Contains(line, []byte(as)) || !bytes.Contains(line, []byte(name)) {
				t.Errorf("event %d as %s: %s", n, as, line)
			}
		})
	}
}

func revision(t *testing.T, metadata map[string]any) int {
	t.Helper()
	text, _ := metadata["resourceVersion"].(string)
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A watch that begins with what exists says the same whether it is written from stored
// bytes or not: every object, the bookmark that ends them, and what changes from there on.
func TestStoredInitialEventsAreThoseOfDecodedOnes(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	config := serve(t)
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	c := newComparer(t, config)
	made := 0
	for _, more := range []int{0, 1, 40, 250} {
		for range more {
			if _, err := client.Create(t.Context(), randomImage(t, r, made), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			made++
		}
		for _, query := range []url.Values{
			{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"}},
			{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {"1"}, "timeoutSeconds": {"600"}},
			{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}},
			{"resourceVersion": {"0"}, "allowWatchBookmarks": {"true"}},
			{},
		} {
			bookmarked := query.Has("allowWatchBookmarks")
			slow := url.Values{"pretty": {"false"}}
			for k, v := range query {
				slow[k] = v
			}
			before := c.revision()
			streams := []*eventReader{
				c.watch(slow, "identity"), c.watch(query, "identity"), c.watch(query, "gzip"),
			}
			count := made
			if bookmarked {
				count++
			}
			for n := range count {
				want := streams[0].next()
				if n == made {
					c.takeRevision(want, before)
				}
				for i, s := range streams[1:] {
					got := s.next()
					if n == made {
						c.takeRevision(got, before)
					}
					if !reflect.DeepEqual(got, want) {
						t.Fatalf("%s, stream %d, event %d: %v, want %v", query.Encode(), i, n, got, want)
					}
				}
				if n == made && want["type"] != "BOOKMARK" {
					t.Errorf("%s: the initial events end with %v", query.Encode(), want)
				}
			}
			created, err := client.Create(t.Context(), randomImage(t, r, made), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made++
			for i, s := range streams {
				got := s.next()
				object, _ := got["object"].(map[string]any)
				metadata, _ := object["metadata"].(map[string]any)
				if got["type"] != "ADDED" || metadata["name"] != created.Name || metadata["resourceVersion"] != created.ResourceVersion {
					t.Errorf("%s, stream %d: %v, want the image that was created", query.Encode(), i, got)
				}
				if fast := bytes.Contains(s.first, []byte(`"metadata":{"resourceVersion":"`)); len(s.first) > 0 && !fast {
					t.Errorf("%s, stream %d: not written from stored bytes: %.200s", query.Encode(), i, s.first)
				}
				if compressed := bookmarked && i == 2; s.compressed != compressed {
					t.Errorf("%s, stream %d: compressed %v", query.Encode(), i, s.compressed)
				}
				s.close()
			}
		}
	}
}

// takeRevision takes the revision off the bookmark that ends the initial events. The server's own
// Leases move it between one watch and the next, so it has to be one from before the watch began up
// to now.
func (c *comparer) takeRevision(bookmark map[string]any, before string) {
	c.t.Helper()
	object, _ := bookmark["object"].(map[string]any)
	metadata, _ := object["metadata"].(map[string]any)
	written, _ := metadata["resourceVersion"].(string)
	revision, err := strconv.Atoi(written)
	first, errFirst := strconv.Atoi(before)
	last, errLast := strconv.Atoi(c.revision())
	if err := errors.Join(err, errFirst, errLast); err != nil || revision < first || revision > last {
		c.t.Errorf("the bookmark is of revision %q, want one from %d to %d (%v)", written, first, last, err)
	}
	delete(metadata, "resourceVersion")
}

// eventReader reads the events of a watch.
type eventReader struct {
	t          *testing.T
	lines      *bufio.Reader
	close      func() error
	compressed bool
	first      []byte // the first event
}

func (c *comparer) watch(query url.Values, encoding string) *eventReader {
	c.t.Helper()
	query.Set("watch", "true")
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.host+"/apis/image.openshift.io/v1/images?"+query.Encode(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := c.client.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	e := &eventReader{t: c.t, close: resp.Body.Close, lines: bufio.NewReader(resp.Body), compressed: resp.Header.Get("Content-Encoding") == "gzip"}
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("%s: %s", query.Encode(), resp.Status)
	}
	if e.compressed {
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			c.t.Fatal(err)
		}
		e.lines = bufio.NewReader(z)
	}
	return e
}

func (e *eventReader) next() (event map[string]any) {
	e.t.Helper()
	line, err := e.lines.ReadBytes('\n')
	if err != nil {
		e.t.Fatal(err)
	}
	if e.first == nil {
		e.first = line
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&event); err != nil {
		e.t.Fatalf("%v: %s", err, line)
	}
	return event
}
