package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// object is a JSON object.
type object = map[string]any

// kind is how objects of a resource are made and found.
type kind struct {
	name       string // such as Pod
	apiVersion string
	collection string // the path, with %s for the namespace if there is one
	spec       object // what an object needs besides metadata
	// status is a change that the status subresource takes.
	status func(value string) object
}

var kinds = map[string]*kind{
	"image": {name: "Image", apiVersion: "image.openshift.io/v1", collection: "/apis/image.openshift.io/v1/images",
		spec: object{"dockerImageReference": "registry.example.com/team/app:1"}},
	"pod": {name: "Pod", apiVersion: "v1", collection: "/api/v1/namespaces/%s/pods",
		spec: object{"spec": object{"containers": []any{
			object{"name": "main", "image": "registry.example.com/app:1"},
			object{"name": "side", "image": "registry.example.com/side:1"},
		}}},
		status: func(value string) object { return object{"message": value} }},
	"service": {name: "Service", apiVersion: "v1", collection: "/api/v1/namespaces/%s/services",
		spec: object{"spec": object{"ports": []any{object{"port": 80, "protocol": "TCP"}}}},
		status: func(value string) object {
			return object{"conditions": []any{object{"type": "Checked", "status": "True", "reason": "Test", "message": value, "lastTransitionTime": "2026-01-01T00:00:00Z"}}}
		}},
	"event": {name: "Event", apiVersion: "v1", collection: "/api/v1/namespaces/%s/events",
		spec: object{"involvedObject": object{"kind": "Pod", "name": "a"}, "reason": "Tested", "message": "m", "type": "Normal"}},
	"lease": {name: "Lease", apiVersion: "coordination.k8s.io/v1", collection: "/apis/coordination.k8s.io/v1/namespaces/%s/leases",
		spec: object{"spec": object{"holderIdentity": "me"}}},
}

// caller sends requests, with the administrator's credential or with none.
type caller struct {
	host             string
	admin, anonymous *http.Client
}

func newCaller(t *testing.T, config *rest.Config) *caller {
	t.Helper()
	config.QPS = -1
	admin, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	anonymous, err := rest.HTTPClientFor(rest.AnonymousClientConfig(config))
	if err != nil {
		t.Fatal(err)
	}
	return &caller{host: config.Host, admin: admin, anonymous: anonymous}
}

// response is a response, read to its end.
type response struct {
	code   int
	header http.Header
	body   []byte
}

func (a response) ok() bool { return a.code >= 200 && a.code < 300 }

func (a response) object() object {
	var o object
	json.Unmarshal(a.body, &o) //nolint:errcheck // nil then, and no test wants nil
	return o
}

// probe is one endpoint under test. Its objects are called <scope>-a and
// <scope>-b, live in the namespace <scope> if they have one, and carry the
// labels scope=<scope> and which=a or b.
type probe struct {
	*testing.T
	*caller
	endpoint
	kind  *kind
	scope string
	logs  string // directory of the pods' logs
	// asker sends the endpoint's own request; nil for the administrator. What
	// prepares and looks is always the administrator's.
	asker *http.Client
}

func (p *probe) objectName(which string) string { return p.scope + "-" + which }

// all selects the probe's own objects.
func (p *probe) all() string { return "scope=" + p.scope }

func (p *probe) collection() string {
	if strings.Contains(p.kind.collection, "%s") {
		return fmt.Sprintf(p.kind.collection, p.scope)
	}
	return p.kind.collection
}

// path is the endpoint's, for the object a.
func (p *probe) target() string {
	return strings.NewReplacer("{namespace}", p.scope, "{name}", p.objectName("a")).Replace(p.path)
}

// manifest is a valid object.
func (p *probe) manifest(which string) object {
	o := object{"apiVersion": p.kind.apiVersion, "kind": p.kind.name, "metadata": object{
		"name": p.objectName(which), "labels": object{"scope": p.scope, "which": which},
	}}
	maps.Copy(o, p.kind.spec)
	if p.kind.name == "Event" {
		o["involvedObject"] = object{"kind": "Pod", "name": "a", "namespace": p.scope}
	}
	return o
}

// send sends a request and reads the whole response.
func (p *probe) send(client *http.Client, verb, path string, query url.Values, contentType string, body any) response {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), harness.Patience)
	defer cancel()
	resp := p.open(ctx, client, verb, path, query, contentType, body)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return response{resp.StatusCode, resp.Header, text}
}

func (p *probe) open(ctx context.Context, client *http.Client, verb, path string, query url.Values, contentType string, body any) *http.Response {
	p.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			p.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, verb, p.host+path+"?"+query.Encode(), reader)
	if err != nil {
		p.Fatal(err)
	}
	req.Header.Set("Accept", "application/json, text/plain, */*")
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := client.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	return resp
}

// must is send for what prepares or looks, and has to succeed.
func (p *probe) must(verb, path string, query url.Values, contentType string, body any) object {
	p.Helper()
	a := p.send(p.admin, verb, path, query, contentType, body)
	if !a.ok() {
		p.Fatalf("%s %s?%s: %d %s", verb, path, query.Encode(), a.code, a.body)
	}
	return a.object()
}

// fresh recreates a and b, and their logs if they are pods.
func (p *probe) fresh() {
	p.Helper()
	p.clear()
	for _, which := range []string{"a", "b"} {
		made := p.must("POST", p.collection(), nil, jsonType, p.manifest(which))
		if p.form() == podLog {
			p.writeLogs(made)
		}
	}
}

// clear removes everything of the probe.
func (p *probe) clear() {
	p.Helper()
	p.must("DELETE", p.collection(), url.Values{"labelSelector": {p.all()}}, jsonType, object{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
}

const jsonType = "application/json"

// The logs of a pod's main container, now and before its restart.
const (
	logNow    = "2026-01-01T00:00:01Z stdout F one\n2026-01-01T00:00:02Z stdout F two\n"
	logBefore = "2026-01-01T00:00:00Z stdout F zero\n"
)

func (p *probe) writeLogs(pod object) {
	p.Helper()
	meta := pod["metadata"].(object)
	dir := filepath.Join(p.logs, fmt.Sprintf("%s_%s_%s", meta["namespace"], meta["name"], meta["uid"]), "main")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		p.Fatal(err)
	}
	for file, text := range map[string]string{"0.log": logBefore, "1.log": logNow} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			p.Fatal(err)
		}
	}
	// The container has ended, so following its log does too.
	p.must("PATCH", p.collection()+"/"+meta["name"].(string)+"/status", nil, mergeType, object{"status": object{"containerStatuses": []any{
		object{"name": "main", "image": "x", "imageID": "x", "ready": false, "restartCount": 1, "state": object{"terminated": object{"exitCode": 0}}, "lastState": object{}},
	}}})
}

const mergeType = "application/merge-patch+json"

// changeMark is what change sets.
const changeMark = "changed"

// change is a merge patch that the endpoint's resource or subresource takes.
func (p *probe) change(value string) object {
	switch p.subresource() {
	case "status":
		return object{"status": p.kind.status(value)}
	case "ephemeralcontainers":
		return object{"spec": object{"ephemeralContainers": []any{object{"name": "debug", "image": "busybox:" + value, "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}}}}
	}
	return object{"metadata": object{"labels": object{"applied": value}}}
}

// do sends the endpoint's own request, a valid one, with query added. A create
// makes the object c; a replacement and a patch change a.
func (p *probe) do(query url.Values) response {
	p.Helper()
	return p.doWith(query, nil)
}

// doWith is do with fields added to the body.
func (p *probe) doWith(query url.Values, extra object) response {
	p.Helper()
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	var body object
	contentType := jsonType
	switch p.form() {
	case create:
		body = p.manifest("c")
	case replace:
		body = merged(p.must("GET", strings.TrimSuffix(p.target(), "/"+p.subresource()), nil, "", nil), p.change(changeMark))
	case patch:
		body, contentType = p.change(changeMark), mergeType
	case removeCollection:
		if !query.Has("labelSelector") && !query.Has("fieldSelector") && !query.Has("continue") {
			query.Set("labelSelector", p.all())
		}
		// Without a body Kubernetes reads the query's resourceVersion, which
		// selects the list, as a precondition of each deletion too.
		if query.Has("resourceVersion") {
			body = object{"kind": "DeleteOptions", "apiVersion": "v1"}
		}
	case podLog:
		if !query.Has("container") {
			query.Set("container", "main")
		}
	case watchEvents:
		if !query.Has("timeoutSeconds") {
			query.Set("timeoutSeconds", "1")
		}
	}
	if extra != nil {
		body = merged(body, extra)
	}
	asker := cmp.Or(p.asker, p.admin)
	if body == nil {
		return p.send(asker, p.verb, p.target(), query, "", nil)
	}
	return p.send(asker, p.verb, p.target(), query, contentType, body)
}

// merged is base with change put over it, as a merge patch does.
func merged(base, change object) object {
	out := maps.Clone(base)
	for k, v := range change {
		under, isObject := v.(object)
		before, wasObject := out[k].(object)
		if isObject && wasObject {
			v = merged(before, under)
		}
		out[k] = v
	}
	return out
}

// frame is an event of a watch.
type frame struct {
	Type   string
	Object object
}

// watch opens the endpoint as a watch and reads until enough says so, or the
// server ends it. The first result is 0 unless the watch was refused.
func (p *probe) watch(query url.Values, enough func([]frame) bool) (refusal int, events []frame) {
	p.Helper()
	query = maps.Clone(query)
	if p.form() != watchEvents && !query.Has("watch") {
		query.Set("watch", "true")
	}
	if !query.Has("labelSelector") && !query.Has("fieldSelector") {
		query.Set("labelSelector", p.all())
	}
	ctx, cancel := context.WithTimeout(p.Context(), harness.Patience)
	defer cancel()
	resp := p.open(ctx, p.admin, "GET", p.target(), query, "", nil)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, nil
	}
	frames := json.NewDecoder(bufio.NewReader(resp.Body))
	for !enough(events) {
		var e frame
		if err := frames.Decode(&e); err == io.EOF {
			return 0, events
		} else if err != nil {
			p.Fatalf("watch %s?%s after %d events: %v", p.target(), query.Encode(), len(events), err)
		}
		events = append(events, e)
	}
	return 0, events
}

// watched is how many of the probe's objects the endpoint's watch begins with.
func (p *probe) watched() int {
	if strings.Contains(p.path, "{name}") {
		return 1
	}
	return 2
}

// refused sends the endpoint's request with a query that must be answered with
// code and a Status, and returns code for the matrix.
func (p *probe) refused(query url.Values, code int) string {
	p.Helper()
	return p.refusedWith(query, nil, code)
}

func (p *probe) refusedWith(query url.Values, extra object, code int) string {
	p.Helper()
	a := p.doWith(query, extra)
	if a.code != code || a.object()["kind"] != "Status" || a.object()["message"] == "" {
		p.Errorf("%s?%s: %d %s; want %d and a Status", p, query.Encode(), a.code, a.body, code)
	}
	return strconv.Itoa(a.code)
}

// names are the probe's objects in a list, or in the store, sorted: a, b, c.
func (p *probe) names(list object) []string {
	p.Helper()
	items, _ := list["items"].([]any)
	var found []string
	for _, item := range items {
		if which, ok := strings.CutPrefix(item.(object)["metadata"].(object)["name"].(string), p.scope+"-"); ok {
			found = append(found, which)
		}
	}
	slices.Sort(found)
	return found
}

func (p *probe) stored() []string {
	p.Helper()
	return p.names(p.must("GET", p.collection(), url.Values{"labelSelector": {p.all()}}, "", nil))
}

// want fails the test unless the store holds exactly these of the probe's
// objects.
func (p *probe) want(when string, which ...string) {
	p.Helper()
	if got := p.stored(); !slices.Equal(got, which) {
		p.Errorf("%s: the store holds %q, want %q", when, got, which)
	}
}

// version is the resource version of the collection.
func (p *probe) version() string {
	p.Helper()
	return p.must("GET", p.collection(), nil, "", nil)["metadata"].(object)["resourceVersion"].(string)
}
