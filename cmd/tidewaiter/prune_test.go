package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages/pagestest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// pruning is a server that knows some images.
type pruning struct {
	t          *testing.T
	kubeconfig string
	images     *imageclient.Client
	kube       kubernetes.Interface
}

func newPruning(t *testing.T, configFile string) *pruning {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := serveWith(t, server.Options{DataDir: dir, ConfigFile: configFile}, listener)
	p := &pruning{t: t, kubeconfig: server.KubeconfigPath(dir), kube: kubernetes.NewForConfigOrDie(config)}
	if p.images, err = imageclient.New(config); err != nil {
		t.Fatal(err)
	}
	// The verb has the rights of its role, and no others.
	p.become("pruner")
	return p
}

// become runs the verbs that follow as a user: one with the role that has the same name.
func (p *pruning) become(user string) {
	p.t.Helper()
	bind(p.t, p.kube, user, "tidewaiter:"+user, "")
	rules, err := clientcmd.LoadFromFile(p.kubeconfig)
	if err != nil {
		p.t.Fatal(err)
	}
	for _, info := range rules.AuthInfos {
		info.Impersonate = user
	}
	p.kubeconfig = filepath.Join(p.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*rules, p.kubeconfig); err != nil {
		p.t.Fatal(err)
	}
}

// pruneDigest is the digest of the image of a number.
func pruneDigest(n int) string { return manifest.Digest(fmt.Append(nil, n)) }

// create stores the image of a number, without content, in a repository; of an index it lists
// others.
func (p *pruning) create(n int, lists ...int) {
	p.t.Helper()
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: pruneDigest(n)}, DockerImageReference: "a.example.com/team/app@" + pruneDigest(n)}
	for _, child := range lists {
		image.DockerImageManifests = append(image.DockerImageManifests, imagev1.ImageManifest{Digest: pruneDigest(child), MediaType: "application/vnd.oci.image.manifest.v1+json", OS: "linux", Architecture: "amd64"})
	}
	if _, err := p.images.Create(p.t.Context(), image, metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// lead has a tag lead to one image after another; 0 is that its registry has it no longer.
func (p *pruning) lead(name string, numbers ...int) {
	p.t.Helper()
	ref := reference.Reference{Host: "a.example.com", Repository: "team/app", Tag: name}
	tag := tags.New(ref)
	for i, n := range numbers {
		digest := ""
		if n > 0 {
			digest = pruneDigest(n)
		}
		tags.Lead(tag, ref, digest, metav1.NewTime(time.Unix(1700000000+int64(i), 0)))
	}
	if _, err := p.images.UpdateTag(p.t.Context(), tag, metav1.UpdateOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

// run prunes, and returns what was decided about each image by its number, as "decision reason",
// and the whole output.
func (p *pruning) run(code int, args ...string) (map[int]string, string) {
	p.t.Helper()
	got, stdout, stderr := tidewaiter(p.t, append([]string{"prune", "--keep-younger-than", "0s", "--kept", "-o", "json", "--kubeconfig", p.kubeconfig}, args...)...)
	if got != code {
		p.t.Fatalf("prune %q: exit code %d, want %d: %s%s", args, got, code, stdout, stderr)
	}
	var report struct {
		Images    []prune.Decision
		Confirmed bool
		Counts    map[string]int
	}
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		p.t.Fatalf("%v: %s", err, stdout)
	}
	decided, counted := map[int]string{}, 0
	for n := range 200 {
		for _, d := range report.Images {
			if d.Image == pruneDigest(n) {
				decided[n] = strings.TrimSpace(d.Decision + " " + d.Reason)
			}
		}
	}
	for _, count := range report.Counts {
		counted += count
	}
	if counted != len(report.Images) || len(decided) != len(report.Images) {
		p.t.Errorf("%d are counted, of %d, and %d known", counted, len(report.Images), len(decided))
	}
	return decided, stdout
}

func (p *pruning) want(when string, got map[int]string, want map[int]string) {
	p.t.Helper()
	for n, decision := range want {
		if got[n] != decision {
			p.t.Errorf("%s: image %d is %q, want %q", when, n, got[n], decision)
		}
	}
	if len(got) != len(want) {
		p.t.Errorf("%s: there are %v, want %v", when, got, want)
	}
}

// expiringImages are images whose lists expire after each page.
type expiringImages struct{ metadata.Getter }

func (e expiringImages) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return pagestest.Expiring(e.Getter.List)(ctx, options)
}

// Pruning that takes longer than the server keeps a list for handles all images.
func TestPruneThroughExpiredLists(t *testing.T) {
	t.Parallel()
	p := newPruning(t, "")
	for n := range 5 {
		p.create(n)
	}
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	images := metadata.NewForConfigOrDie(config).Resource(imagev1.GroupVersion.WithResource("images"))
	pruner := prune.New(prune.Options{}, expiringImages{images}, p.images, nil)
	if err := pruner.Run(t.Context(), func(prune.Decision) error { return nil }); err != nil || pruner.Summary()[prune.Mark] != 5 {
		t.Errorf("decided was %v: %v", pruner.Summary(), err)
	}
}

// mark writes when an image may be deleted.
func (p *pruning) mark(n int, after string) {
	p.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation.PruneAfter, after)
	if _, err := p.images.Patch(p.t.Context(), pruneDigest(n), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pruning) stored() (numbers []int) {
	p.t.Helper()
	list, err := p.images.List(p.t.Context(), metav1.ListOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	for n := range 200 {
		if slices.ContainsFunc(list.Items, func(image imagev1.Image) bool { return image.Name == pruneDigest(n) }) {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// Images that nothing needs are marked, and deleted by a later run if nothing has needed them
// since. What is kept says why.
func TestPrune(t *testing.T) {
	t.Parallel()
	p := newPruning(t, "")
	for n := 1; n <= 9; n++ {
		p.create(n)
	}
	p.create(11, 10)
	p.create(10)
	p.create(13, 12)
	p.create(12)
	p.lead("v1", 1, 2, 3, 13, 4, 5) // 1 and 2 are too old
	p.lead("gone", 6, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "a.example.com/team/app@" + pruneDigest(7)}}}}
	if _, err := p.kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the pod counts", func() bool {
		list, err := p.images.List(t.Context(), metav1.ListOptions{FieldSelector: "used=true"})
		return err == nil && len(list.Items) == 1
	})

	fresh := map[int]string{1: "mark", 2: "mark", 3: "mark", 4: "keep revision", 5: "keep revision", 6: "mark", 7: "keep used", 8: "mark", 9: "mark",
		10: "keep listed", 11: "mark", 12: "keep revision", 13: "keep revision"}
	got, out := p.run(cli.ExitOK)
	p.want("a dry run", got, fresh)
	if !strings.Contains(out, "listed by index "+pruneDigest(13)+", one of the last 3 images of default/a.example.com--team--app:v1") || !strings.Contains(out, "pod local/default/web uses it") {
		t.Errorf("it says %s", out)
	}
	got, _ = p.run(cli.ExitOK, "--keep-younger-than", "1h")
	for n, decision := range got {
		if decision != "keep young" {
			t.Errorf("with --keep-younger-than image %d is %q", n, decision)
		}
	}
	got, _ = p.run(cli.ExitOK, "--keep-tag-revisions", "0")
	if got[4] != "mark" || got[13] != "mark" || got[5] != "keep tagged" {
		t.Errorf("without revisions: %v", got)
	}
	got, _ = p.run(cli.ExitOK, "--verdict", "True,False")
	p.want("with other verdicts", got, nil)
	got, _ = p.run(cli.ExitOK, "--verdict", "NoPolicy")
	p.want("with the verdict that all have", got, fresh)
	if all := p.stored(); len(all) != 13 {
		t.Fatalf("after dry runs there are %v", all)
	}

	p.run(cli.ExitOK, "--confirm")
	waiting := map[int]string{1: "wait", 2: "wait", 3: "wait", 4: "keep revision", 5: "keep revision", 6: "wait", 7: "keep used", 8: "wait", 9: "wait",
		11: "wait", 12: "keep revision", 13: "keep revision"}
	got, _ = p.run(cli.ExitOK)
	waiting[10] = got[10] // by the order of digests it was looked at before or after its index
	if got[10] != "mark" && got[10] != "wait" {
		t.Errorf("what a marked index lists is %q", got[10])
	}
	p.want("after the first run", got, waiting)
	p.run(cli.ExitOK, "--confirm")
	if all := p.stored(); len(all) != 13 {
		t.Errorf("within the grace period there are %v", all)
	}

	// Undone, for all and by hand for one.
	got, _ = p.run(cli.ExitOK, "--undo", "--confirm")
	if got[1] != "unmark undone" || got[4] != "keep undone" {
		t.Errorf("undone: %v", got)
	}
	got, _ = p.run(cli.ExitOK)
	p.want("after it was undone", got, fresh)

	// The grace period of some is over; of these one has got a tag since, and one a mark that
	// nobody can read.
	past := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	for _, n := range []int{1, 2, 11, 10, 4} {
		p.mark(n, past)
	}
	p.mark(3, "tomorrow")
	p.lead("v2", 2)
	got, _ = p.run(cli.ExitOK, "--confirm")
	for n, want := range map[int]string{1: "delete", 2: "unmark revision", 3: "mark", 4: "unmark revision", 8: "mark"} {
		if got[n] != want {
			t.Errorf("image %d is %q, want %q", n, got[n], want)
		}
	}
	p.run(cli.ExitOK, "--confirm")
	if got, want := p.stored(), []int{2, 3, 4, 5, 6, 7, 8, 9, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}

	// Without a grace period it takes two runs all the same. The table has what changes, and counts
	// the rest.
	if code, stdout, stderr := tidewaiter(t, "prune", "--keep-younger-than=0", "--grace=0", "--undo", "--confirm", "--kubeconfig", p.kubeconfig); code != cli.ExitOK {
		t.Fatalf("%d: %s%s", code, stdout, stderr)
	}
	for _, want := range []string{" mark   ", " delete   "} {
		code, stdout, stderr := tidewaiter(t, "prune", "--keep-younger-than=0", "--grace=0", "--confirm", "--kubeconfig", p.kubeconfig)
		if code != cli.ExitOK || strings.Count(stdout, want) != 4 || !strings.Contains(stdout, "nothing needs it") || !strings.Contains(stdout, "(a.example.com/team/app)\n") ||
			!strings.Contains(stdout, "keep revision: 5, keep used: 1") {
			t.Errorf("%d: %s%s", code, stdout, stderr)
		}
	}
	if got, want := p.stored(), []int{2, 4, 5, 7, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("left are %v, want %v", got, want)
	}
}

// A plan for a registry deletes what nothing needs, also the last platform of an index that goes,
// and changes nothing itself.
func TestPlanForARegistry(t *testing.T) {
	t.Parallel()
	p := newPruning(t, "")
	for n := 1; n <= 4; n++ {
		p.create(n)
	}
	p.create(11, 10)     // an index that nothing needs
	p.create(10)         // and what it lists
	p.create(13, 12, 14) // an index that a tag leads to
	p.create(12)
	p.create(14)
	p.create(15, 14) // another one that nothing needs
	p.create(16)     // nothing needs it, and the registry does not have it
	gone := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation.Gone, `{"a.example.com/team/app@`+pruneDigest(16)+`":"2026-03-04T05:06:07Z"}`)
	if _, err := p.images.Patch(t.Context(), pruneDigest(16), types.MergePatchType, []byte(gone), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p.lead("v1", 1, 2, 13, 0, 13) // of its last two images, one was lost for a time
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "elsewhere.example.com/app@" + pruneDigest(3)}}}}
	if _, err := p.kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "the pod counts", func() bool {
		list, err := p.images.List(t.Context(), metav1.ListOptions{FieldSelector: "used=true"})
		return err == nil && len(list.Items) == 1
	})
	before := p.stored()
	ask := func(code int, args ...string) string {
		t.Helper()
		got, stdout, stderr := tidewaiter(t, append([]string{"prune", "--plan", "registry", "--keep-younger-than", "0s", "--keep-tag-revisions", "2", "--kubeconfig", p.kubeconfig}, args...)...)
		if got != code {
			t.Fatalf("%q: exit code %d, want %d: %s%s", args, got, code, stdout, stderr)
		}
		return stdout
	}
	var plan prune.Plan
	if err := json.Unmarshal([]byte(ask(cli.ExitOK, "a.example.com", "-o", "json")), &plan); err != nil {
		t.Fatal(err)
	}
	numbers := func(all []prune.Image) (out []int) {
		for _, image := range all {
			for n := range 20 {
				if pruneDigest(n) == image.Digest {
					out = append(out, n)
				}
			}
		}
		slices.Sort(out)
		return out
	}
	if len(plan.Repositories) != 1 || plan.Repositories[0].Repository != "a.example.com/team/app" {
		t.Fatalf("the plan is %+v", plan)
	}
	r := plan.Repositories[0]
	if r.TagsChecked == nil || plan.AsOf.Sub(*r.TagsChecked) > 10*time.Minute {
		t.Errorf("the tags were checked at %s", r.TagsChecked)
	}
	if got := fmt.Sprint(numbers(r.Delete), numbers(r.Keep), numbers(r.Unknown)); got != "[1 4 10 11 15] [2 3 12 13 14] []" {
		t.Errorf("to delete, keep, unknown: %s", got)
	}
	commands := ask(cli.ExitOK, "a.example.com/team", "--commands", "crane")
	index, listed := strings.Index(commands, "crane delete a.example.com/team/app@"+pruneDigest(11)), strings.Index(commands, "crane delete a.example.com/team/app@"+pruneDigest(10))
	if index < 0 || listed < index || strings.Count(commands, "crane delete ") != 5 {
		t.Errorf("the commands are\n%s", commands)
	}
	if out := ask(cli.ExitSome, "b.example.com"); strings.Contains(out, "REPOSITORY") {
		t.Errorf("of another registry it says %s", out)
	}
	if got := p.stored(); !slices.Equal(got, before) {
		t.Errorf("stored are %v, before were %v", got, before)
	}
	// Who may not delete images is not told what the server would say to that.
	p.become("image-viewer")
	if out := ask(cli.ExitSome, "a.example.com", "--commands", "crane"); strings.Contains(out, "crane delete") || !strings.Contains(out, ": 0 to delete, ") || strings.Contains(out, " 0 unknown") {
		t.Errorf("what cannot be decided is not unknown:\n%s", out)
	}
	for _, bad := range [][]string{nil, {"a.example.com", "--confirm"}, {"a.example.com", "-o", "name"}, {"a.example.com", "--commands", "rm"}, {"a.example.com", "--commands", "crane", "-o", "json"}, {"a b"}} {
		ask(cli.ExitUsage, bad...)
	}
}

// What has pruning disabled is kept, and what it lists, also if both were marked before. --undo
// takes its mark off as any other.
func TestPruneDisabled(t *testing.T) {
	t.Parallel()
	p := newPruning(t, "")
	p.create(1)
	p.create(2)
	p.create(3)
	p.create(4)
	p.create(11, 3, 4) // the digests of what it lists come before and after its own
	past := time.Now().Add(-time.Second).UTC().Format(time.RFC3339)
	for _, n := range []int{1, 2, 3, 4, 11} {
		p.mark(n, past)
	}
	annotate := func(n int, value any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation.Prune: value}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.images.Patch(t.Context(), pruneDigest(n), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	annotate(1, annotation.PruneDisabled)
	annotate(11, "false") // by somebody who did not look it up
	got, out := p.run(cli.ExitOK, "--confirm")
	p.want("disabled", got, map[int]string{1: "unmark disabled", 2: "delete", 3: "unmark listed", 4: "unmark listed", 11: "unmark disabled"})
	if !strings.Contains(out, "tidewaiter.dev/prune: disabled") {
		t.Errorf("it says %s", out)
	}
	annotate(1, nil)
	got, _ = p.run(cli.ExitOK, "--confirm")
	p.want("enabled again", got, map[int]string{1: "mark", 3: "keep listed", 4: "keep listed", 11: "keep disabled"})
	if left, want := p.stored(), []int{1, 3, 4, 11}; !slices.Equal(left, want) {
		t.Errorf("left are %v, want %v", left, want)
	}
}

// While a cluster has not been read, nothing is pruned, and the exit code says so.
func TestPruneKeepsWhatIsUnknown(t *testing.T) {
	t.Parallel()
	away := filepath.Join(t.TempDir(), "kubeconfig")
	to := clientcmdapi.NewConfig()
	to.Clusters["away"], to.Contexts["away"], to.CurrentContext = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}, &clientcmdapi.Context{Cluster: "away"}, "away"
	if err := clientcmd.WriteToFile(*to, away); err != nil {
		t.Fatal(err)
	}
	p := newPruning(t, servertest.WriteConfig(t, "clusters:\n- {name: away, kubeconfig: "+away+"}\n"))
	p.create(1)
	p.create(2)
	p.mark(2, "2001-01-01T00:00:00Z")
	got, out := p.run(cli.ExitSome, "--confirm")
	p.want("a cluster is away", got, map[int]string{1: "keep unknown", 2: "unmark unknown"})
	if !strings.Contains(out, "it is unknown whether pods use it: the pods of cluster away are not known yet") || len(p.stored()) != 2 {
		t.Errorf("%s", out)
	}
	// Whoever deletes by the names that prune prints must not delete what is kept.
	p.mark(2, "2001-01-01T00:00:00Z")
	for flag, want := range map[string]int{"--kept=false": 0, "--kept": 2} {
		code, stdout, stderr := tidewaiter(t, "prune", "-o", "name", flag, "--keep-younger-than", "0s", "--kubeconfig", p.kubeconfig)
		if code != cli.ExitSome || strings.Count(stdout, "\n") != want {
			t.Errorf("%s: %d %s%s", flag, code, stdout, stderr)
		}
	}
	code, stdout, stderr := tidewaiter(t, "prune", "--plan", "registry", "a.example.com", "--keep-younger-than", "0s", "--kubeconfig", p.kubeconfig, "--commands", "crane")
	if code != cli.ExitSome || strings.Contains(stdout, "crane delete") || !strings.Contains(stdout, "0 to delete, 0 to keep, 2 unknown") {
		t.Errorf("a plan for the registry: %d %s%s", code, stdout, stderr)
	}
}

// While workloads of a cluster may not be listed nothing is pruned, unless somebody says so. What
// is known to be needed stays in any case, and so does what the configuration's kinds need.
func TestPruneWithoutWorkloads(t *testing.T) {
	t.Parallel()
	cluster := clustertest.New(t)
	cluster.Serve("argoproj.io/v1alpha1", "Rollout")
	for kind, n := range map[string]int{"apps/v1 Deployment": 1, "argoproj.io/v1alpha1 Rollout": 2} {
		gv, kind, _ := strings.Cut(kind, " ")
		cluster.Set(&unstructured.Unstructured{Object: map[string]any{
			"apiVersion": gv, "kind": kind, "metadata": map[string]any{"namespace": "team", "name": "app"},
			"spec": map[string]any{"replicas": int64(0), "template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"image": "a.example.com/team/app@" + pruneDigest(n)}}}}},
		}})
	}
	cluster.Forbid("cronjobs")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, cluster.Kubeconfig(), 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPruning(t, servertest.WriteConfig(t, "clusters:\n- {name: prod, kubeconfig: "+kubeconfig+"}\nworkloads:\n- {group: argoproj.io, resource: rollouts, path: spec.template}\n"))
	for n := 1; n <= 4; n++ {
		p.create(n)
	}
	p.mark(3, "2001-01-01T00:00:00Z")
	var got map[int]string
	var out string
	want := map[int]string{1: "keep needed", 2: "keep needed", 3: "unmark workloads", 4: "keep workloads"}
	says := []string{"workload prod/team/deployments/app needs it", "workload prod/team/rollouts/app needs it", "the cronjobs.batch of cluster prod are not known: listing them"}
	// Poll until everything is known except what may not be listed. The decisions are the same a
	// little earlier, when other kinds are not known yet either.
	_ = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		got, out = p.run(cli.ExitSome)
		return maps.Equal(got, want) && !slices.ContainsFunc(says, func(s string) bool { return !strings.Contains(out, s) }), nil
	})
	p.want("cronjobs may not be listed", got, want)
	for _, s := range says {
		if !strings.Contains(out, s) {
			t.Errorf("%q is not said: %s", s, out)
		}
	}
	got, _ = p.run(cli.ExitOK, "--without-workloads", "--confirm")
	p.want("without workloads", got, map[int]string{1: "keep needed", 2: "keep needed", 3: "delete", 4: "mark"})
	if stored := p.stored(); !slices.Equal(stored, []int{1, 2, 4}) {
		t.Errorf("stored are %v", stored)
	}
}

func TestPruneIsMisused(t *testing.T) {
	for _, args := range [][]string{{"--grace=-1h"}, {"--keep-tag-revisions=-1"}, {"--verdict=Maybe"}, {"--verdict="}, {"-o", "xml"}, {"REF"}} {
		if code, stdout, _ := tidewaiter(t, append([]string{"prune", "--data-dir", t.TempDir()}, args...)...); code != cli.ExitUsage || stdout != "" {
			t.Errorf("%q: %d %s", args, code, stdout)
		}
	}
}
