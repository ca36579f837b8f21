package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/tidewaiter/tidewaiter/cmd/internal/meanings"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// The paths of the pods of the followed clusters, and of these.
var (
	clusterPodsPath = "/apis/" + answers.GroupVersion.String() + "/clusterpods"
	clustersPath    = "/apis/" + answers.GroupVersion.String() + "/clusters"
)

type podsOptions struct {
	clientOptions
	output        cli.Output
	local         localOptions
	cluster       string
	allNamespaces bool
	outdated      string // a value of the field "outdated"
	verified      string // a verdict
	reason        string // why a verdict is so
	watch         watchFlag
}

func newPodsCommand() *cobra.Command {
	o := &podsOptions{}
	cmd := &cobra.Command{
		Use:   "pods [REF]",
		Short: "List what pods run, a row for each pod; images has a row for each image",
		Long: `List the pods that run an image, or without REF all pods: those of the clusters that a
server follows ("clusters" in its configuration), and its own, which are the cluster
"local". Each row has cluster, namespace and pod, container, the reference in the pod's
spec, the digest that runs, the digest that its tag leads to now if it differs (Unknown
if it may), the verdict for that reference, and the age. An image volume counts as a
container, volume/NAME.

` + referenceHelp + `
Here a repository without a tag stands for all its images. A tag lists the pods that
name it, whatever they run, and the pods that run its current image under another name.
A digest lists the pods that run it, an index that contains it, or an image in it, and
the pods that have not started and whose tag leads to it.

--outdated lists only pods that name a tag but run a different image than the tag
leads to now; without REF, those of all images. --outdated=unknown lists the pods that
may: the tag is not imported or gone from its registry, or nobody knows what runs. -o wide
says why. --outdated=false lists the others.

--verified lists only pods with a container whose image has that verdict under the
name in the pod's spec, and --reason those whose verdict has that reason.

kubectl shows the same: kubectl get clusterpods --field-selector
image=REF,outdated=true,verified=VERDICT,reason=REASON.

` + localHelp + `

The exit code is 0, also if there are no such pods; 1 if nothing is known about REF; and
2 if it is unknown whether there are any: REF is ambiguous, no cluster is followed, a
cluster was not read, or --outdated lists none and --outdated=unknown does.`,
		Example: `  # Which pods run an image of this repository?
  tidewaiter pods registry.example.com/team/app

  # Which pods run this digest, under any name?
  tidewaiter pods 2bdcd6f6c8a7

  # What does a namespace of a cluster run?
  tidewaiter pods --cluster prod -n team

  # Watch a rollout
  tidewaiter pods --watch registry.example.com/team/app

  # Which pods have not been restarted since the tag moved?
  tidewaiter pods --outdated registry.example.com/team/app:v1`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"", "true", "false", "unknown"}, o.outdated) {
				return cli.Misuse(fmt.Errorf("--outdated=%s: it is true, false or unknown", o.outdated), "tidewaiter pods --outdated")
			}
			if words := meanings.Words(meanings.Verdict); o.verified != "" && !slices.Contains(words, o.verified) {
				return unknownWord(o.verified, words)
			}
			if words := meanings.Words(meanings.Reason); o.reason != "" && !slices.Contains(words, o.reason) {
				return unknownWord(o.reason, words)
			}
			return o.run(cmd, args)
		},
	}
	o.output.AddFlag(cmd, "a table with the main columns", append([]string{cli.Wide}, cli.ListFormats...)...)
	cmd.ValidArgsFunction = o.completeReferences(1)
	o.local.addFlag(cmd, "list the pods of this namespace (default: of all")
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list the pods of all namespaces, as without -n")
	cmd.Flags().StringVar(&o.cluster, "cluster", "", "list the pods of this followed cluster; local is the server's own")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	cmd.Flags().StringVar(&o.outdated, "outdated", "", "list only pods that run a different image than their tag leads to now (true, false, unknown)")
	cmd.Flags().Lookup("outdated").NoOptDefVal = "true"
	cmd.Flags().StringVar(&o.verified, "verified", "", "list only pods with a container of this verdict")
	cli.Complete(cmd, "verified", meanings.Words(meanings.Verdict)...)
	cmd.Flags().StringVar(&o.reason, "reason", "", "list only pods with a container whose verdict has this reason")
	cli.Complete(cmd, "reason", meanings.Words(meanings.Reason)...)
	o.watch.addFlag(cmd, "list the pods, and then what changes")
	o.addFlags(cmd)
	o.completeNames(cmd)
	return cmd
}

func (o *podsOptions) run(cmd *cobra.Command, args []string) error {
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	o.local.apply(l, &o.clientOptions)
	ctx, selected := cmd.Context(), fields.Set{}
	if l.namespace != "" {
		selected["spec.namespace"] = l.namespace
	}
	if o.cluster != "" {
		selected["spec.cluster"] = o.cluster
	}
	var about *found
	var absent error // an image that is not imported may run all the same
	if len(args) == 1 {
		about, err = l.find(ctx, args[0], "")
		if l.isLocal {
			return o.runLocal(cmd, l, args, err)
		}
		if err != nil {
			var exit *cli.Exit
			if about == nil || !errors.As(err, &exit) || exit.Code != exitAbsent || about.Running == nil || len(about.Running.Selectors) == 0 {
				return err
			}
			absent = err
		}
		if about.Running == nil {
			return l.withoutPods(about)
		}
		selected["image"] = about.Running.Selectors[0]
	}
	for field, value := range map[string]string{"outdated": o.outdated, "verified": o.verified, "reason": o.reason} {
		if value != "" {
			selected[field] = value
		}
	}
	list := func() (*metav1.Table, error) {
		return cli.GetTable(ctx, l.Config, clusterPodsPath, url.Values{"fieldSelector": {selected.AsSelector().String()}, "includeObject": {string(metav1.IncludeObject)}})
	}
	if o.watch {
		return o.runWatch(cmd, l, list)
	}
	table, err := list()
	if apierrors.IsForbidden(err) && l.local != "" {
		return o.runLocal(cmd, l, args, err)
	}
	if err != nil {
		return err
	}
	if !o.output.ForPeople() {
		if err := o.output.Print(cmd.OutOrStdout(), podsDocument(table)); err != nil {
			return err
		}
	}
	switch {
	case len(table.Rows) == 0:
		if o.cluster != "" {
			if err := l.noUses(ctx, o.cluster); err != nil {
				return err
			}
		}
		what := "an image"
		if o.outdated != "" {
			what = "an outdated image"
		}
		if err := cmp.Or(l.noPods(cmd, about, what), about.orElse(absent)); err != nil {
			return err
		}
		if o.outdated == "true" {
			selected["outdated"] = "unknown"
			if table, err = list(); err != nil || len(table.Rows) > 0 {
				return cmp.Or(err, mayBeOutdated(podsDocument(table).Names))
			}
		}
		return noResources(cmd, "")
	case o.output.Wide():
		return cli.WriteTable(cmd.OutOrStdout(), table, true)
	case o.output.ForPeople():
		return podsTable(table, false).Print(cmd.OutOrStdout())
	}
	return nil
}

// runWatch lists the pods, and then what changes.
func (o *podsOptions) runWatch(cmd *cobra.Command, l *looker, list func() (*metav1.Table, error)) error {
	if !o.output.ForPeople() || o.output.Wide() {
		return errWatchIsTable
	}
	rows := &rowsWatch{out: cmd.OutOrStdout(), keys: 2}
	return l.eachChange(cmd.Context(), []string{clusterPodsPath, imagesPath, imageTagsPath}, func() error {
		table, err := list()
		if err != nil {
			return err
		}
		return rows.show(podsTable(table, true))
	})
}

// podsDocument has each of the pods of a table once: it has a row for each container.
func podsDocument(table *metav1.Table) cli.Document {
	list := &metav1.List{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: "ClusterPodList"}, Items: []runtime.RawExtension{}}
	d := cli.Document{Whole: list}
	seen := map[any]bool{}
	for _, row := range table.Rows {
		if name := row.Cells[0]; !seen[name] {
			seen[name] = true
			list.Items = append(list.Items, row.Object)
			d.Names = append(d.Names, fmt.Sprintf("clusterpod.%s/%v", answers.GroupVersion.Group, name))
		}
	}
	d.Items = cli.ItemsOf(list.Items)
	return d
}

// podsTable is a table of pods in the width of a terminal: without the columns that say why
// something does not run or is not imported, unless a pod has such a reason, or all columns are
// wanted.
func podsTable(table *metav1.Table, all bool) cli.Table {
	t := cli.Table{Rows: make([][]string, len(table.Rows))}
	for i, column := range table.ColumnDefinitions {
		reason := column.Name == "Waiting" || column.Name == "Not Imported"
		if column.Priority > 0 || reason && !all && !slices.ContainsFunc(table.Rows, func(row metav1.TableRow) bool { return row.Cells[i] != tablecells.None }) {
			continue
		}
		name := strings.ToUpper(column.Name)
		if reason {
			name += "…"
		}
		t.Columns = append(t.Columns, name)
		for r, row := range table.Rows {
			t.Rows[r] = append(t.Rows[r], strings.TrimPrefix(fmt.Sprint(row.Cells[i]), "sha256:"))
		}
	}
	return t
}

// withoutPods is the error if the caller may not see what runs.
func (l *looker) withoutPods(f *found) error {
	for _, u := range f.Unknowns {
		if u.Part == "running" {
			return cli.Refused(u.Reason)
		}
	}
	return fmt.Errorf("%s does not know which pods run %s", l.Server.destination(), f.name())
}

// podContainer is a container of a ClusterPod: the reference that the pod names, and the digest
// that runs.
type podContainer struct{ Image, Digest string }

// noPods is the error if it is unknown whether a pod runs an image; about is nil for any image,
// which messages call what.
func (l *looker) noPods(cmd *cobra.Command, about *found, what string) error {
	if about == nil {
		// no image has this digest: the answer says what is not known of pods
		all, err := l.ask(cmd.Context(), answers.Question{Reference: "sha256:" + strings.Repeat("0", 64)})
		if err != nil {
			return err
		}
		about = &found{Answer: all[0]}
	} else {
		what = about.name()
	}
	if about.Running != nil && about.Running.Complete {
		return nil
	}
	if slices.Contains(about.Unknowns, answers.UnknownPart{Part: "running", Reason: answers.ErrNotStarted.Error()}) {
		where := "tidewaiter pods"
		if about.Meaning.Repository != "" {
			where += " " + about.Meaning.Repository
		}
		return &cli.Exit{Code: cli.ExitNone, Err: cli.WithHint(fmt.Errorf("no pod is known to run %s, but %w", what, answers.ErrNotStarted), "%s, for the pods that name its tags", where)}
	}
	return &cli.Exit{Code: cli.ExitNone, Err: cli.WithHint(fmt.Errorf("no known pod runs %s, but not all pods are known", what), "kubectl get clusters; without clusters, tidewaiter follow CONTEXT names one in the server's configuration; set ownPodsOnly: true there if no cluster runs its images")}
}

// mayBeOutdated is the error if no pod is known to be outdated, and some may be.
func mayBeOutdated(pods []string) error {
	return &cli.Exit{Code: cli.ExitNone, Err: cli.WithHint(fmt.Errorf("no pod is known to be outdated, but of %s that is not known", tablecells.Quantity(len(pods), "pod")), "tidewaiter pods --outdated=unknown -o wide")}
}

// noResources says what kubectl says of an empty list.
func noResources(cmd *cobra.Command, namespace string) error {
	if namespace != metav1.NamespaceAll {
		namespace = " in " + namespace + " namespace."
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), "No resources found"+namespace)
	return err
}

// imagesVerb is the verb that is also the plugin kubectl-images.
const imagesVerb = "images"

type imagesOptions struct {
	clientOptions
	output        cli.Output
	cluster       string
	namespace     string
	allNamespaces bool
	at            atFlag
	watch         watchFlag
}

func newImagesCommand() *cobra.Command {
	o := &imagesOptions{}
	cmd := &cobra.Command{
		Use:   imagesVerb,
		Short: "List what pods run, a row for each image, and who signed it; pods has a row for each pod",
		Long: `List the images that the pods of a namespace run: the reference in the pods' specs,
the digest that runs (that of the reference until a node reports it), the verdict for that reference,
how many pods run it, and who signed it, or why nobody is known to have.

The pods are those that kubectl get pods lists, with your own rights. With --cluster
they are those of a cluster that the server follows, and with -A, without --cluster,
all that the server knows: its own, and those of the clusters that it follows. In a
namespace whose pods you may list, you need no right to read images.

-o json is a List: each item has the namespace, the image as the pods name it, the
digest that runs, the number of pods, and the answer about it as in a ReferenceReview.

` + atHelp + `
It lists the pods of the cluster that --cluster names, or else the server's own, and
shows how many pods ran an image at the same time at most.

The exit code is 0, also if no pod runs an image, and 2 if what they run is unknown.
The verdicts do not change it: tidewaiter verify is for that.`,
		Example: `  # Of the namespace of the kubeconfig's context; also: kubectl images
  tidewaiter images

  # All that is known to run anywhere
  tidewaiter images -A

  # Of all namespaces of a cluster that the server follows
  tidewaiter images --cluster prod -A

  # What changes while a new version is rolled out?
  tidewaiter images -A --watch

  # What did they run last Tuesday?
  tidewaiter images --cluster prod -A --at "2026-11-24 16:45"`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "list what the pods of this followed cluster run")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the pods (default: the namespace of the kubeconfig's context)")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list what the pods of all namespaces run")
	o.at.addFlag(f, "list what they ran at this time")
	o.watch.addFlag(cmd, "list what they run, and then what changes")
	cmd.MarkFlagsMutuallyExclusive("at", "watch")
	o.output.AddFlag(cmd, "a table", cli.ListFormats...)
	o.addFlags(cmd)
	o.completeNames(cmd)
	return cmd
}

// Bounds of images.
const (
	maxUses    = 10_000 // images of one table
	usesAtOnce = 100    // questions of one review
)

// imageUse is an image as pods of a namespace name it.
type imageUse struct {
	namespace string
	image     string // the whole reference, or what is none
	digest    string // what runs; empty until a node tells
}

// compareUses has uses in the order of a table.
func compareUses(a, b imageUse) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.image, b.image), cmp.Compare(a.digest, b.digest))
}

// useCounts has the pods of each use, by number in the order in which they were read.
type useCounts struct {
	pods map[imageUse][]int
	read int
}

// add counts the containers of a pod, each image once.
func (c *useCounts) add(namespace string, containers []podContainer) error {
	c.read++
	for _, container := range containers {
		use := imageUse{namespace, container.Image, container.Digest}
		if ref := podimages.Parse(container.Image); ref.Repository != "" {
			use.image = ref.String()
		}
		if of := c.pods[use]; len(of) == 0 || of[len(of)-1] != c.read {
			c.pods[use] = append(of, c.read)
		}
	}
	if len(c.pods) > maxUses {
		return cli.WithHint(fmt.Errorf("the pods run more than %d images", maxUses), "-n lists only the images of one namespace")
	}
	return nil
}

// move counts the pods of a use for another one.
func (c *useCounts) move(from, to imageUse) {
	pods := append(c.pods[to], c.pods[from]...)
	slices.Sort(pods)
	c.pods[to] = slices.Compact(pods)
	delete(c.pods, from)
}

func newUseCounts() *useCounts { return &useCounts{pods: map[imageUse][]int{}} }

// join counts pods that have not started among those that run what their reference leads to, if the
// answer is the same: else the table would have two equal rows. A pod that does both counts once.
func (c *useCounts) join(uses []imageUse, all []answers.Answer) (joined []imageUse, answered []answers.Answer) {
	at := map[imageUse]int{}
	for i, use := range uses {
		at[use] = i
	}
	for i, use := range uses {
		started := imageUse{use.namespace, use.image, all[i].Meaning.Digest}
		j, is := at[started]
		if use.digest == "" && started.digest != "" && is {
			verdict, why := usedVerdict(&all[i])
			if v, w := usedVerdict(&all[j]); v == verdict && w == why {
				c.move(use, started)
				continue
			}
		}
		joined, answered = append(joined, use), append(answered, all[i])
	}
	return joined, answered
}

func (o *imagesOptions) run(cmd *cobra.Command) error {
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	namespace := o.namespace
	switch {
	case o.allNamespaces:
		namespace = metav1.NamespaceAll
	case namespace == "":
		namespace = o.contextNamespace()
	}
	l.local = namespace
	if at, ok, err := o.at.time(time.Now()); err != nil {
		return err
	} else if ok {
		return o.runThen(cmd, l, namespace, at)
	}
	if o.watch {
		return o.runWatch(cmd, l, namespace)
	}
	var unknown error // whether pods run anything
	counts, everywhere, err := o.count(cmd.Context(), l, namespace)
	switch {
	case apierrors.IsNotFound(err):
		return cli.WithHint(fmt.Errorf("%s has no pods: it is not a tidewaiter server, or it is one inside a cluster", l.Server.destination()), "kubectl config current-context shows the context in use; a cluster's own context shows its pods")
	case err != nil:
		return err
	}
	if len(counts.pods) == 0 {
		if err := l.noUses(cmd.Context(), o.cluster); err != nil {
			return err
		}
		switch {
		case everywhere:
			unknown = l.noPods(cmd, nil, "an image")
		case o.cluster == "":
			l.noteFollowed(cmd.Context())
		}
		if o.output.ForPeople() {
			if unknown != nil {
				return unknown
			}
			return noResources(cmd, namespace)
		}
	}
	uses, all, err := l.answersOf(cmd.Context(), counts)
	if err != nil {
		return err
	}
	if o.output.ForPeople() {
		return usesTable(uses, counts.pods, all, namespace == metav1.NamespaceAll).Print(cmd.OutOrStdout())
	}
	list := usedImages{metav1.TypeMeta{APIVersion: "v1", Kind: "List"}, make([]usedImage, len(all))}
	d := cli.Document{}
	for i := range all {
		list.Items[i] = usedImage{uses[i].namespace, uses[i].image, uses[i].digest, len(counts.pods[uses[i]]), all[i]}
		d.Names = append(d.Names, imageName(cmp.Or(uses[i].digest, all[i].Meaning.Digest, uses[i].image)))
	}
	d.Whole, d.Items = list, cli.ItemsOf(list.Items)
	if err := o.output.Print(cmd.OutOrStdout(), d); err != nil {
		return err
	}
	return unknown
}

// runWatch lists the images, and then what changes.
func (o *imagesOptions) runWatch(cmd *cobra.Command, l *looker, namespace string) error {
	pods := clusterPodsPath
	switch {
	case !o.output.ForPeople():
		return errWatchIsTable
	case o.cluster == "" && !o.allNamespaces:
		pods = "/api/v1/namespaces/" + namespace + "/pods"
	}
	rows := &rowsWatch{out: cmd.OutOrStdout(), keys: 2}
	if namespace == metav1.NamespaceAll {
		rows.keys = 3
	}
	return l.eachChange(cmd.Context(), []string{pods, imagesPath, imageTagsPath}, func() error {
		counts, _, err := o.count(cmd.Context(), l, namespace)
		if err != nil {
			return err
		}
		if len(counts.pods) == 0 {
			if err := l.noUses(cmd.Context(), o.cluster); err != nil {
				return err
			}
		}
		uses, all, err := l.answersOf(cmd.Context(), counts)
		if err != nil {
			return err
		}
		return rows.show(usesTable(uses, counts.pods, all, namespace == metav1.NamespaceAll))
	})
}

// usedImages are the images that pods run, as -o json prints them.
type usedImages struct {
	metav1.TypeMeta `json:",inline"`
	Items           []usedImage `json:"items"`
}

// usedImage is an image that pods of a namespace run, with the answer about it.
type usedImage struct {
	Namespace string `json:"namespace"`
	Image     string `json:"image"`
	Digest    string `json:"digest,omitempty"`
	Pods      int    `json:"pods"`
	answers.Answer
}

// count counts what the pods run that are asked about. everywhere is true if these are all that the
// server knows.
func (o *imagesOptions) count(ctx context.Context, l *looker, namespace string) (counts *useCounts, everywhere bool, err error) {
	if o.cluster != "" || o.allNamespaces {
		counts, err = l.usesOfCluster(ctx, o.cluster, namespace)
	}
	// who may not see the pods of clusters, or asks a server that follows none, asks about the pods
	// that kubectl lists
	if o.cluster == "" && (!o.allNamespaces || apierrors.IsNotFound(err) || apierrors.IsForbidden(err)) {
		counts, err = l.usesOfPods(ctx, namespace)
		return counts, false, err
	}
	return counts, o.cluster == "", err
}

// runThen lists what ran at a time.
func (o *imagesOptions) runThen(cmd *cobra.Command, l *looker, namespace string, at time.Time) error {
	config, notes := withWarnings(l.Config)
	all, err := allRuns(cmd.Context(), config, namespace, fields.Set{"cluster": cmp.Or(o.cluster, usage.Local), "at": at.UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	switch {
	case !o.output.ForPeople():
		err = o.output.Print(cmd.OutOrStdout(), ranDocument(all))
	case len(all) > 0:
		err = ranThen(all, at, namespace == metav1.NamespaceAll).Print(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	return notes.end(cmd, len(all), true, func() error {
		if o.output.ForPeople() {
			return noResources(cmd, namespace)
		}
		return nil
	})
}

// usesOfPods counts what the pods of a namespace run, or of all, as the API shows them that the
// kubeconfig names.
func (l *looker) usesOfPods(ctx context.Context, namespace string) (*useCounts, error) {
	client, err := typedcorev1.NewForConfig(l.Config)
	if err != nil {
		return nil, err
	}
	counts, known := newUseCounts(), map[podContainer]string{}
	err = pages.Each(ctx, metav1.ListOptions{}, client.Pods(namespace).List, func(list *corev1.PodList) error {
		for i := range list.Items {
			var containers []podContainer
			podimages.Containers(&list.Items[i], func(_, image string, status corev1.ContainerStatus) {
				c := podContainer{image, podimages.Manifest(image, status.ImageID)}
				if id := podimages.ID(image, status.ImageID); c.Digest == "" && id != "" {
					c.Digest = l.identify(ctx, podContainer{image, id}, known)
				}
				containers = append(containers, c)
			})
			if err := counts.add(list.Items[i].Namespace, containers); err != nil {
				return err
			}
		}
		return nil
	})
	return counts, err
}

// identify returns the digest of the image that a container runs, if its runtime reports the digest
// of a manifest or of a config. It returns "" if no image that the caller may see has this digest.
// It remembers results.
func (l *looker) identify(ctx context.Context, c podContainer, known map[podContainer]string) string {
	if digest, asked := known[c]; asked {
		return digest
	}
	digest, in := "", podimages.Parse(c.Image).Bare()
	if _, err := l.client.Get(ctx, c.Digest, metav1.GetOptions{}); err == nil {
		digest = c.Digest
	} else if list, err := l.client.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(selectors.Config, c.Digest).String(), Limit: maxIdentified}); err == nil {
		for i := range list.Items {
			image := &list.Items[i]
			if digest == "" || slices.Contains(annotation.In(image.Annotations, image.DockerImageReference, image.Name), in) {
				digest = image.Name
			}
		}
	}
	known[c] = digest
	return digest
}

// maxIdentified bounds how many images with one config, and how many digests without a known image,
// are read.
const maxIdentified = 20

// usesOfCluster is usesOfPods for a cluster that the server follows; "" is all that it knows.
func (l *looker) usesOfCluster(ctx context.Context, cluster, namespace string) (*useCounts, error) {
	terms := fields.Set{}
	if cluster != "" {
		terms["spec.cluster"] = cluster
	}
	if namespace != metav1.NamespaceAll {
		terms["spec.namespace"] = namespace
	}
	client, err := pathClient(l.Config)
	if err != nil {
		return nil, err
	}
	counts := newUseCounts()
	list := func(ctx context.Context, options metav1.ListOptions) (*followedPods, error) {
		// DoRaw would drop the server's warnings of pods that are not known.
		raw, err := client.Get().AbsPath(clusterPodsPath).Param("fieldSelector", terms.AsSelector().String()).Param("limit", fmt.Sprint(options.Limit)).Param("continue", options.Continue).Do(ctx).Raw()
		page := &followedPods{}
		if err == nil {
			err = json.Unmarshal(raw, page)
		}
		return page, err
	}
	err = pages.Each(ctx, metav1.ListOptions{Limit: pages.Size}, list, func(page *followedPods) error {
		for _, pod := range page.Items {
			if err := counts.add(pod.Spec.Namespace, pod.Spec.Containers); err != nil {
				return err
			}
		}
		return nil
	})
	if apierrors.IsForbidden(err) && namespace != metav1.NamespaceAll {
		return l.localUses(ctx, cluster, err)
	}
	return counts, err
}

// followedPods are what is needed of a page of ClusterPods, whose package has the clients of
// clusters, too.
type followedPods struct {
	metav1.ListMeta `json:"metadata"`
	Items           []struct {
		Spec struct {
			Namespace  string
			Containers []podContainer
		}
	}
}

// answersOf asks about each counted use. Some runtimes report the digest of a config in place of a
// manifest's: such a use counts for the image that has the config.
func (l *looker) answersOf(ctx context.Context, counts *useCounts) ([]imageUse, []answers.Answer, error) {
	uses := slices.SortedFunc(maps.Keys(counts.pods), compareUses)
	all, err := l.askUses(ctx, uses)
	if err != nil {
		return nil, nil, err
	}
	moved, known := false, map[podContainer]string{}
	for i, use := range uses {
		if use.digest == "" || all[i].State != answers.NotImported || len(known) == maxIdentified {
			continue
		}
		if is := l.identify(ctx, podContainer{use.image, use.digest}, known); is != "" {
			counts.move(use, imageUse{use.namespace, use.image, is})
			moved = true
		}
	}
	if moved {
		uses = slices.SortedFunc(maps.Keys(counts.pods), compareUses)
		if all, err = l.askUses(ctx, uses); err != nil {
			return nil, nil, err
		}
	}
	uses, all = counts.join(uses, all)
	return uses, all, nil
}

// askUses asks about each use: its reference or, where that leads elsewhere than to what runs, the
// digest in its repository.
func (l *looker) askUses(ctx context.Context, uses []imageUse) ([]answers.Answer, error) {
	all := make([]answers.Answer, 0, len(uses))
	for part := range slices.Chunk(uses, usesAtOnce) {
		questions := make([]answers.Question, len(part))
		for i, use := range part {
			questions[i] = answers.Question{Reference: use.image, Namespace: use.namespace, Runs: use.digest}
		}
		found, err := l.ask(ctx, questions...)
		if err != nil {
			return nil, err
		}
		var other []int
		questions = questions[:0]
		for i, use := range part {
			if use.digest != "" && !leadsTo(&found[i].Meaning, use.digest) {
				other = append(other, i)
				questions = append(questions, answers.Question{Reference: podimages.Parse(use.image).Bare().WithDigest(use.digest).String(), Namespace: use.namespace})
			}
		}
		if len(other) > 0 {
			again, err := l.ask(ctx, questions...)
			if err != nil {
				return nil, err
			}
			for i, at := range other {
				verdict := found[at].Verdict // for what the pod names
				found[at] = again[i]
				found[at].Verdict, found[at].Verdicts = verdict, nil
			}
		}
		all = append(all, found...)
	}
	return all, nil
}

// leadsTo reports whether a reference leads to an image, or to an index that lists it.
func leadsTo(m *answers.Meaning, digest string) bool {
	return m.Digest == digest || slices.ContainsFunc(m.Platforms, func(p answers.PlatformImage) bool { return p.Digest == digest })
}

// usedVerdict returns the verdict for the reference that pods name, and its signers or its reason.
func usedVerdict(a *answers.Answer) (verdict, why string) {
	verdict, why = answers.VerdictCell(a), a.Message
	if v := a.Verdict; v != nil {
		if why = strings.Join(v.Signers, ", "); why == "" && v.Verified != verdicts.NoPolicy {
			why = v.Message
		}
	} else if len(a.Verdicts) == 0 {
		verdict = verdicts.VerifiedUnknown
	}
	return verdict, why
}

// usesTable is the table of images.
func usesTable(uses []imageUse, pods map[imageUse][]int, all []answers.Answer, namespaces bool) cli.Table {
	t := cli.Table{Columns: []string{"IMAGE", "DIGEST", "VERDICT", "PODS", "SIGNER OR REASON…"}}
	for i, use := range uses {
		a := &all[i]
		verdict, why := usedVerdict(a)
		row := []string{use.image, strings.TrimPrefix(cmp.Or(reference.ShortDigest(cmp.Or(use.digest, a.Meaning.Digest)), tablecells.Unknown), "sha256:"), verdict, fmt.Sprint(len(pods[use])), why}
		if namespaces {
			row = append([]string{use.namespace}, row...)
		}
		t.Rows = append(t.Rows, row)
	}
	if namespaces {
		t.Columns = append([]string{"NAMESPACE"}, t.Columns...)
	}
	return t
}

// noteFollowed says that clusters are followed whose pods were not asked about.
func (l *looker) noteFollowed(ctx context.Context) {
	var others []string
	l.someNames(ctx, clustersPath, "", func(name string) {
		if name != usage.Local {
			others = append(others, name)
		}
	})
	if len(others) > 0 {
		fmt.Fprintf(l.notes, "Note: only the server's own pods were asked about; it also follows %s: --cluster %s\n", printable.Line(strings.Join(others, ", "), 0), printable.Line(others[0], 0))
	}
}

// noUses is the error if it is unknown what the pods of a cluster run; cluster is "" for those that
// kubectl lists.
func (l *looker) noUses(ctx context.Context, cluster string) error {
	if cluster == "" {
		return nil
	}
	followed, err := cli.GetTable(ctx, l.Config, clustersPath, nil)
	if err != nil {
		followed = &metav1.Table{} // a caller who may not see clusters does not hear of them
	}
	var names []string
	for _, row := range followed.Rows {
		name := fmt.Sprint(row.Cells[0])
		names = append(names, name)
		if name == cluster && row.Cells[1] != string(metav1.ConditionTrue) {
			return cli.WithHint(fmt.Errorf("the pods of %s are not known yet", cluster), "kubectl get clusters says why")
		}
	}
	return l.notAmong(names, cluster)
}

// notAmong is the error if a cluster is not one of those that the server follows.
func (l *looker) notAmong(followed []string, cluster string) error {
	if slices.Contains(followed, cluster) {
		return nil
	}
	return cli.WithHint(fmt.Errorf("%s does not follow a cluster %s", l.Server.destination(), cluster), "it follows: %s", cmp.Or(strings.Join(followed, ", "), "none"))
}

// noRuns is the error if a cluster of which nothing is recorded is not followed either, as if its
// name is misspelt. It is nil for "", and if the caller may not list clusters.
func (l *looker) noRuns(ctx context.Context, cluster string) error {
	followed, err := cli.GetTable(ctx, l.Config, clustersPath, nil)
	if cluster == "" || err != nil {
		return nil
	}
	var names []string
	for _, row := range followed.Rows {
		names = append(names, fmt.Sprint(row.Cells[0]))
	}
	return l.notAmong(names, cluster)
}
