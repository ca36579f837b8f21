package answers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const repository = "registry.example.com/team/app"

// A pod that names a tag counts in the answer about that tag, whatever is known of where it leads.
func TestPodsOfTagsThatLeadNowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	w.tag(repository+":gone", "", one)
	w.tag(repository + ":unseen")
	for _, tt := range []struct {
		tag   string
		state State
	}{{"gone", Gone}, {"unseen", Unseen}, {"absent", Absent}} {
		w.runs("shop", tt.tag+"-1", repository+":"+tt.tag, one)
		w.runs("shop", tt.tag+"-2", repository+":"+tt.tag, "")
		w.runs("bank", tt.tag+"-3", repository+":"+tt.tag, digestOf("other"))
		a := w.ask(t.Context(), Question{Reference: repository + ":" + tt.tag})
		if a.State != tt.state || a.Running == nil || a.Running.Pods != 3 || !a.Running.Complete {
			t.Errorf("%s: %s, running %+v", tt.tag, a.State, a.Running)
			continue
		}
		if want := []string{"prod/bank/" + tt.tag + "-3", "prod/shop/" + tt.tag + "-1", "prod/shop/" + tt.tag + "-2"}; !slices.Equal(a.Running.Names, want) {
			t.Errorf("%s runs in %v, want %v", tt.tag, a.Running.Names, want)
		}
		if in := a.Running.Clusters; len(in) != 2 || in[1].Namespace != "shop" || in[1].Pods != 2 {
			t.Errorf("%s runs in %+v", tt.tag, in)
		}
	}
	// What nobody names runs nowhere.
	if a := w.ask(t.Context(), Question{Reference: repository + ":none"}); a.State != Absent || a.Running.Pods != 0 || !a.Running.Complete {
		t.Errorf("a tag that nobody names: %s, %+v", a.State, a.Running)
	}
}

// A digest that runs is known, stored or not: by its whole, in its repository, or by its beginning.
func TestRunsAndIsNotImported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	digest := digestOf("ghost")
	w.runs("shop", "app-1", repository+":v1", digest)
	w.runs("shop", "app-2", repository+":v2", digest)
	short := strings.TrimPrefix(digest, "sha256:")[:12]
	for _, text := range []string{digest, repository + "@" + digest, short, "sha256:" + short, repository + "@sha256:" + short} {
		a := w.ask(t.Context(), Question{Reference: text})
		if a.State != NotImported || a.Meaning.Digest != digest || a.Meaning.Reference != repository+"@"+digest || a.Running == nil || a.Running.Pods != 2 || !strings.Contains(a.Message, "runs, and is not imported") {
			t.Errorf("%s: %s %+v %+v %s", text, a.State, a.Meaning, a.Running, a.Message)
		}
	}
	for _, text := range []string{digestOf("none"), "9f86d081", "registry.example.com/other@sha256:" + short} {
		if a := w.ask(t.Context(), Question{Reference: text}); a.State != Absent || a.Running != nil && a.Running.Pods != 0 {
			t.Errorf("%s: %s %+v", text, a.State, a.Running)
		}
	}
	// Who may not see pods gets their number for the whole digest, and finds nothing by its beginning.
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "clusterpods" }
	if a := w.ask(w.as("ann"), Question{Reference: digest}); a.State != NotImported || a.Running.Pods != 2 || len(a.Running.Names) != 0 || a.Meaning.Repository != "" {
		t.Errorf("without the right to see pods: %s %+v %+v", a.State, a.Running, a.Meaning)
	}
	if a := w.ask(w.as("ann"), Question{Reference: short}); a.State != Absent || a.Meaning.Digest != "" {
		t.Errorf("a beginning without the right to see pods: %s %+v", a.State, a.Meaning)
	}
}

// Of a tag that was never imported it is said what its pods run, and of what runs and is not
// imported why its import failed: to whom may see pods.
func TestWhatRunsUnderATagThatIsNotImported(t *testing.T) {
	t.Parallel()
	const failure = "denied: requested access to the resource is denied"
	w := newWorld(t)
	one, copied := w.image("one", repository), w.image("copied", "registry.example.com/elsewhere")
	ghost := digestOf("ghost")
	w.failed = map[string]string{repository + "@" + ghost: failure}
	w.runs("shop", "v1", repository+":v1", one)
	w.runs("shop", "copied", repository+":copied", copied)
	w.runs("shop", "lost", repository+":lost", ghost)
	w.runs("shop", "both-1", repository+":both", one)
	w.runs("bank", "both-2", repository+":both", ghost)
	for text, want := range map[string]struct {
		state            State
		says, suggestion string
		failing          bool
	}{
		repository + ":v1":       {Absent, "its pods run " + one + ", which is imported", repository + "@" + one, false},
		repository + ":copied":   {Absent, "its pods run " + copied + ", which is imported from elsewhere", copied, false},
		repository + ":lost":     {Absent, "its pods run " + ghost + ", which is not imported either; the last attempt to import it failed: " + failure, "", true},
		repository + ":both":     {Absent, "its pods run " + ghost + ", " + one, "", true},
		repository + "@" + ghost: {NotImported, "runs, and is not imported; the last attempt to import it failed: " + failure, "", true},
		ghost[:20]:               {NotImported, "the last attempt to import it failed: " + failure, "", true},
	} {
		a := w.ask(w.as("ann"), Question{Reference: text})
		if a.State != want.state || !strings.Contains(a.Message, want.says) || a.Suggestion != want.suggestion || (a.Checked.Failing == failure && a.Checked.FailingSince != nil) != want.failing {
			t.Errorf("%s: %s %q, suggests %q, failing %q", text, a.State, a.Message, a.Suggestion, a.Checked.Failing)
		}
	}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "clusterpods" }
	for _, text := range []string{repository + ":v1", repository + ":lost", repository + "@" + ghost} {
		a := w.ask(w.as("bob"), Question{Reference: text})
		if a.Suggestion != "" || a.Checked.Failing != "" || strings.Contains(a.Message, failure) || strings.Contains(a.Message, one) {
			t.Errorf("%s: who may not see pods reads %+v", text, a)
		}
	}
}

// impactOf reviews an act.
func (w *world) impactOf(spec ImpactReviewSpec) *ImpactReviewStatus {
	w.t.Helper()
	status, err := w.answerer().Impact(w.as("ann"), &spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return status
}

// The deletion of a tag of which nothing is known touches the pods that name it.
func TestDeletionOfWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tag(repository+":gone", "", w.image("one", repository))
	for _, tag := range []string{"gone", "absent"} {
		w.runs("shop", tag, repository+":"+tag, digestOf("ghost"))
		status := w.impactOf(ImpactReviewSpec{Delete: repository + ":" + tag})
		if len(status.Rows) != 1 || status.Rows[0].Reference != repository+":"+tag || status.Summary.Pods != 1 {
			t.Errorf("%s: %+v", tag, status)
		}
	}
	for text, says := range map[string]string{repository + ":none": "nothing is known about", digestOf("nothing"): "no image has the digest", "abcdef123456": "no image has a digest that begins with"} {
		status := w.impactOf(ImpactReviewSpec{Delete: text})
		if status.Summary.PodsComplete || !slices.ContainsFunc(status.Unknowns, func(u UnknownPart) bool { return u.Part == "act" && strings.HasPrefix(u.Reason, says) }) {
			t.Errorf("the deletion of %s: %+v", text, status)
		}
	}
	for text, pods := range map[string]int32{digestOf("ghost"): 2, repository + "@" + digestOf("ghost"): 2, "registry.example.com/other@" + digestOf("ghost"): 0} {
		status := w.impactOf(ImpactReviewSpec{Delete: text})
		if s := status.Summary; s.Pods != pods || s.PodsComplete != (pods > 0) || pods > 0 && status.Rows[0].Before.State != NotImported {
			t.Errorf("the deletion of %s, which runs and is not imported: %+v", text, status)
		}
	}
	// A workload names it, and no pod does yet.
	w.needing[repository+":nightly"] = []string{"prod/shop/cronjobs/nightly"}
	w.needing[digestOf("pinned")] = []string{"prod/shop/cronjobs/pinned"}
	for _, text := range []string{repository + ":nightly", digestOf("pinned"), repository + "@" + digestOf("pinned")} {
		if status := w.impactOf(ImpactReviewSpec{Delete: text}); status.Summary.Workloads != 1 || len(status.Rows) != 1 || len(status.Unknowns) != 0 {
			t.Errorf("the deletion of %s, which a workload names: %+v", text, status)
		}
	}
}

// What one repository loses touches what pulls from there, and nothing that pulls the same image
// from another one.
func TestDeletionFromOneRepository(t *testing.T) {
	t.Parallel()
	const other, nightly = "registry.example.com/admin/app", "prod/bank/cronjobs/nightly"
	w := newWorld(t)
	one := w.image("one", repository, other)
	w.tag(repository+":v1", one)
	w.tag(other+":v1", one)
	w.tag(other+":v2", one)
	w.runs("shop", "by-tag", repository+":v1", one)
	w.runs("shop", "by-digest", repository+"@"+one, one)
	w.runs("bank", "app", other+":v1", one)
	w.needing[other+":v2"] = []string{nightly}
	for text, want := range map[string]struct {
		pods, workloads int32
		rows            []string
	}{
		repository + ":v1": {1, 0, []string{repository + ":v1"}},
		other + ":v1":      {1, 0, []string{other + ":v1"}},
		other + ":v2":      {0, 1, []string{other + ":v2"}},
		other + "@" + one:  {1, 1, []string{other + ":v1", other + ":v2", other + "@" + one}},
		one:                {3, 1, []string{repository + ":v1", repository + "@" + one, other + ":v1", other + ":v2", other + "@" + one}},
	} {
		status := w.impactOf(ImpactReviewSpec{Delete: text})
		var names []string
		for _, row := range status.Rows {
			names = append(names, row.Reference)
			if text != one && row.After.State != Gone {
				t.Errorf("%s: %s is %s then", text, row.Reference, row.After.State)
			}
		}
		slices.Sort(names)
		slices.Sort(want.rows)
		if s := status.Summary; s.Pods != want.pods || s.Workloads != want.workloads || !slices.Equal(names, want.rows) {
			t.Errorf("the deletion of %s touches %d pods and %d workloads by %v, want %+v", text, s.Pods, s.Workloads, names, want)
		}
	}
	// Of a workload that names a digest it is not known where, and a last tag keeps its digest.
	w.needing[one], w.needing[other+":v2"] = []string{nightly}, nil
	for text, workloads := range map[string]int32{repository + ":v1": 1, other + ":v1": 0, repository + "@" + one: 1} {
		if s := w.impactOf(ImpactReviewSpec{Delete: text}).Summary; s.Workloads != workloads {
			t.Errorf("the deletion of %s touches %d workloads that name the digest, want %d", text, s.Workloads, workloads)
		}
	}
	// So it is if a registry goes away.
	w.needing[one], w.needing[other+":v2"] = nil, []string{nightly}
	w.tag(other+":v2", w.image("two", other, "mirror.example.com/app"))
	if s := w.impactOf(ImpactReviewSpec{LoseRegistry: "mirror.example.com"}).Summary; s.References != 1 || s.Workloads != 0 {
		t.Errorf("a registry that goes away: %+v", s)
	}
}

// An index that one repository loses is incomplete in no other.
func TestDeletionOfAPlatformFromOneRepository(t *testing.T) {
	t.Parallel()
	const other = "registry.example.com/admin/app"
	w := newWorld(t)
	child, index := w.image("child", repository, other), w.image("index", repository, other)
	w.images[index].DockerImageManifests = []imagev1.ImageManifest{{Digest: child}}
	w.tag(repository+":v1", index)
	w.tag(other+":v1", index)
	for text, want := range map[string]int{repository + "@" + child: 3, child: 6} {
		if rows := w.impactOf(ImpactReviewSpec{Delete: text}).Rows; len(rows) != want {
			t.Errorf("the deletion of %s has %d rows, want %d: %+v", text, len(rows), want, rows)
		}
	}
}

// Pods that name a tag and run what it led to before have a row of their own.
func TestDeletionOfATagThatMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.image("one", repository), w.image("two", repository)
	w.tag(repository+":v1", two, one)
	w.runs("shop", "old", repository+":v1", one)
	w.demands("bank", repository)
	running := func() (all []string) {
		for _, row := range w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}).Rows {
			if row.Reference != repository+":v1" || row.After.State != Gone {
				t.Errorf("a row of %s, which is %s then", row.Reference, row.After.State)
			}
			all = append(all, fmt.Sprint(row.Image, " ", row.Before.State, " ", row.Namespace, " ", row.Running.Pods, " ", row.Before.word()))
		}
		slices.Sort(all)
		return all
	}
	want := []string{two + " Found  0 NoPolicy", one + " Moved  1 NoPolicy"}
	slices.Sort(want)
	if got := running(); !slices.Equal(got, want) {
		t.Errorf("the old image runs: %q, want %q", got, want)
	}
	w.runs("bank", "old", repository+":v1", one)
	w.runs("bank", "new", repository+":v1", two)
	w.runs("bank", "lost", repository+":v1", digestOf("ghost")) // which may be what the tag leads to
	want = append(want, two+" Found bank 2 Unsigned", one+" Moved bank 1 Unsigned")
	slices.Sort(want)
	if got := running(); !slices.Equal(got, want) {
		t.Errorf("both run in a namespace with policies: %q, want %q", got, want)
	}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "clusterpods" }
	if status := w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}); len(status.Rows) != 1 || status.Rows[0].Image != two {
		t.Errorf("without the right to see pods: %+v", status.Rows)
	}
}

// What runs is known as not imported once its Image is deleted, and the review foretells that.
func TestDeletionOfWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	for _, state := range []State{Absent, NotImported} {
		rows := w.impactOf(ImpactReviewSpec{Delete: one}).Rows
		image := w.images[one]
		delete(w.images, one)
		if got := w.ask(t.Context(), Question{Reference: repository + "@" + one}).State; got != state || len(rows) != 1+len(w.pods) || rows[len(rows)-1].Reference != repository+"@"+one || rows[len(rows)-1].After.State != state {
			t.Errorf("it is %s, and the review foretold %+v, want %s", got, rows, state)
		}
		w.images[one] = image
		w.runs("shop", "app-1", repository+":v1", one)
	}
}

// What pods run is touched by whichever name they run it: by a tag that is gone, has moved or was
// never imported, or in a repository in which it is not known to be.
func TestActsTouchWhatRunsByLostNames(t *testing.T) {
	t.Parallel()
	const elsewhere = "registry.example.com/elsewhere"
	w := newWorld(t)
	one, two := w.image("one", repository), w.image("two", repository)
	w.tag(repository+":gone", "", one)
	w.tag(repository+":moved", two, one)
	for _, name := range []string{repository + ":gone", repository + ":moved", repository + ":absent", elsewhere + ":v1"} {
		w.runs("shop", strings.NewReplacer("/", "-", ":", "-").Replace(name), name, one)
	}
	applying := func(repository string) ImpactReviewSpec {
		raw, err := yaml.YAMLToJSON([]byte(signaturestest.Document("own", `["`+repository+`"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")))
		if err != nil {
			t.Fatal(err)
		}
		return ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}}
	}
	for name, tt := range map[string]struct {
		spec            ImpactReviewSpec
		pods, undecided int32
	}{
		"delete the image": {ImpactReviewSpec{Delete: one}, 4, 0},
		// what is gone cannot go again
		"lose the registry":      {ImpactReviewSpec{LoseRegistry: "registry.example.com"}, 3, 0},
		"demand signatures":      {applying(repository), 3, 0},
		"demand them of another": {applying(elsewhere), 0, 1},
	} {
		status := w.impactOf(tt.spec)
		if s := status.Summary; s.Pods != tt.pods || s.Undecided != tt.undecided || s.PodsComplete != (tt.undecided == 0) {
			t.Errorf("%s: %+v of %+v, want %d pods and %d undecided", name, s, status.Rows, tt.pods, tt.undecided)
		}
	}
	// Who may not see pods is not told of names that are known only from them.
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "clusterpods" }
	if status := w.impactOf(ImpactReviewSpec{Delete: one}); len(status.Rows) != 1 || status.Rows[0].Reference != repository+"@"+one || status.OmittedRows != 4 {
		t.Errorf("without the right to see pods: %+v", status)
	}
}

// A registry may delete what no other tag of the repository leads to, whatever tags of other
// repositories do.
func TestLastTagOfARepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository, "mirror.example.com/team/app")
	w.tag(repository+":v1", one)
	w.tag("mirror.example.com/team/app:v1", one)
	if rows := w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}).Rows; len(rows) != 1 || !rows[0].LastTag {
		t.Errorf("a tag of another registry keeps it: %+v", rows)
	}
	w.tag(repository+":v2", one)
	if rows := w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}).Rows; len(rows) != 1 || rows[0].LastTag {
		t.Errorf("another tag does not keep it: %+v", rows)
	}
}

// Rows of acts that change no verdict show the verdict that the pods of a namespace have by its own
// policies.
func TestRowsOfNamespacesWithPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, base, layer := w.image("one", repository), w.image("base"), digestOf("layer")
	w.images[base].DockerImageLayers = []imagev1.ImageLayer{{Name: layer}}
	w.images[one].DockerImageLayers = []imagev1.ImageLayer{{Name: layer}, {Name: digestOf("program")}}
	w.tag(repository+":v1", one)
	w.demands("shop", repository)
	w.demands("idle", repository)
	w.runs("shop", "app-1", repository+":v1", one)
	w.runs("bank", "app-2", repository+":v1", one)
	for name, spec := range map[string]ImpactReviewSpec{
		"delete a tag": {Delete: repository + ":v1"}, "delete an image": {Delete: one}, "lose a registry": {LoseRegistry: "registry.example.com"}, "a layer": {Layer: layer},
		"a base": {Base: base},
	} {
		got := map[string]string{}
		for _, row := range w.impactOf(spec).Rows {
			if row.Reference == repository+":v1" {
				got[row.Namespace] = row.Before.Verdict.Verified + " " + strings.Join(NamesOf(row.Running), ",")
			}
		}
		if len(got) != 2 || got[""] != "NoPolicy prod/bank" || got["shop"] != "Unsigned prod/shop" {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Pods that run what is not imported are touched by an act, also in a namespace whose own policies
// judge what they name.
func TestActsTouchWhatIsNotImportedInEachNamespace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.demands("shop", repository)
	for _, namespace := range []string{"shop", "bank"} {
		w.runs(namespace, "app", repository+"@"+digestOf("ghost"), digestOf("ghost"))
	}
	status := w.impactOf(ImpactReviewSpec{LoseRegistry: "registry.example.com"})
	got := map[string]string{}
	for _, row := range status.Rows {
		got[row.Namespace] = strings.Join(NamesOf(row.Running), ",")
	}
	if want := map[string]string{"": "prod/bank", "shop": "prod/shop"}; !maps.Equal(got, want) || status.Summary.Pods != 2 {
		t.Errorf("%d pods in rows of %v, want 2 in those of %v", status.Summary.Pods, got, want)
	}
}

func NamesOf(r *Running) (all []string) {
	for _, in := range r.Clusters {
		all = append(all, in.Cluster+"/"+in.Namespace)
	}
	return all
}

// Workloads of clusters are named to who may see pods, by both reviews.
func TestWorkloadsAreNamedToWhoSeesPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	w.tag(repository+":v1", one)
	w.needing[one] = []string{"prod/shop/deployments/app"}
	for _, may := range []bool{true, false} {
		w.may = func(a authorizer.Attributes) bool { return may || a.GetResource() != "clusterpods" }
		answer, rows := w.ask(w.as("ann"), Question{Reference: repository + ":v1"}), w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}).Rows
		if len(rows) != 1 || len(rows[0].NeededBy) > 0 != may || len(answer.NeededBy) > 0 != may {
			t.Errorf("may see pods: %v, and is told %+v and %v", may, rows, answer.NeededBy)
		}
	}
}

// Who may read images and no pods sees how many pods run an image, and not which: the same number
// in both reviews, as in the table of images, and in the summary of an act.
func TestPodsAreCountedForWhoSeesNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, layer := w.image("one", repository), digestOf("layer")
	w.images[one].DockerImageLayers = []imagev1.ImageLayer{{Name: layer}}
	w.tag(repository+":v1", one)
	w.runs("shop", "app-1", repository+":v1", one)
	w.runs("bank", "app-2", repository+":v1", one)
	raw, err := yaml.YAMLToJSON([]byte(signaturestest.Document("new", `["`+repository+`"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")))
	if err != nil {
		t.Fatal(err)
	}
	acts := map[string]ImpactReviewSpec{
		"delete a tag": {Delete: repository + ":v1"}, "delete an image": {Delete: one}, "lose a registry": {LoseRegistry: "registry.example.com"},
		"a layer": {Layer: layer}, "apply a policy": {ApplyPolicies: []runtime.RawExtension{{Raw: raw}}},
	}
	for _, may := range []bool{true, false} {
		w.may = func(a authorizer.Attributes) bool { return may || a.GetResource() != "clusterpods" }
		answer := w.ask(w.as("ann"), Question{Reference: repository + ":v1"})
		if r := answer.Running; r == nil || r.Pods != 2 || len(r.Clusters) > 0 != may || len(r.Names) > 0 != may {
			t.Errorf("may see pods: %v, and the reference has %+v", may, r)
		}
		for act, spec := range acts {
			status := w.impactOf(spec)
			at, changes := slices.IndexFunc(status.Rows, func(r ImpactRow) bool { return r.Reference == repository+":v1" }), status.Summary.Changes
			if at < 0 || status.Summary.Pods != 2 || !status.Summary.PodsComplete || !slices.ContainsFunc(changes, func(c ImpactChange) bool { return c.Pods == 2 }) {
				t.Errorf("may see pods: %v, and %s has %+v", may, act, status)
				continue
			}
			if r := status.Rows[at].Running; r == nil || r.Pods != 2 || len(r.Clusters) > 0 != may {
				t.Errorf("may see pods: %v, and %s has a row with %+v", may, act, r)
			}
		}
	}
}

// A container that has not started has the verdict for what it names, as admission judges it.
func TestVerdictOfAPendingContainer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tag(repository+":v1", w.image("one", repository))
	w.demands("shop", repository)
	for namespace, want := range map[string]string{"shop": "Unsigned", "bank": "NoPolicy"} {
		answer, err := w.answerer().Container(t.Context(), namespace, repository+":v1", "")
		if err != nil || answer.Verdict == nil || answer.Verdict.Verified != want || answer.Outdated {
			t.Errorf("in %s it is %+v %+v, want %s: %v", namespace, answer, answer.Verdict, want, err)
		}
	}
	if answer, err := w.answerer().Container(t.Context(), "shop", repository+":none", ""); err != nil || answer.Verdict != nil {
		t.Errorf("of a tag that is not known: %+v, %v", answer, err)
	}
}

// A verdict in one place is about the pods that name the image there, and not about all that run
// it.
func TestPodsOfAVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.image("one", repository, "r.example.com/copy"), "r.example.com/copy"
	w.demands("shop", repository)
	w.runs("shop", "a", repository+":v1", one)
	w.runs("bank", "b", repository+":v2", one)
	w.runs("bank", "c", other+":v1", one)
	w.runs("bank", "d", repository+":v1", digestOf("two"))
	for _, tt := range []struct {
		place, namespace, verified string
		want                       int
	}{
		{repository, "", "NoPolicy", 1}, {repository, "shop", "Unsigned", 1}, {repository, "shop", "False", 0}, {repository + ":v2", "", "NoPolicy", 1},
		{repository + ":v1", "", "NoPolicy", 0}, {repository + ":v1", "shop", "Unsigned", 1}, {other, "", "NoPolicy", 1}, {other, "shop", "NoPolicy", 0},
	} {
		n, complete, err := w.answerer().PodsNaming(t.Context(), w.images[one], w.ref(tt.place), tt.namespace, tt.verified)
		if n != tt.want || !complete || err != nil {
			t.Errorf("%s for %q: %d pods, want %d: %v, %v", tt.place, tt.namespace, n, tt.want, complete, err)
		}
	}
}

// Asked with what runs, a reference has the verdict of the container that names it: that on what
// runs, for the tag that it names, wherever that leads.
func TestVerdictOfWhatAContainerNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.image("one", repository), w.image("two", repository)
	w.tag(repository+":v1", one)
	w.tag(repository+":gone", "", one)
	w.demands("", repository)
	for _, tt := range []struct{ tag, runs, judged string }{
		{"v1", one, repository + ":v1"}, {"v1", two, repository + ":v1"}, {"gone", one, repository + ":gone"}, {"none", one, repository + ":none"}, {"v1", digestOf("ghost"), ""},
	} {
		got, a := "", w.ask(t.Context(), Question{Reference: repository + ":" + tt.tag, Runs: tt.runs})
		if a.Verdict != nil {
			got = a.Verdict.Reference
		}
		container, err := w.answerer().Container(t.Context(), "", repository+":"+tt.tag, repository+"@"+tt.runs)
		if got != tt.judged || err != nil || (container.Verdict == nil) != (got == "") || container.Verdict != nil && container.Verdict.Reference != got {
			t.Errorf("%s that runs %s is judged as %q, want %q; the container is %+v, %v", tt.tag, tt.runs, got, tt.judged, container.Verdict, err)
		}
	}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "images" }
	if a := w.ask(w.as("ann"), Question{Reference: repository + ":v1", Runs: one}); a.Verdict != nil {
		t.Errorf("who may not read images is told %+v", a.Verdict)
	}
}

// Where a tag leads by now changes nothing of the verdict on what already runs by it.
func TestMovesOfTagsTurnNoVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const name = repository + ":v1"
	one, two := w.image("one", repository), w.image("two", repository)
	w.demands("", name)
	for _, leads := range [][]string{{one}, {two, one}, {"", one}, {"", two, one}} {
		w.tag(name, leads...)
		container, err := w.answerer().Container(t.Context(), "shop", name, repository+"@"+one)
		if err != nil || container.Verdict == nil || container.Verdict.Verified != "Unsigned" || container.Judged != one || container.Outdated != (leads[0] == two) {
			t.Errorf("the tag has led to %q, and the container is %+v with the verdict %+v, %v", leads, container, container.Verdict, err)
		}
	}
	// An act touches the pod by the image that it runs, and not by the one to which its tag leads.
	w.tag(name, two, one)
	w.runs("shop", "app-1", name, one)
	raw, err := yaml.YAMLToJSON([]byte(signaturestest.Document("own", `["r.example.com/other"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")))
	if err != nil {
		t.Fatal(err)
	}
	pods := map[string]int32{}
	for _, row := range w.impactOf(ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}}).Rows {
		pods[string(row.Before.State)+" "+row.Image+" "+row.Reference] = row.Running.Pods
	}
	if want := map[string]int32{"Moved " + one + " " + name: 1, "Found " + two + " " + name: 0}; !maps.Equal(pods, want) {
		t.Errorf("the rows have %v, want %v", pods, want)
	}
}

// Whoever asks what runs a layer is told of the pods whose tag is gone, too; a caller who may not
// see pods is not told what they name.
func TestLayerRunsUnderATagThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, layer := w.image("one", repository), digestOf("layer")
	w.images[one].DockerImageLayers = []imagev1.ImageLayer{{Name: layer}}
	w.tag(repository+":gone", "", one)
	w.runs("shop", "app-1", repository+":gone", one)
	status := w.impactOf(ImpactReviewSpec{Layer: layer})
	if status.Summary.Pods != 1 || !status.Summary.PodsComplete || len(status.Rows) != 2 || status.Rows[0].Reference != repository+":gone" || status.Rows[0].Before.State != Gone {
		t.Errorf("%+v", status)
	}
	w.may = func(a authorizer.Attributes) bool { return a.GetResource() != "clusterpods" }
	if status := w.impactOf(ImpactReviewSpec{Layer: layer}); status.Summary.Pods != 1 || len(status.Rows) != 1 || status.OmittedRows != 1 {
		t.Errorf("without pods: %+v", status)
	}
}

// What is built on a base is touched with the pods that run it; nothing is said to be untouched
// while the layers of the base, or an image that runs, are not known.
func TestWhatIsBuiltOnABase(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	base, built, other := w.image("base", repository), w.image("built", repository), w.image("other", repository)
	layers := []imagev1.ImageLayer{{Name: digestOf("layer")}, {Name: digestOf("program")}}
	w.images[base].DockerImageLayers, w.images[built].DockerImageLayers, w.images[other].DockerImageLayers = layers[:1], layers, layers[1:]
	w.tag(repository+":gone", "", built)
	w.runs("shop", "app-1", repository+":gone", built)
	w.runs("shop", "app-2", repository+"@"+other, other)
	status := w.impactOf(ImpactReviewSpec{Base: base})
	if s := status.Summary; s.Images != 1 || s.Pods != 1 || !s.PodsComplete || status.Rows[0].Image != built || status.Rows[0].Reference != repository+":gone" || status.Rows[0].Effect != Contains {
		t.Errorf("%+v", status)
	}
	if status := w.impactOf(ImpactReviewSpec{Base: other}); status.Summary.References != 0 || !status.Summary.PodsComplete || len(status.Unknowns) > 0 {
		t.Errorf("on an image with nothing above it: %+v", status)
	}
	if status := w.impactOf(ImpactReviewSpec{Base: digestOf("nobody")}); status.Summary.PodsComplete || !slices.ContainsFunc(status.Unknowns, func(u UnknownPart) bool { return u.Reason == "the layers of the base are not known" }) {
		t.Errorf("on what is not stored: %+v", status)
	}
	if _, err := w.answerer().Impact(w.as("ann"), &ImpactReviewSpec{Base: digestOf("nobody")[:20]}); !apierrors.IsBadRequest(err) {
		t.Errorf("on the beginning of a digest that no image has: %v", err)
	}
	w.runs("shop", "app-3", repository+"@"+digestOf("ghost"), digestOf("ghost"))
	if s := w.impactOf(ImpactReviewSpec{Base: other}).Summary; s.PodsComplete || s.Undecided != 1 {
		t.Errorf("while what is not imported runs: %+v", s)
	}
}

// While pods that have not started may run an image, that is said to be why there may be more.
func TestWhyMorePodsMayRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.moved = w.image("one", repository)
	w.tag(repository+":v1", w.moved)
	says := func(unknowns []UnknownPart) bool {
		return slices.Contains(unknowns, UnknownPart{Part: "running", Reason: ErrNotStarted.Error()})
	}
	if a := w.ask(t.Context(), Question{Reference: repository + ":v1"}); a.Running.Complete || !says(a.Unknowns) {
		t.Errorf("%+v %+v", a.Running, a.Unknowns)
	}
	if status := w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"}); status.Summary.PodsComplete || !says(status.Unknowns) {
		t.Errorf("%+v", status)
	}
	w.moved = ""
	if a := w.ask(t.Context(), Question{Reference: repository + ":v1"}); !a.Running.Complete || len(a.Unknowns) > 0 {
		t.Errorf("%+v %+v", a.Running, a.Unknowns)
	}
}

// While a cluster is away, an act may touch more pods than are known.
func TestImpactWhileAClusterIsAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.tag(repository+":v1", w.image("one", repository))
	w.away = "the pods of cluster prod are those of 1h ago"
	status := w.impactOf(ImpactReviewSpec{Delete: repository + ":v1"})
	if sum := status.Summary; sum.PodsComplete || len(sum.Changes) != 1 || sum.Changes[0].PodsComplete || !slices.Contains(status.Unknowns, UnknownPart{Part: "running", Reason: w.away}) {
		t.Errorf("%+v", status)
	}
}

// What a pod runs by a name under which it is not known is undecided if a policy for that name and
// the pod's namespace changes, and not if one of another namespace does.
func TestPoliciesOfOtherNamespacesDecideNothing(t *testing.T) {
	t.Parallel()
	for namespace, want := range map[string]int32{"shop": 1, "bank": 0} {
		for _, mayRun := range []bool{false, true} { // other pods, by a tag of another repository
			w := newWorld(t)
			one, other := w.image("one", repository), "r.example.com/elsewhere"
			if w.demands("shop", other); mayRun {
				w.moved = one
			}
			w.runs(namespace, "a", other+"@"+one, one)
			if sum := w.impactOf(ImpactReviewSpec{RemovePolicy: "shop/own"}).Summary; sum.Undecided != want || sum.PodsComplete != (want == 0) {
				t.Errorf("a pod in %s: %+v, want %d undecided", namespace, sum, want)
			}
		}
	}
}

// A policy that is applied and covers nothing that is known may be misspelt. That is said of each,
// also if other policies that are applied with it touch something.
func TestEachPolicyThatCoversNothingIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	w.tag(repository+":v1", one)
	w.runs("shop", "app-1", repository+":v1", one)
	key := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	raw := func(name, scope string) runtime.RawExtension {
		text, err := yaml.YAMLToJSON([]byte(signaturestest.Document(name, `["`+scope+`"]`, key, "")))
		if err != nil {
			t.Fatal(err)
		}
		return runtime.RawExtension{Raw: text}
	}
	covers, typo, other := raw("covers", repository), raw("typo", "r.exmaple.com/team"), raw("other", "registry.example.com/tema")
	for _, tt := range []struct {
		apply []runtime.RawExtension
		pods  int32
		named []string
	}{{[]runtime.RawExtension{covers}, 1, nil}, {[]runtime.RawExtension{typo}, 0, []string{"typo"}}, {[]runtime.RawExtension{covers, typo, other}, 1, []string{"other", "typo"}}} {
		status := w.impactOf(ImpactReviewSpec{ApplyPolicies: tt.apply})
		var named []string
		for _, u := range status.Unknowns {
			if _, rest, ok := strings.Cut(u.Reason, "in the scopes of the policy "); ok && u.Part == "act" {
				named = append(named, strings.Fields(rest)[0])
			}
		}
		if s := status.Summary; s.Pods != tt.pods || s.PodsComplete != (len(tt.named) == 0) || !slices.Equal(named, tt.named) {
			t.Errorf("of %d policies it names %q, want %q: %+v %v", len(tt.apply), named, tt.named, s, status.Unknowns)
		}
	}
}

// A pod that has not started may run what its tag led to since it was created. An act that turns
// the verdict on that, for this tag and the pod's namespace alone, may touch it.
func TestActsMayTouchWhatPodsMayRun(t *testing.T) {
	t.Parallel()
	const tag, other = repository + ":v1", repository + ":v2"
	now, key := time.Now(), signaturestest.NewKey(t, signaturestest.P256)
	for name, tt := range map[string]struct {
		namespace, names, runs string
		age                    time.Duration
		excepted               string
		want                   bool // more pods may be touched
	}{
		"it may run it":            {"shop", tag, "", time.Hour, "one", true},
		"it is younger":            {"shop", tag, "", time.Minute, "one", false},
		"it runs something else":   {"shop", tag, "two", time.Hour, "one", false},
		"it tells a ghost":         {"shop", tag, "ghost", time.Hour, "one", true},
		"it tells what was there":  {"shop", tag, "deleted", time.Hour, "one", false},
		"it tells what was before": {"shop", tag, "former", time.Hour, "one", false},
		"it names another tag":     {"shop", other, "", time.Hour, "one", false},
		"another namespace":        {"bank", tag, "", time.Hour, "one", false},
		"another image is let in":  {"shop", tag, "", time.Hour, "three", false},
		"what runs it is excepted": {"shop", tag, "one", time.Hour, "one", false},
	} {
		w := newWorld(t)
		one, two := w.image("one", repository), w.image("two", repository)
		w.image("three", repository)
		w.moved = one
		for _, name := range []string{tag, other} {
			w.tag(name, two, digestOf("deleted"), one, digestOf("former"))
			for i, age := range []time.Duration{20 * time.Minute, 30 * time.Minute, 2 * time.Hour, 3 * time.Hour} {
				w.tags[tags.Name(w.ref(name))].Status.Items[i].Created = metav1.NewTime(now.Add(-age))
			}
		}
		runs := ""
		if tt.runs != "" {
			runs = digestOf(tt.runs)
		}
		w.runs(tt.namespace, "a", tt.names, runs)
		w.pods[0].Since = metav1.NewTime(now.Add(-tt.age))
		document := func(images ...string) []byte {
			text := signaturestest.Document("own", `["`+tag+`"]`, signaturestest.TrustKey(key, nil), "") +
				fmt.Sprintf("  exceptions:\n  - {images: [%s], until: \"2999-01-01T00:00:00Z\", by: ann@example.com, reason: why}\n", strings.Join(images, ", "))
			return []byte(strings.NewReplacer("ClusterImagePolicy", "ImagePolicy", "{name: own}", "{name: own, namespace: shop}").Replace(text))
		}
		all, err := policy.ParseObjects(document(two), "")
		if err != nil {
			t.Fatal(err)
		}
		w.policies = all
		raw, err := yaml.YAMLToJSON(document(two, digestOf(tt.excepted)))
		if err != nil {
			t.Fatal(err)
		}
		status := w.impactOf(ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}})
		pods := int32(0)
		if tt.runs == "one" {
			pods = 1 // it is known to run it
		}
		says := slices.Contains(status.Unknowns, UnknownPart{Part: "running", Reason: ErrNotStarted.Error()})
		if s := status.Summary; s.Pods != pods || pods == 0 && (tt.want && s.PodsComplete || says != tt.want) {
			t.Errorf("%s: %+v %v, want pods that may be touched: %v", name, s, status.Unknowns, tt.want)
		}
	}
}

// Where more pods run an image than a review looks at, it says so.
func TestMorePodsThanAreLookedAt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	w.tag(repository+":v1", one)
	w.bounded = true
	for i := range maxContainers + 1 {
		w.runs("shop", fmt.Sprint("app-", i), repository+":v1", one)
	}
	status := w.impactOf(ImpactReviewSpec{LoseRegistry: "registry.example.com"})
	if s := status.Summary; s.Pods != maxContainers || s.PodsComplete || !slices.ContainsFunc(status.Unknowns, func(u UnknownPart) bool {
		return u.Part == "running" && strings.HasPrefix(u.Reason, "more pods than the 1000 that were looked at")
	}) {
		t.Errorf("%+v %v", s, status.Unknowns)
	}
}

// A review of an act reads any number of large indexes: what it may read is bounded for each image.
func TestImpactReadsAnImageAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.vouching = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf("index")}, DockerImageManifest: strings.Repeat("x", 4<<20)}
	w.demands("", "registry.example.com")
	const images = maxRead/(4<<20) + 10
	for i := range images {
		one := w.image(fmt.Sprint("one", i), repository)
		w.tag(fmt.Sprint(repository, ":v", i), "", one)
		w.runs("shop", fmt.Sprint("app-", i), fmt.Sprint(repository, ":v", i), one)
	}
	status, states := w.impactOf(ImpactReviewSpec{RemovePolicy: "own"}), map[State]int{}
	for _, row := range status.Rows {
		states[row.Before.State]++
	}
	if s := status.Summary; s.Pods != images || !s.PodsComplete || len(status.Unknowns) > 0 || states[Gone] != images || states[Found] != images {
		t.Errorf("%+v %v %v", s, status.Unknowns, states)
	}
}

// Where more pods name or run an image than an answer looks at, it says what it lacks.
func TestAnswersAboutManyPods(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.bounded = true
	few, many, ghost := w.image("few", repository), w.image("many", repository), digestOf("ghost")
	w.tag(repository+":gone", "", few)
	w.runs("shop", "few", repository+"@"+few, few)
	for i := range maxUsers + 1 {
		w.runs("shop", fmt.Sprint("many-", i), repository+"@"+many, many)
	}
	for i := range maxContainers + 1 {
		w.runs("shop", fmt.Sprint("gone-", i), repository+":gone", "")
		w.runs("shop", fmt.Sprint("ghost-", i), repository+"@"+ghost, ghost)
	}
	for text, tt := range map[string]struct {
		pods, in int
		complete bool
		lacks    []string
	}{
		few:                  {1, 1, true, nil},
		many:                 {maxUsers + 1, maxUsers, true, []string{"the first 5000 pods are counted by namespace", "since when it runs is not looked up"}},
		ghost:                {maxContainers + 1, maxContainers + 1, true, []string{"since when it runs is not looked up"}},
		repository + ":gone": {maxContainers, maxContainers, false, []string{"more pods name it than the 1000 that were looked at"}},
	} {
		a := w.ask(t.Context(), Question{Reference: text})
		in := int32(0)
		for _, one := range a.Running.Clusters {
			if in += one.Pods; (one.Since == nil) != (len(tt.lacks) > 0) {
				t.Errorf("%s runs since %v, and it lacks %q", text, one.Since, tt.lacks)
			}
		}
		if r := a.Running; int(r.Pods) != tt.pods || int(in) != tt.in || r.Complete != tt.complete || len(a.Unknowns) != len(tt.lacks) {
			t.Errorf("%s: %d pods, %d of them by namespace, complete %v: %v", text, r.Pods, in, r.Complete, a.Unknowns)
		}
		for _, lacks := range tt.lacks {
			if !slices.ContainsFunc(a.Unknowns, func(u UnknownPart) bool { return u.Part == "running" && strings.HasPrefix(u.Reason, lacks) }) {
				t.Errorf("%s does not say %q: %v", text, lacks, a.Unknowns)
			}
		}
		if text == ghost && a.Meaning.Repository != "" {
			t.Errorf("the others may name another repository than %s", a.Meaning.Repository)
		}
	}
}

// Pods that may run an image name tags of its repositories, so another registry can go away without
// touching them.
func TestOtherRegistriesTouchNoPodsThatMayRunIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.image("one", repository)
	w.moved = one
	w.runs("shop", "a", "r.example.com/elsewhere@"+one, one)
	w.runs("shop", "b", repository+"@"+one, one)
	for host, complete := range map[string]bool{"r.example.com": true, "registry.example.com": false} {
		status := w.impactOf(ImpactReviewSpec{LoseRegistry: host})
		if s := status.Summary; s.Pods != 1 || s.PodsComplete != complete || len(status.Unknowns) > 0 == complete {
			t.Errorf("without %s: %+v %v, want complete %v", host, s, status.Unknowns, complete)
		}
	}
}
