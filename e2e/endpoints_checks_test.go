package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// anyText marks parameters that Kubernetes reads as a bool: every text but
// "false" and "0" is true, so none is refused.
const anyText = "any text is true"

// plain sends the endpoint's request without parameters: with the
// administrator's credential it answers as the table says, without one 401.
func (p *probe) plain() string {
	p.Helper()
	p.fresh()
	a := p.do(nil)
	code := strconv.Itoa(a.code)
	if !slices.Contains(p.codes, code) {
		p.Errorf("%s answered %d, want one of %v: %s", p, a.code, p.codes, a.body)
	}
	switch got := a.object()["kind"]; {
	case p.returns == "string":
		if string(a.body) != "one\ntwo\n" || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") {
			p.Errorf("the log reads %q as %s", a.body, a.header.Get("Content-Type"))
		}
	case p.returns == "WatchEvent":
		var e frame
		if first, _, _ := strings.Cut(string(a.body), "\n"); json.Unmarshal([]byte(first), &e) != nil || e.Type != "ADDED" || e.Object["kind"] != p.kind.name {
			p.Errorf("the watch begins with %.200s", a.body)
		}
	case p.form() == removeCollection && got == p.kind.name+"List":
		// What Kubernetes answers, whatever its documentation says.
	case got != p.returns:
		p.Errorf("%s answered with a %v, want %s", p, got, p.returns)
	}
	switch p.form() {
	case create:
		p.want("after a creation", "a", "b", "c")
	case remove:
		p.want("after a deletion", "b")
	case removeCollection:
		p.want("after the collection's deletion")
	case replace, patch:
		if !p.changed() {
			p.Errorf("%s changed nothing", p)
		}
	}
	if p.form() == patch {
		p.patchTypes()
	}
	nobody := p.send(p.anonymous, p.verb, p.target(), nil, jsonType, nil)
	if nobody.code != 401 {
		p.Errorf("without a credential: %d, want 401", nobody.code)
	}
	return code + ", without a credential " + strconv.Itoa(nobody.code)
}

// changed says whether a carries what change sets.
func (p *probe) changed() bool {
	p.Helper()
	stored, err := json.Marshal(p.must("GET", p.collection()+"/"+p.objectName("a"), nil, "", nil))
	if err != nil {
		p.Fatal(err)
	}
	var without object
	if err := json.Unmarshal(stored, &without); err != nil {
		p.Fatal(err)
	}
	delete(without["metadata"].(object), "managedFields")
	text, err := json.Marshal(without)
	if err != nil {
		p.Fatal(err)
	}
	return strings.Contains(string(text), changeMark)
}

// patchTypes sends the three other kinds of patch.
func (p *probe) patchTypes() {
	p.Helper()
	for contentType, body := range map[string]any{
		"application/strategic-merge-patch+json": p.change(changeMark),
		"application/json-patch+json":            p.jsonPatch(),
		"application/apply-patch+yaml":           p.applied(changeMark),
	} {
		p.fresh()
		a := p.send(p.admin, p.verb, p.target(), url.Values{"fieldManager": {"patcher"}}, contentType, body)
		if !a.ok() || !p.changed() {
			p.Errorf("%s with %s: %d %s", p, contentType, a.code, a.body)
		}
	}
}

func (p *probe) jsonPatch() any {
	set := func(path string, value any) any { return []any{object{"op": "add", "path": path, "value": value}} }
	change := p.change(changeMark)
	switch p.subresource() {
	case "status":
		return set("/status", change["status"])
	case "ephemeralcontainers":
		return set("/spec/ephemeralContainers", change["spec"].(object)["ephemeralContainers"])
	}
	return set("/metadata/labels/applied", changeMark)
}

// applied is an apply patch of a.
func (p *probe) applied(value string) object {
	return merged(object{"apiVersion": p.kind.apiVersion, "kind": p.kind.name, "metadata": object{"name": p.objectName("a")}}, p.change(value))
}

// checks has a check for every parameter: it sends good values and bad ones,
// looks at what they did, and returns both for the matrix. An empty string says
// that it has no check for that form of operation.
var checks = map[string]func(*probe) (good, bad string){
	"pretty":          (*probe).pretty,
	"dryRun":          (*probe).dryRun,
	"fieldManager":    (*probe).fieldManager,
	"fieldValidation": (*probe).fieldValidation,
	"force":           (*probe).force,

	"gracePeriodSeconds": (*probe).gracePeriodSeconds,
	"orphanDependents":   (*probe).orphanDependents,
	"propagationPolicy":  (*probe).propagationPolicy,

	"labelSelector": func(p *probe) (string, string) { return p.selector("labelSelector", p.all()+",which=a", "))") },
	"fieldSelector": func(p *probe) (string, string) {
		return p.selector("fieldSelector", "metadata.name="+p.objectName("a"), "colour=blue")
	},
	"limit":                (*probe).limit,
	"continue":             (*probe).continues,
	"resourceVersion":      (*probe).resourceVersion,
	"resourceVersionMatch": (*probe).resourceVersionMatch,
	"timeoutSeconds":       (*probe).timeoutSeconds,
	"watch":                (*probe).watchParameter,
	"allowWatchBookmarks":  (*probe).bookmarks,
	"sendInitialEvents":    (*probe).sendInitialEvents,

	"container":                    (*probe).container,
	"follow":                       func(p *probe) (string, string) { return p.logFlag("follow", "one\ntwo\n") },
	"previous":                     func(p *probe) (string, string) { return p.logFlag("previous", "zero\n") },
	"insecureSkipTLSVerifyBackend": func(p *probe) (string, string) { return p.logFlag("insecureSkipTLSVerifyBackend", "one\ntwo\n") },
	"timestamps": func(p *probe) (string, string) {
		return p.logFlag("timestamps", "2026-01-01T00:00:01.000000000Z one\n2026-01-01T00:00:02.000000000Z two\n")
	},
	"limitBytes":   func(p *probe) (string, string) { return p.logValue("limitBytes", "5", "one\nt", "0") },
	"tailLines":    func(p *probe) (string, string) { return p.logValue("tailLines", "1", "two\n", "-1") },
	"sinceSeconds": func(p *probe) (string, string) { return p.logValue("sinceSeconds", "1", "", "0") },
	"sinceTime":    (*probe).sinceTime,
}

// expect fails the test unless the answer is a success, and returns its code.
func (p *probe) expect(query url.Values, a response) string {
	p.Helper()
	if !a.ok() {
		p.Errorf("%s?%s: %d %s; want success", p, query.Encode(), a.code, a.body)
	}
	return strconv.Itoa(a.code)
}

// pretty=true indents, anything that is not a bool does not.
func (p *probe) pretty() (good, bad string) {
	query := url.Values{"pretty": {"true"}}
	nonsense := url.Values{"pretty": {"maybe"}}
	if p.writes() {
		query.Set("dryRun", "All")
		nonsense.Set("dryRun", "All")
	}
	a, b := p.do(query), p.do(nonsense)
	good, bad = p.expect(query, a), p.expect(nonsense, b)
	switch p.form() {
	case podLog:
		if string(a.body) != "one\ntwo\n" {
			p.Errorf("the log reads %q", a.body)
		}
		return good + " a log is text", bad + " the same"
	case watchEvents:
		return good + " events stay lines", bad + " the same"
	}
	if !strings.Contains(string(a.body), "\n  \"") || strings.Contains(string(b.body), "\n  \"") {
		p.Errorf("pretty: %.80q; not pretty: %.80q", a.body, b.body)
	}
	return good + " indented", bad + " any other text is false"
}

func (p *probe) dryRun() (good, bad string) {
	before := p.must("GET", p.collection()+"/"+p.objectName("a"), nil, "", nil)["metadata"].(object)["resourceVersion"]
	query := url.Values{"dryRun": {"All"}}
	a := p.do(query)
	good = p.expect(query, a)
	if f := p.form(); (f == replace || f == patch) && !strings.Contains(string(a.body), changeMark) {
		p.Errorf("a dry run does not show what it would do: %s", a.body)
	}
	p.want("after a dry run", "a", "b")
	if after := p.must("GET", p.collection()+"/"+p.objectName("a"), nil, "", nil)["metadata"].(object)["resourceVersion"]; after != before {
		p.Errorf("a dry run changed the version from %v to %v", before, after)
	}
	return good + " nothing stored", p.refused(url.Values{"dryRun": {"Some"}}, 422)
}

func (p *probe) fieldManager() (good, bad string) {
	query := url.Values{"fieldManager": {"the-manager"}}
	a := p.do(query)
	good = p.expect(query, a)
	if !strings.Contains(string(a.body), `"manager":"the-manager"`) {
		p.Errorf("managedFields lack the manager: %s", a.body)
	}
	return good + " in managedFields", p.refused(url.Values{"fieldManager": {strings.Repeat("x", 129)}, "dryRun": {"All"}}, 422)
}

func (p *probe) fieldValidation() (good, bad string) {
	unknown := object{"colour": "red"}
	for value, warns := range map[string]bool{"Warn": true, "Ignore": false} {
		query := url.Values{"fieldValidation": {value}, "dryRun": {"All"}}
		a := p.doWith(query, unknown)
		p.expect(query, a)
		if warned := strings.Contains(a.header.Get("Warning"), "colour"); warned != warns {
			p.Errorf("fieldValidation=%s and an unknown field: warning %q", value, a.header.Get("Warning"))
		}
	}
	strict := url.Values{"fieldValidation": {"Strict"}, "dryRun": {"All"}}
	good = p.expect(strict, p.do(strict)) + " Strict, Warn, Ignore"
	code := 400
	if p.form() == patch {
		code = 422
	}
	return good, p.refusedWith(strict, unknown, code) + " unknown field, " + p.refused(url.Values{"fieldValidation": {"Loose"}, "dryRun": {"All"}}, 422)
}

// force takes a field from its manager, in apply patches only.
func (p *probe) force() (good, bad string) {
	const applyType = "application/apply-patch+yaml"
	apply := func(manager, value, force string) response {
		return p.send(p.admin, p.verb, p.target(), url.Values{"fieldManager": {manager}, "force": {force}}, applyType, p.applied(value))
	}
	if a := apply("first", "1", "false"); !a.ok() {
		p.Errorf("apply: %d %s", a.code, a.body)
	}
	if a := apply("second", "2", "false"); a.code != 409 {
		p.Errorf("apply over another's field: %d %s, want 409", a.code, a.body)
	}
	value := "2"
	if p.subresource() == "ephemeralcontainers" {
		value = "1" // an ephemeral container never changes
	}
	a := apply("second", value, "true")
	return p.expect(nil, a) + " instead of 409", p.refused(url.Values{"force": {"true"}}, 422) + " no apply patch"
}

func (p *probe) gracePeriodSeconds() (good, bad string) {
	query := url.Values{"gracePeriodSeconds": {"0"}}
	good = p.expect(query, p.do(query))
	p.gone()
	p.fresh()
	return good + " gone", p.refused(url.Values{"gracePeriodSeconds": {"soon"}}, 400)
}

// gone waits until the endpoint's deletion was carried out: one that looks for
// dependents is ended by the garbage collector.
func (p *probe) gone() {
	p.Helper()
	var left []string
	if p.form() == remove {
		left = []string{"b"}
	}
	harness.Eventually(p, func() error {
		if got := p.stored(); !slices.Equal(got, left) {
			return fmt.Errorf("the store holds %q after a deletion, want %q", got, left)
		}
		return nil
	})
}

func (p *probe) orphanDependents() (good, bad string) {
	query := url.Values{"orphanDependents": {"false"}}
	good = p.expect(query, p.do(query))
	p.gone()
	p.fresh()
	return good + " gone", p.refused(url.Values{"orphanDependents": {"true"}, "propagationPolicy": {"Background"}}, 422) + " with propagationPolicy"
}

func (p *probe) propagationPolicy() (good, bad string) {
	for _, policy := range []string{"Foreground", "Orphan", "Background"} {
		p.fresh()
		query := url.Values{"propagationPolicy": {policy}}
		good = p.expect(query, p.do(query))
		p.gone()
	}
	p.fresh()
	return good + " each of three", p.refused(url.Values{"propagationPolicy": {"Foreman"}}, 422)
}

func (p *probe) selector(parameter, onlyA, nonsense string) (good, bad string) {
	query := url.Values{parameter: {onlyA}}
	bad = p.refused(url.Values{parameter: {nonsense}}, 400)
	switch p.form() {
	case list:
		a := p.do(query)
		if got := p.names(a.object()); !slices.Equal(got, []string{"a"}) {
			p.Errorf("%s lists %q", query.Encode(), got)
		}
		return p.expect(query, a) + " one of two", bad
	case watchEvents:
		// b is made after a, so a watch that is not selective shows it before c.
		_, events := p.watch(url.Values{parameter: {onlyA}, "timeoutSeconds": {"1"}}, func([]frame) bool { return false })
		if len(events) != 1 || events[0].Object["metadata"].(object)["name"] != p.objectName("a") {
			p.Errorf("watch with %s shows %v", query.Encode(), events)
		}
		return "200 one of two", bad
	case removeCollection:
		a := p.do(query)
		p.want("after the deletion of what is selected", "b")
		return p.expect(query, a) + " one of two", bad
	}
	return "", ""
}

func (p *probe) limit() (good, bad string) {
	bad = p.refused(url.Values{"limit": {"many"}}, 400)
	switch p.form() {
	case list:
		query := url.Values{"limit": {"1"}, "labelSelector": {p.all()}}
		a := p.do(query)
		if got := p.names(a.object()); len(got) != 1 || a.object()["metadata"].(object)["continue"] == nil {
			p.Errorf("limit=1 lists %q: %s", got, a.body)
		}
		return p.expect(query, a) + " a page of one", bad
	case watchEvents:
		return p.begins(url.Values{"limit": {"1"}}) + " a watch has no pages", bad
	case removeCollection:
		query := url.Values{"limit": {"1"}}
		good = p.expect(query, p.do(query))
		if left := p.stored(); len(left) != 1 {
			p.Errorf("after a deletion with limit=1 there are %q", left)
		}
		return good + " a page of one", bad
	}
	return "", ""
}

func (p *probe) continues() (good, bad string) {
	page := func() string {
		first := p.must("GET", p.collection(), url.Values{"limit": {"1"}, "labelSelector": {p.all()}}, "", nil)
		return first["metadata"].(object)["continue"].(string)
	}
	switch p.form() {
	case list:
		first := p.do(url.Values{"limit": {"1"}, "labelSelector": {p.all()}}).object()
		query := url.Values{"continue": {first["metadata"].(object)["continue"].(string)}, "labelSelector": {p.all()}}
		a := p.do(query)
		both := append(p.names(first), p.names(a.object())...)
		slices.Sort(both)
		if !slices.Equal(both, []string{"a", "b"}) {
			p.Errorf("two pages hold %q", both)
		}
		return p.expect(query, a) + " the next page", p.refused(url.Values{"continue": {"garbage"}}, 400)
	case watchEvents:
		return p.begins(url.Values{"continue": {page()}}) + " a watch has no pages", p.begins(url.Values{"continue": {"garbage"}}) + " not looked at"
	case removeCollection:
		query := url.Values{"continue": {page()}, "labelSelector": {p.all()}}
		good = p.expect(query, p.do(query))
		p.want("after the deletion of the second page", "a")
		return good + " from the second page on", p.refused(url.Values{"continue": {"garbage"}}, 400)
	}
	return "", ""
}

// begins opens the endpoint as a watch that must begin with the probe's objects.
func (p *probe) begins(query url.Values) string {
	p.Helper()
	want := p.watched()
	refusal, events := p.watch(query, func(got []frame) bool { return len(got) == want })
	if refusal != 0 || len(events) != want || events[0].Type != "ADDED" {
		p.Errorf("watch %s?%s: %d, %d events", p.target(), query.Encode(), refusal, len(events))
	}
	if refusal != 0 {
		return strconv.Itoa(refusal)
	}
	return "200"
}

func (p *probe) resourceVersion() (good, bad string) {
	bad = p.refused(url.Values{"resourceVersion": {"yesterday"}}, 400)
	switch p.form() {
	case list, removeCollection:
		var codes []string
		for _, version := range []string{"0", p.version()} {
			query := url.Values{"resourceVersion": {version}, "labelSelector": {p.all()}}
			a := p.do(query)
			codes = append(codes, p.expect(query, a))
			if p.form() == list && !slices.Equal(p.names(a.object()), []string{"a", "b"}) {
				p.Errorf("at version %s: %q", version, p.names(a.object()))
			}
		}
		if p.form() == removeCollection {
			p.gone()
		}
		return codes[0] + " 0 and the current one", bad
	case watchEvents:
		// From now on there is nothing; a change is seen.
		version := p.version()
		p.must("PATCH", p.collection()+"/"+p.objectName("a"), nil, mergeType, object{"metadata": object{"labels": object{"later": "yes"}}})
		_, events := p.watch(url.Values{"resourceVersion": {version}}, func(got []frame) bool { return len(got) == 1 })
		if len(events) != 1 || events[0].Type != "MODIFIED" {
			p.Errorf("watch from %s shows %v", version, events)
		}
		return "200 changes since", bad
	}
	return "", ""
}

// initialEvents opens the endpoint as a watch that sends what exists and then,
// with bookmarks allowed, a bookmark that says so.
func (p *probe) initialEvents(bookmarks string) string {
	p.Helper()
	// The deprecated paths are known to be watches too late for validation, so
	// they need watch=true for this, as they do in Kubernetes.
	query := url.Values{"watch": {"true"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {bookmarks}}
	refusal, events := p.watch(query, func(got []frame) bool { return len(got) > 0 && got[len(got)-1].Type == "BOOKMARK" })
	if refusal != 0 || len(events) != p.watched()+1 {
		p.Errorf("watch with %s: %d, %v", query.Encode(), refusal, events)
	} else if notes, _ := events[len(events)-1].Object["metadata"].(object)["annotations"].(object); notes["k8s.io/initial-events-end"] != "true" {
		p.Errorf("the bookmark does not say that the initial events end: %v", events)
	}
	return "200 then a bookmark"
}

func (p *probe) bookmarks() (good, bad string) {
	return p.initialEvents("true"), p.initialEvents("maybe") + ", " + anyText
}

// sendInitialEvents is for watches; a list and a deletion have none to send.
func (p *probe) sendInitialEvents() (good, bad string) {
	asked := url.Values{"sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}}
	switch p.form() {
	case list:
		return p.initialEvents("true"), p.refused(asked, 422) + " without a watch"
	case watchEvents:
		return p.initialEvents("true"), p.refused(url.Values{"watch": {"true"}, "sendInitialEvents": {"true"}}, 422) + " without resourceVersionMatch"
	case removeCollection:
		good = p.refused(url.Values{"sendInitialEvents": {"false"}}, 422) + " only watches have it"
		p.want("after a refused deletion", "a", "b")
		return good, p.refused(asked, 422)
	}
	return "", ""
}

func (p *probe) resourceVersionMatch() (good, bad string) {
	switch p.form() {
	case list, removeCollection:
		for _, match := range []string{"NotOlderThan", "Exact"} {
			p.fresh()
			query := url.Values{"resourceVersion": {p.version()}, "resourceVersionMatch": {match}, "labelSelector": {p.all()}}
			a := p.do(query)
			good = p.expect(query, a)
			if p.form() == list && !slices.Equal(p.names(a.object()), []string{"a", "b"}) {
				p.Errorf("%s lists %q", query.Encode(), p.names(a.object()))
			}
		}
		bad = p.refused(url.Values{"resourceVersion": {"0"}, "resourceVersionMatch": {"Roughly"}}, 422)
		p.refused(url.Values{"resourceVersionMatch": {"Exact"}}, 422)
		return good + " NotOlderThan, Exact", bad
	case watchEvents:
		return p.initialEvents("true"), p.refused(url.Values{"watch": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "resourceVersion": {"0"}}, 422) + " without sendInitialEvents"
	}
	return "", ""
}

func (p *probe) timeoutSeconds() (good, bad string) {
	bad = p.refused(url.Values{"timeoutSeconds": {"soon"}}, 400)
	switch p.form() {
	case list:
		query := url.Values{"timeoutSeconds": {"5"}}
		return p.expect(query, p.do(query)), bad
	case removeCollection:
		query := url.Values{"timeoutSeconds": {"5"}}
		good = p.expect(query, p.do(query))
		p.gone()
		return good, bad
	case watchEvents:
		_, events := p.watch(url.Values{"timeoutSeconds": {"1"}}, func([]frame) bool { return false })
		if len(events) != p.watched() {
			p.Errorf("a watch of one second shows %d events", len(events))
		}
		return "200 ends by itself", bad
	}
	return "", ""
}

func (p *probe) watchParameter() (good, bad string) {
	return p.begins(url.Values{"watch": {"true"}}), p.begins(url.Values{"watch": {"maybe"}}) + " " + anyText
}

func (p *probe) container() (good, bad string) {
	query := url.Values{"container": {"main"}}
	a := p.do(query)
	if string(a.body) != "one\ntwo\n" {
		p.Errorf("the log reads %q", a.body)
	}
	missing := p.send(p.admin, p.verb, p.target(), nil, "", nil)
	if missing.code != 400 || !strings.Contains(string(missing.body), "choose one of: [main side]") {
		p.Errorf("without a container: %d %s", missing.code, missing.body)
	}
	return p.expect(query, a), p.refused(url.Values{"container": {"other"}}, 400) + " unknown or, of several, none"
}

func (p *probe) logFlag(parameter, want string) (good, bad string) {
	for _, value := range []string{"true", "maybe"} {
		query := url.Values{parameter: {value}}
		a := p.do(query)
		good = p.expect(query, a)
		if string(a.body) != want {
			p.Errorf("%s reads %q, want %q", query.Encode(), a.body, want)
		}
	}
	return good, good + " " + anyText
}

func (p *probe) logValue(parameter, value, want, outOfRange string) (good, bad string) {
	query := url.Values{parameter: {value}}
	a := p.do(query)
	if string(a.body) != want {
		p.Errorf("%s reads %q, want %q", query.Encode(), a.body, want)
	}
	return p.expect(query, a), p.refused(url.Values{parameter: {"x"}}, 400) + ", out of range " + p.refused(url.Values{parameter: {outOfRange}}, 422)
}

func (p *probe) sinceTime() (good, bad string) {
	const second = "2026-01-01T00:00:02Z"
	query := url.Values{"sinceTime": {second}}
	a := p.do(query)
	if string(a.body) != "two\n" {
		p.Errorf("since %s the log reads %q", second, a.body)
	}
	return p.expect(query, a), p.refused(url.Values{"sinceTime": {"yesterday"}}, 400) + ", with sinceSeconds " + p.refused(url.Values{"sinceTime": {second}, "sinceSeconds": {"1"}}, 422)
}
