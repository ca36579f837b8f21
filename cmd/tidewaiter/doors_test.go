package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// tryTag imports a tag that the registry does not give.
func (h *harbour) tryTag(tag string, limits pull.Limits) {
	h.t.Helper()
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Signatures: h.found, Limits: limits})
	if err != nil {
		h.t.Fatal(err)
	}
	defer im.Close()
	ref, err := reference.Parse(h.registry.Host + "/" + tag)
	if err != nil {
		h.t.Fatal(err)
	}
	if result, err := im.Import(h.t.Context(), ref, h.images); err == nil {
		h.t.Fatalf("%s was imported: %+v", tag, result)
	}
}

// shown is a row of a table: its cells by column.
type shown map[string]string

// table asks for a table as kubectl does.
func (q *questions) table(resource, selector string) []shown {
	q.t.Helper()
	rows, _ := q.tableWarned(resource, selector)
	return rows
}

// tableWarned is table, with the warnings above it.
func (q *questions) tableWarned(resource, selector string) (rows []shown, warnings []string) {
	q.t.Helper()
	path := q.Config.Host + "/apis/image.openshift.io/v1/" + resource + "?fieldSelector=" + url.QueryEscape(selector)
	req, err := http.NewRequestWithContext(q.t.Context(), http.MethodGet, path, nil)
	if err != nil {
		q.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	resp, err := q.http.Do(req)
	if err != nil {
		q.t.Fatal(err)
	}
	defer resp.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(resp.Body).Decode(&table); err != nil || resp.StatusCode != http.StatusOK {
		q.t.Fatalf("%s: %s, %v", path, resp.Status, err)
	}
	for _, r := range table.Rows {
		row := shown{}
		for i, c := range table.ColumnDefinitions {
			row[c.Name] = fmt.Sprint(r.Cells[i])
		}
		rows = append(rows, row)
	}
	return rows, resp.Header.Values("Warning")
}

// selected are the images that a selector lists.
func (q *questions) selected(selector string) (names []string) {
	q.t.Helper()
	list, err := q.images.List(q.t.Context(), metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		q.t.Fatalf("%s: %v", selector, err)
	}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// prune asks what prune would do with each image.
func (q *questions) prune(args ...string) map[string]prune.Decision {
	q.t.Helper()
	_, stdout, stderr := tidewaiter(q.t, append([]string{"prune", "--keep-younger-than", "0s", "--keep-tag-revisions", "0", "--kept", "-o", "json", "--kubeconfig", q.kubeconfig}, args...)...)
	var report struct{ Images []prune.Decision }
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		q.t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	decided := map[string]prune.Decision{}
	for _, d := range report.Images {
		decided[d.Image] = d
	}
	return decided
}

// allVerdicts are the words of verdicts.
var allVerdicts = verdicts.All

// askListsByReference asks the table of images and its selectors by a reference that names its
// registry.
func (q *questions) askListsByReference(one question, text string, answer *answers.Answer) {
	q.t.Helper()
	digest := q.digests[one.called]
	wrong := func(door string, got any) {
		q.t.Helper()
		q.t.Errorf("%s of %q says %v, want %s %s", door, text, got, one.called, one.verified)
	}
	cell := cellOf(one.verified)
	named := "references=" + text
	rows := q.table("images", named)
	host, path := q.registry.Host, "/"+one.repository
	if len(rows) != 1 || rows[0]["Name"] != digest || rows[0]["Verdict"] != cell || rows[0]["Repository"] != host+path ||
		one.tag != "" && rows[0]["Tags"] != one.tag || rows[0]["Pods"] != answers.PodsCell(answer) || rows[0]["Verdicts"] != one.verified+"@"+answer.Verdict.Reference {
		wrong("the table", rows)
	}
	for _, verdict := range q.words("signatures.verified=", one.verified) {
		if got := q.selected(named + ",signatures.verified=" + verdict); (verdict == one.verified) != (len(got) == 1 && got[0] == digest) || len(got) > 1 {
			wrong("the selector signatures.verified="+verdict, got)
		}
		if got := q.selected(named + ",signatures.verified!=" + verdict); (verdict != one.verified) != (len(got) == 1 && got[0] == digest) || len(got) > 1 {
			wrong("the selector signatures.verified!="+verdict, got)
		}
	}
}

// askLists asks the selectors of a repository, the table of tags, and prune.
func (q *questions) askLists(one question, text string, answer *answers.Answer) {
	q.t.Helper()
	digest := q.digests[one.called]
	wrong := func(door string, got any) {
		q.t.Helper()
		q.t.Errorf("%s of %q says %v, want %s %s", door, text, got, one.called, one.verified)
	}
	if one.tag == "" {
		for _, verdict := range q.words("signatures.verified of a repository=", one.verified) {
			got := q.selected("references=" + q.registry.Host + "/" + one.repository + ",metadata.name=" + digest + ",signatures.verified=" + verdict)
			if (verdict == one.verified) != (len(got) == 1) {
				wrong("the selector of the repository and signatures.verified="+verdict, got)
			}
		}
	} else { // says where the tag leads, and nothing of verdicts
		rows := q.table("namespaces/default/imagetags", "reference="+answer.Meaning.Reference)
		if len(rows) != 1 || rows[0]["Image"] != reference.ShortDigest(digest) || strings.HasPrefix(rows[0]["Checked"], "ok") != (one.unknown != "checked") || rows[0]["Outdated"] != fmt.Sprint(one.outdated) {
			wrong("the table of imagetags", rows)
		}
	}
	d := q.pruned[digest]
	needed := answer.Running.Pods > 0 || len(answer.NeededBy) > 0 || len(answer.Meaning.Tags) > 0 || len(answer.Meaning.Indexes) > 0
	if needed != (d.Decision == prune.Keep) || d.Reason == annotation.UnknownReason {
		wrong("prune", d)
	}
}

// askLost asks about a tag that its registry no longer has.
func (q *questions) askLost(one question, text string, answer *answers.Answer) {
	q.t.Helper()
	wrong := func(door string, got any) {
		q.t.Helper()
		q.t.Errorf("%s of %q says %v, want that it is gone", door, text, got)
	}
	if answer.State != one.state || answer.Verdict != nil || answer.Meaning.Digest != "" || answer.Checked.Registry != answers.Lost || len(answer.Previous) == 0 || answer.Previous[0].Digest != q.digests[one.called] {
		wrong("the review", fmt.Sprintf("%+v", answer))
	}
	for verb, code := range map[string]int{"get": 1, "describe": 1, "history": 0, "verify": 2} {
		q.doors[verb]++
		if got, stdout, stderr := tidewaiter(q.t, verb, text, "--kubeconfig", q.kubeconfig); got != code || !strings.Contains(stdout+stderr, "gone") && !strings.Contains(stdout, "deleted") {
			wrong(verb, fmt.Sprint(got, stdout, stderr))
		}
	}
	if pullable := strings.TrimSpace(text); isPullable(pullable) {
		q.doors["table"]++
		if rows := q.table("images", "references="+pullable); len(rows) != 0 {
			wrong("the table", rows)
		}
		q.doors["selector"]++
		for _, verdict := range q.words("signatures.verified of what is gone=", "") {
			if got := q.selected("references=" + pullable + ",signatures.verified=" + verdict); len(got) != 0 {
				wrong("the selector signatures.verified="+verdict, got)
			}
		}
	}
	q.doors["imagetags"]++
	if rows := q.table("namespaces/default/imagetags", "reference="+answer.Meaning.Reference); len(rows) != 1 || rows[0]["Image"] != "<deleted>" {
		wrong("the table of imagetags", rows)
	}
}

// An image that is not asked about by a reference shows each of its verdicts: the worst, in how
// many places, and with -o wide all.
func eachIsShown(t *testing.T, q *questions) {
	host := q.registry.Host
	for called, want := range map[string][2]string{
		"one":      {"Unsigned (1 of 3)", "True@" + host + "/prod/app,NoPolicy@" + host + "/free/copy,Unsigned@" + host + "/strict/app"},
		"promoted": {"True (1 of 2)", "NoPolicy@" + host + "/free/staging,True@" + host + "/prod/app"},
		"plain":    {"NoPolicy", "NoPolicy@" + host + "/free/plain"},
		"free":     {"NoPolicy", "NoPolicy@" + host + "/free/signed"},
		"three":    {"Unsigned", "Unsigned@" + host + "/prod/app"},
	} {
		rows := q.table("images", "metadata.name="+q.digests[called])
		if len(rows) != 1 || rows[0]["Verdict"] != want[0] || rows[0]["Verdicts"] != want[1] {
			t.Errorf("the row of %s is %v, want %v", called, rows, want)
		}
		_, stdout, stderr := tidewaiter(t, "describe", "-o", "json", q.digests[called], "--kubeconfig", q.kubeconfig)
		var report imageReport
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || !strings.HasPrefix(want[0], report.Verified) && report.Verified != want[0] {
			t.Errorf("describe of %s says %s, want %s: %s", called, report.Verified, want[0], stderr)
		}
	}
	// An exception is for one image of a pod, and says so; another image is refused all the same.
	let, again := host+"/excepted/app:let", host+"/excepted/app:again"
	admitted := askAdmission(t, q.http, q.Config.Host+admission.Path+"/prod?timeout=5s", review(let))
	if found := admitted.AuditAnnotations["findings"]; !admitted.Allowed || !strings.Contains(found, "until "+letUntil+", by ann@example.com: it is rebuilt tomorrow") || len(admitted.Warnings) > 0 {
		t.Errorf("a pod of the excepted image: %+v", admitted)
	}
	if refused := askAdmission(t, q.http, q.Config.Host+admission.Path+"/prod?timeout=5s", review(let, again)); refused.Allowed || !strings.Contains(refused.Result.Message, again) || strings.Contains(refused.Result.Message, let+" ") {
		t.Errorf("a pod of the excepted image and another: %+v", refused)
	}
	// Two words where nothing is trusted: a policy wants a signature, or there is no policy, signed
	// or not.
	for called, verdict := range map[string]string{"three": verdicts.Unsigned, "plain": verdicts.NoPolicy, "free": verdicts.NoPolicy} {
		for _, word := range []string{verdicts.Unsigned, verdicts.NoPolicy, verdicts.VerifiedUnknown} {
			if got := q.selected("metadata.name=" + q.digests[called] + ",signatures.verified=" + word); (len(got) == 1) != (word == verdict) {
				t.Errorf("signatures.verified=%s selects %v of %s, want it %s", word, got, called, verdict)
			}
		}
	}
	// What is judged when it is asked for is neither watched nor deleted by: that is said, and
	// where to look.
	tag := "references=" + host + "/prod/app:v1.0,signatures.verified=True"
	if _, err := q.images.Watch(t.Context(), metav1.ListOptions{FieldSelector: tag}); err == nil || !strings.Contains(err.Error(), "verdicts=VERDICT@"+host+"/prod/app") {
		t.Errorf("a watch by %s: %v", tag, err)
	}
}

// A selector takes references with their registry. Of others, lists and tables say what they were
// taken to mean.
func shortNamesAreSaid(t *testing.T, q *questions) {
	for _, tt := range []struct{ resource, selector, says string }{
		{"images", "references=app:v1.0", "references=app:v1.0 names no registry, so it means docker.io/library/app:v1.0"},
		{"images", "references.recorded!=prod/app", "means docker.io/prod/app:"},
		{"images", "base=debian", "means docker.io/library/debian:"},
		{"images", "base=" + q.registry.Host + "/prod/app", "is a whole repository"},
		{"images", "base=" + q.registry.Host + "/prod/none:v1", "are not known here"},
		{"images", "references=" + q.registry.Host + "/prod/app:v1.0,base=" + q.digests["one"], ""},
		{"namespaces/default/imagetags", "repository=app", "repository=app names no registry, so it means docker.io/library/app:"},
		{"namespaces/default/imagetags", "reference=" + q.registry.Host + "/prod/app:v1.0", ""},
	} {
		_, warnings := q.tableWarned(tt.resource, tt.selector)
		if said := strings.Join(warnings, "\n"); !strings.Contains(said, tt.says) || tt.says == "" && said != "" {
			t.Errorf("%s by %s warns %q, want %q", tt.resource, tt.selector, said, tt.says)
		}
	}
}

// A platform of an index is asked about as what it is: its own digest, with the verdict for that.
func platformIsChosen(t *testing.T, q *questions) {
	for text, want := range map[string][2]string{
		q.registry.Host + "/multi/app:v1.0":                  {"amd64", verdicts.ByIndex},
		"multi/app:v1.0":                                     {"amd64", verdicts.ByIndex},
		q.digests["index"]:                                   {"amd64", verdicts.ByIndex},
		q.registry.Host + "/multi/app@" + q.digests["index"]: {"amd64", verdicts.ByIndex},
		q.registry.Host + "/multi/app:bare":                  {"s390x", verdicts.Unsigned},
		q.digests["bare index"][:20]:                         {"s390x", verdicts.Unsigned},
	} {
		answer := q.review.ask(answers.Question{Reference: text, Platform: "linux/" + want[0]})[0]
		if answer.Verdict == nil || answer.Meaning.Digest != q.digests[want[0]] || answer.Verdict.Verified != want[1] {
			t.Errorf("the review of %s for linux/%s is %+v, want %v", text, want[0], answer, want)
		}
		_, stdout, stderr := tidewaiter(t, "describe", "--platform", "linux/"+want[0], "-o", "json", text, "--kubeconfig", q.kubeconfig)
		var report imageReport
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || report.Digest != q.digests[want[0]] || report.Verified != want[1] {
			t.Errorf("describe of %s for linux/%s is %s %s, want %v: %s", text, want[0], report.Digest, report.Verified, want, stderr)
		}
		if rows := q.table("images", "references="+answer.Meaning.Reference); len(rows) != 1 || rows[0]["Verdict"] != want[1] {
			t.Errorf("the table of %s is %v, want %v", answer.Meaning.Reference, rows, want)
		}
	}
}

// Before a cluster has been read, every door says that it is not known what runs, and none says
// that nothing does.
func TestNothingIsReadYet(t *testing.T) {
	t.Parallel()
	late := clustertest.New(t)
	late.Hang(true)
	t.Cleanup(func() { late.Hang(false) })
	q := nothingIsKnown(t, "clusters:\n- {name: late, kubeconfig: late.kubeconfig, importRunning: false}\n", late, "late")
	if d := q.prune()[q.digests["lone"]]; d.Decision != prune.Keep || d.Reason != annotation.UnknownReason || !strings.Contains(d.Message, "late") {
		t.Errorf("prune says %+v", d)
	}
}

// Without any cluster, every door says that it is not known what runs, and how to have it known;
// prune deletes if it is told to do without clusters. oc adm prune images stops at its list of
// replicationcontrollers, before it deletes anything.
func TestNoClusterIsFollowed(t *testing.T) {
	t.Parallel()
	q := nothingIsKnown(t, "importRunning: false\n", nil, "no cluster is followed")
	if list, err := newClientset(t, q.Config).CoreV1().ReplicationControllers("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "no cluster is followed") || !strings.Contains(err.Error(), "ownPodsOnly: true") {
		t.Errorf("oc is answered %v, %v", list, err)
	}
	args := []string{"prune", "--keep-younger-than", "0s", "--keep-tag-revisions", "0", "--grace", "0s", "--kubeconfig", q.kubeconfig}
	for _, more := range [][]string{nil, {"--confirm"}, {"--without-workloads"}, {"-o", "json"}, {"--keep-younger-than", "24h"}} {
		code, stdout, stderr := tidewaiter(t, append(args, more...)...)
		if code != cli.ExitNone || !strings.Contains(stderr, "follows no cluster") || !strings.Contains(stderr, "ownPodsOnly: true") || !strings.Contains(stderr, "--without-clusters") || strings.Contains(stdout, "mark") {
			t.Errorf("prune %v says %d %s%s", more, code, stdout, stderr)
		}
		if slices.Contains(more, "json") && !json.Valid([]byte(stdout)) {
			t.Errorf("this is not JSON: %s", stdout)
		}
	}
	for _, younger := range []string{"0s", "24h"} {
		code, stdout, stderr := tidewaiter(t, append(args, "--keep-younger-than", younger, "--plan", "registry", q.registry.Host, "--commands", "crane")...)
		if code != cli.ExitNone || stdout != "" || !strings.Contains(stderr, "follows no cluster") {
			t.Errorf("a plan for a registry says %d %s%s", code, stdout, stderr)
		}
	}
	for _, want := range []string{prune.Mark, prune.Delete} {
		code, stdout, stderr := tidewaiter(t, append(args, "--without-clusters", "--confirm")...)
		if code != cli.ExitOK || !strings.Contains(stdout, want+": 1") {
			t.Errorf("prune --without-clusters says %d %s%s, want %s", code, stdout, stderr, want)
		}
	}
	if _, err := q.images.Get(t.Context(), q.digests["lone"], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the image was not pruned: %v", err)
	}
}

// nothingIsKnown asks every door about an image that no tag leads to, of a server that does not
// know what runs, for a reason. cluster is what it is configured to follow; it may be nil.
func nothingIsKnown(t *testing.T, config string, cluster *clustertest.Cluster, why string) *questions {
	t.Helper()
	dir := t.TempDir()
	files := map[string]string{"config.yaml": config}
	if cluster != nil {
		files["late.kubeconfig"] = string(cluster.Kubeconfig())
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q := &questions{
		harbour: &harbour{t: t, registry: registrytest.New(t), found: &brought{}}, cluster: cluster, digests: map[string]string{}, doors: map[string]int{},
	}
	data := filepath.Join(dir, "data")
	q.Config = serveWith(t, server.Options{DataDir: data, ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true}, listen(t))
	q.kubeconfig, q.review = server.KubeconfigPath(data), newReviewer(t, q.Config)
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	if q.http, err = restclient.HTTPClientFor(q.Config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.http.CloseIdleConnections)
	q.image("lone", "team/lone:v1")
	q.importTag("team/lone:v1")
	// A tag leads to it no longer, so it is needed only if something runs it.
	q.registry.Inject("team/lone/manifests/v1", 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
	q.tryTag("team/lone:v1", pull.Limits{})
	asked := q.registry.Host + "/team/lone@" + q.digests["lone"]
	q.image("tagged", "team/tagged:v1")
	q.importTag("team/tagged:v1")
	tagged := q.registry.Host + "/team/tagged:v1"
	outdated := []string{q.table("namespaces/default/imagetags", "reference="+tagged)[0]["Outdated"], q.table("images", "references="+tagged)[0]["Outdated"]}
	if _, stdout, _ := tidewaiter(t, "get", tagged, "--kubeconfig", q.kubeconfig); strings.Count(stdout, " Unknown ") != 2 || outdated[0] != "Unknown" || outdated[1] != "Unknown" {
		t.Errorf("OUTDATED is %q in tables, and get says %s", outdated, stdout)
	}

	answer := q.review.ask(answers.Question{Reference: asked})[0]
	if answer.Running == nil || answer.Running.Complete || answer.Running.Pods != 0 || !slices.ContainsFunc(answer.Unknowns, func(u answers.UnknownPart) bool { return u.Part == "running" && strings.Contains(u.Reason, why) }) {
		t.Errorf("the review says %+v %+v", answer.Running, answer.Unknowns)
	}
	for _, selector := range []string{"references=" + asked, "metadata.name=" + q.digests["lone"]} {
		rows, warnings := q.tableWarned("images", selector)
		if len(rows) != 1 || rows[0]["Pods"] != "Unknown" || len(warnings) == 0 || !strings.Contains(warnings[0], why) {
			t.Errorf("the table of %s says %v, with the warnings %q", selector, rows, warnings)
		}
	}
	if rows, warnings := q.tableWarned("namespaces/default/imagetags", "reference="+q.registry.Host+"/team/lone:v1"); len(rows) != 1 || rows[0]["Image"] != "<deleted>" || len(warnings) == 0 || !strings.Contains(warnings[0], why) {
		t.Errorf("the table of tags says %v, with the warnings %q", rows, warnings)
	}
	for value, want := range map[string]int{"true": 0, "false": 0, "unknown": 2} {
		if got := q.selected("used=" + value); len(got) != want {
			t.Errorf("used=%s selects %v", value, got)
		}
	}
	_, stdout, stderr := tidewaiter(t, "get", asked, "--kubeconfig", q.kubeconfig)
	if !strings.Contains(stdout, " Unknown ") || !strings.Contains(stderr, why) {
		t.Errorf("get says %s%s", stdout, stderr)
	}
	_, stdout, _ = tidewaiter(t, "describe", "-o", "json", asked, "--kubeconfig", q.kubeconfig)
	var report imageReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || report.Pods != "Unknown" {
		t.Errorf("describe says %s", stdout)
	}
	if code, stdout, stderr := tidewaiter(t, "pods", asked, "--kubeconfig", q.kubeconfig); code != cli.ExitNone || strings.Count(stderr, why) != 1 {
		t.Errorf("pods says %d %s%s", code, stdout, stderr)
	}
	if err := q.images.Delete(t.Context(), q.digests["lone"], metav1.DeleteOptions{}); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), why) {
		t.Errorf("a deletion says %v", err)
	}
	return q
}

// An image goes by its verdict only if it has such a verdict wherever it is.
func prunesByEachVerdict(t *testing.T, q *questions) {
	for verdicts, want := range map[string]string{
		"Unsigned": "keep verdict", "True": "", "Unsigned,NoPolicy": "keep verdict", "Unsigned,True": "mark",
	} {
		d := q.prune("--verdict", verdicts)[q.digests["twice"]]
		if got := strings.TrimSpace(d.Decision + " " + d.Reason); got != want || d.Reason == prune.KeptVerdict && d.Message != "the verdict for "+q.registry.Host+"/prod/twice@"+q.digests["twice"]+" is True" {
			t.Errorf("--verdict %s: %+v, want %s", verdicts, d, want)
		}
	}
}

// A policy whose scope is a mirror's name judges what names the mirror, for an act, in the console
// and in a report as at the other doors.
func mirrorsArePoliced(t *testing.T, q *questions) {
	host := q.registry.Host
	got, err := q.review.impact(answers.ImpactReviewSpec{RemovePolicy: "mirrored"})
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]int32{}
	for _, row := range got.Status.Rows {
		reference := strings.TrimPrefix(row.Reference, host+"/")
		if pods[reference] = row.Running.Pods; row.Effect != answers.Judged || row.Before.Verdict == nil || row.After.Verdict == nil || row.Before.Verdict.Verified == verdicts.NoPolicy || row.After.Verdict.Verified != verdicts.NoPolicy {
			t.Errorf("without the policy %s becomes %+v", reference, row)
		}
	}
	if want := map[string]int32{
		"mirrored/app:v1.0": 1, "mirrored/app:bare": 1, "mirrored/app@" + q.digests["mirrored"]: 1, "mirrored/app@" + q.digests["unmirrored"]: 1,
	}; !maps.Equal(pods, want) {
		t.Errorf("without the policy %v are judged otherwise, want %v", pods, want)
	}
	for path, says := range map[string][]string{
		"image?ref=" + host + "/mirrored/app:bare": {"Unsigned", "mirrored"},
		"image?ref=" + host + "/mirrored/app:v1.0": {"True", "mirrored"},
		"running?verified=Unsigned":                {q.digests["unmirrored"][len("sha256:"):][:12]},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, q.Config.Host+"/console/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := q.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		for _, want := range says {
			if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
				t.Errorf("the console's page %s lacks %s: %s, %v", path, want, resp.Status, err)
			}
		}
	}
	soon(t, "a report has what ran", func() bool {
		code, out, errs := tidewaiter(t, "report", "--from", "2020-01-01", "--until", time.Now().UTC().Format(time.RFC3339), "-o", "csv", "--kubeconfig", q.kubeconfig)
		if code != cli.ExitOK && code != cli.ExitSome {
			t.Fatal(code, errs)
		}
		has := map[string]bool{}
		for line := range strings.Lines(out) {
			for reference, verified := range map[string]string{"mirrored/app:v1.0": verdicts.VerifiedTrue, "mirrored/app:bare": verdicts.Unsigned, "shadow/app:bare": verdicts.NoPolicy} {
				if strings.Contains(line, ","+host+"/"+reference+",") && strings.Contains(line, ","+verified+",") {
					has[reference] = true
				}
			}
		}
		return len(has) == 3
	})
}
