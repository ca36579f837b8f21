package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	tablecells "github.com/tidewaiter/tidewaiter/imageapi/table"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// The paths of the pods of the followed clusters, and of these.
var (
	clusterPodsPath = "/apis/" + answers.GroupVersion.String() + "/clusterpods"
	clustersPath    = "/apis/" + answers.GroupVersion.String() + "/clusters"
)

type podsOptions struct {
	clientOptions
	output   cli.Output
	outdated bool
}

func newPodsCommand() *cobra.Command {
	o := &podsOptions{}
	cmd := &cobra.Command{
		Use:   "pods [REF]",
		Short: "List the pods that run an image in the clusters that a server follows",
		Long: `List the pods that run an image in the clusters that a server follows ("clusters" in its
configuration): cluster, namespace and pod, container, the reference in the pod's
spec, the digest that runs, the digest that its tag leads to now if it differs,
the verdict for that reference, and the age. An image volume counts as a container,
volume/NAME.

` + referenceHelp + `
Here a repository without a tag stands for all its images. A tag lists the pods that
name it, whatever they run, and the pods that run its current image under another name.
A digest lists the pods that run it, an index that contains it, or an image in it.

--outdated lists only pods that name a tag but run a different image than the tag
leads to now; without REF, those of all images.

kubectl shows the same: kubectl get clusterpods --field-selector
image=REFERENCE,outdated=true. kubectl get pods lists a server's own pods.

The exit code is 0 if there are such pods, 1 if there are none, and 2 if that is
unknown: REF is ambiguous, no cluster is followed, or a cluster was not read.`,
		Example: `  # Which pods run an image of this repository?
  tidewaiter pods registry.example.com/team/app

  # Which pods run this digest, under any name?
  tidewaiter pods 2bdcd6f6c8a7

  # Which pods have not been restarted since the tag moved?
  tidewaiter pods --outdated registry.example.com/team/app:v1`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !o.outdated {
				return cli.Misuse(errors.New("which image?"), "tidewaiter pods registry.example.com/team/app, or tidewaiter pods --outdated")
			}
			return o.run(cmd, args)
		},
	}
	o.output.AddFlag(cmd, "a table with the main columns", append([]string{cli.Wide}, cli.ListFormats...)...)
	cmd.ValidArgsFunction = o.completeReferences(1)
	cmd.Flags().BoolVar(&o.outdated, "outdated", false, "list only pods that run a different image than their tag leads to now")
	o.addFlags(cmd)
	return cmd
}

func (o *podsOptions) run(cmd *cobra.Command, args []string) error {
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	ctx, what := cmd.Context(), "any image"
	values, platform := []string{""}, ""
	var about *found
	if len(args) == 1 {
		if about, err = l.find(ctx, args[0], ""); err != nil {
			var exit *cli.Exit
			if about == nil || !errors.As(err, &exit) || exit.Code != exitAbsent || about.Running == nil || len(about.Running.Selectors) == 0 {
				return err
			}
		}
		what = about.name()
		if about.Running == nil {
			return l.withoutPods(about)
		}
		values, platform = about.Running.Selectors, about.Meaning.Platform
		if o.outdated && about.Meaning.Tag != "" && values[0] == about.Meaning.Reference {
			values = values[:1] // pods that run the image by another tag do not count
		}
	}
	followed, err := cli.GetTable(ctx, l.Config, clustersPath, nil)
	if err != nil {
		return err
	}
	table := &metav1.Table{}
	if len(followed.Rows) > 0 { // the server would warn of what noCluster says
		table, err = l.podsTable(ctx, values, o.outdated)
	}
	if err != nil {
		return err
	}
	if platform != "" {
		table.Rows = slices.DeleteFunc(table.Rows, func(row metav1.TableRow) bool { return isElsewhere(row, about) })
	}
	if !o.output.ForPeople() {
		if err := o.output.Print(cmd.OutOrStdout(), podsDocument(table)); err != nil {
			return err
		}
	}
	switch {
	case len(followed.Rows) == 0:
		return about.orElse(l.noCluster(about, what))
	case len(table.Rows) == 0:
		return about.orElse(noPods(about, what, o.outdated))
	case o.output.Wide():
		return cli.WriteTable(cmd.OutOrStdout(), table, true)
	case o.output.ForPeople():
		return printPods(cmd.OutOrStdout(), table)
	}
	return nil
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

// printPods prints a table of pods in the width of a terminal: without the columns that say why
// something does not run or is not imported if none of the pods has such a reason.
func printPods(out io.Writer, table *metav1.Table) error {
	t := cli.Table{Rows: make([][]string, len(table.Rows))}
	for i, column := range table.ColumnDefinitions {
		reason := column.Name == "Waiting" || column.Name == "Not Imported"
		if column.Priority > 0 || reason && !slices.ContainsFunc(table.Rows, func(row metav1.TableRow) bool { return row.Cells[i] != tablecells.None }) {
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
	return t.Print(out)
}

// withoutPods is the error if the caller may not see what runs.
func (l *looker) withoutPods(f *found) error {
	for _, u := range f.Unknowns {
		if u.Part == "running" {
			return cli.WithHint(errors.New(u.Reason), "the role view allows it, and so do tidewaiter:image-viewer and tidewaiter:cluster-viewer together")
		}
	}
	return fmt.Errorf("%s does not know which pods run %s", l.Server.destination(), f.name())
}

// podsTable lists the pods that any of the values selects, each once; the empty value selects all.
func (l *looker) podsTable(ctx context.Context, values []string, outdated bool) (*metav1.Table, error) {
	var all *metav1.Table
	seen := map[string]bool{}
	for _, value := range values {
		var terms []string
		if value != "" {
			terms = append(terms, "image="+value)
		}
		if outdated {
			terms = append(terms, "outdated=true")
		}
		table, err := cli.GetTable(ctx, l.Config, clusterPodsPath, url.Values{"fieldSelector": {strings.Join(terms, ",")}, "includeObject": {string(metav1.IncludeObject)}})
		if err != nil {
			return nil, err
		}
		if all == nil {
			all = &metav1.Table{TypeMeta: table.TypeMeta, ColumnDefinitions: table.ColumnDefinitions}
		}
		listed := map[string]bool{}
		for _, row := range table.Rows {
			name := fmt.Sprint(row.Cells[0])
			if listed[name] = true; !seen[name] {
				all.Rows = append(all.Rows, row)
			}
		}
		for name := range listed {
			seen[name] = true
		}
	}
	slices.SortStableFunc(all.Rows, func(a, b metav1.TableRow) int { return strings.Compare(fmt.Sprint(a.Cells[0]), fmt.Sprint(b.Cells[0])) })
	return all, nil
}

// podContainer is a container of a ClusterPod: the reference that the pod names, and the digest
// that runs.
type podContainer struct{ Image, Digest string }

// isElsewhere reports whether a pod runs an index on a node of another platform than that of the
// image that is asked about.
func isElsewhere(row metav1.TableRow, about *found) bool {
	var pod struct {
		// what is needed of a ClusterPod, whose package has the clients of clusters, too
		Spec struct {
			Platform   string
			Containers []podContainer
		}
	}
	if json.Unmarshal(row.Object.Raw, &pod) != nil || pod.Spec.Platform == "" {
		return false
	}
	platform := about.Meaning.Platform
	return pod.Spec.Platform != platform && !strings.HasPrefix(platform, pod.Spec.Platform+"/") &&
		!slices.ContainsFunc(pod.Spec.Containers, func(c podContainer) bool {
			return c.Digest == about.Meaning.Digest || about.Meaning.Tag != "" && c.Image == about.Meaning.Reference
		})
}

// noCluster says that no cluster is followed, and what is known all the same.
func (l *looker) noCluster(about *found, what string) error {
	server, own := l.Server.destination(), ""
	if about == nil {
		return cli.WithHint(fmt.Errorf("%s does not follow a cluster, and pods --outdated lists pods of followed clusters", server), "in the server's configuration, clusters: [{name: prod, kubeconfig: prod.kubeconfig}]")
	}
	if about.Running != nil && about.Running.Pods > 0 {
		own = answers.PodsCell(&about.Answer) + " of its own pods run it: kubectl get pods --all-namespaces"
	}
	switch isWhole := about.Running != nil && about.Running.Complete; {
	case isWhole && own != "":
		return &cli.Exit{Code: exitAbsent, Err: cli.WithHint(fmt.Errorf("no cluster runs images of %s", server), "%s", own)}
	case isWhole:
		return &cli.Exit{Code: exitAbsent, Err: fmt.Errorf("no pod runs %s: %s has no cluster, and none of its own pods does", what, server)}
	case own == "":
		own = "in the server's configuration, clusters: [{name: prod, kubeconfig: prod.kubeconfig}], or ownPodsOnly: true if no cluster runs its images"
	}
	return cli.WithHint(fmt.Errorf("no cluster is followed, so %s does not know which pods run %s", server, what), "%s", own)
}

// noPods says why no pod is listed.
func noPods(about *found, what string, outdated bool) error {
	if about != nil && (about.Running == nil || !about.Running.Complete) {
		return &cli.Exit{Code: cli.ExitNone, Err: fmt.Errorf("no known pod of the followed clusters runs %s, but not all pods are known: kubectl get clusters", what)}
	}
	if outdated {
		return &cli.Exit{Code: exitAbsent, Err: fmt.Errorf("no pod of the followed clusters names a tag of %s but runs a different image", what)}
	}
	return &cli.Exit{Code: exitAbsent, Err: fmt.Errorf("no pod of the followed clusters runs %s", what)}
}

// imagesVerb is the verb that is also the plugin kubectl-images.
const imagesVerb = "images"

type imagesOptions struct {
	clientOptions
	output        cli.Output
	cluster       string
	namespace     string
	allNamespaces bool
}

func newImagesCommand() *cobra.Command {
	o := &imagesOptions{}
	cmd := &cobra.Command{
		Use:   imagesVerb,
		Short: "List the images that pods run, who signed them, and how many pods run each",
		Long: `List the images that the pods of a namespace run: the reference in the pods' specs,
the digest that runs, the verdict for that reference, how many pods run it, and who
signed it, or why nobody is known to have.

The pods are those that kubectl get pods lists, with your own rights. With --cluster
they are those of a cluster that the server follows.

The exit code is 0 if pods run images, 1 if none does, and 2 if that is unknown. The
verdicts do not change it: tidewaiter verify is for that.`,
		Example: `  # Of the namespace of the kubeconfig's context; also: kubectl images
  tidewaiter images

  # Of all namespaces of a cluster that the server follows
  tidewaiter images --cluster prod -A`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "list what the pods of this followed cluster run")
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the pods (default: that of the kubeconfig's context)")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list what the pods of all namespaces run")
	o.output.AddFlag(cmd, "a table", cli.ListFormats...)
	o.addFlags(cmd)
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

type useCounts map[imageUse]int

// add counts the containers of a pod, each image once.
func (c useCounts) add(namespace string, containers []podContainer) error {
	seen := map[imageUse]bool{}
	for _, container := range containers {
		use := imageUse{namespace, container.Image, container.Digest}
		if ref := podimages.Parse(container.Image); ref.Repository != "" {
			use.image = ref.String()
		}
		if !seen[use] {
			seen[use] = true
			c[use]++
		}
	}
	if len(c) > maxUses {
		return cli.WithHint(fmt.Errorf("the pods run more than %d images", maxUses), "-n lists those of one namespace")
	}
	return nil
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
	count := l.usesOfPods
	if o.cluster != "" {
		count = func(ctx context.Context, namespace string) (useCounts, error) {
			return l.usesOfCluster(ctx, o.cluster, namespace)
		}
	}
	counts, err := count(cmd.Context(), namespace)
	switch {
	case apierrors.IsNotFound(err):
		return cli.WithHint(fmt.Errorf("%s has no pods: it is not a tidewaiter server, or it is one inside a cluster", l.Server.destination()), "kubectl config current-context shows the context in use; that of the cluster has its pods")
	case apierrors.IsForbidden(err):
		return cli.WithHint(err, "the role view allows it")
	case err != nil:
		return err
	}
	uses := slices.SortedFunc(maps.Keys(counts), func(a, b imageUse) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.image, b.image), cmp.Compare(a.digest, b.digest))
	})
	if len(uses) == 0 {
		return l.noUses(cmd.Context(), o.cluster, namespace)
	}
	all, err := l.askUses(cmd.Context(), uses)
	if err != nil {
		return err
	}
	if o.output.ForPeople() {
		return printUses(cmd.OutOrStdout(), uses, counts, all, namespace == metav1.NamespaceAll)
	}
	review := &answers.ReferenceReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.Kind}, Status: answers.ReferenceReviewStatus{References: all}}
	d := cli.Document{Whole: review, Items: cli.ItemsOf(all)}
	for i := range all {
		d.Names = append(d.Names, imageName(cmp.Or(uses[i].digest, all[i].Meaning.Digest, uses[i].image)))
	}
	return o.output.Print(cmd.OutOrStdout(), d)
}

// usesOfPods counts what the pods of a namespace run, or of all, as the API shows them that the
// kubeconfig names.
func (l *looker) usesOfPods(ctx context.Context, namespace string) (useCounts, error) {
	client, err := typedcorev1.NewForConfig(l.Config)
	if err != nil {
		return nil, err
	}
	counts := useCounts{}
	err = pages.Each(ctx, metav1.ListOptions{}, client.Pods(namespace).List, func(list *corev1.PodList) error {
		for i := range list.Items {
			var containers []podContainer
			podimages.Containers(&list.Items[i], func(_, image string, status corev1.ContainerStatus) {
				containers = append(containers, podContainer{image, podimages.Runs(image, status.ImageID).Digest})
			})
			if err := counts.add(list.Items[i].Namespace, containers); err != nil {
				return err
			}
		}
		return nil
	})
	return counts, err
}

// usesOfCluster is usesOfPods for a cluster that the server follows.
func (l *looker) usesOfCluster(ctx context.Context, cluster, namespace string) (useCounts, error) {
	terms := fields.Set{"spec.cluster": cluster}
	if namespace != metav1.NamespaceAll {
		terms["spec.namespace"] = namespace
	}
	client, err := pathClient(l.Config)
	if err != nil {
		return nil, err
	}
	counts := useCounts{}
	list := func(ctx context.Context, options metav1.ListOptions) (*followedPods, error) {
		raw, err := client.Get().AbsPath(clusterPodsPath).Param("fieldSelector", terms.AsSelector().String()).Param("limit", fmt.Sprint(options.Limit)).Param("continue", options.Continue).DoRaw(ctx)
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

// askUses asks about each use: its reference or, where that leads elsewhere than to what runs, the
// digest in its repository.
func (l *looker) askUses(ctx context.Context, uses []imageUse) ([]answers.Answer, error) {
	all := make([]answers.Answer, 0, len(uses))
	for part := range slices.Chunk(uses, usesAtOnce) {
		questions := make([]answers.Question, len(part))
		for i, use := range part {
			questions[i] = answers.Question{Reference: use.image, Namespace: use.namespace}
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
				found[at] = again[i]
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

// printUses prints the table of images.
func printUses(out io.Writer, uses []imageUse, counts useCounts, all []answers.Answer, namespaces bool) error {
	t := cli.Table{Columns: []string{"IMAGE", "DIGEST", "VERDICT", "PODS", "SIGNER OR REASON…"}}
	for i, use := range uses {
		a := &all[i]
		verdict, why := answers.VerdictCell(a), a.Message
		if v := a.Verdict; v != nil {
			if why = strings.Join(v.Signers, ", "); why == "" && v.Verified != verdicts.NoPolicy {
				why = v.Message
			}
		} else if len(a.Verdicts) == 0 {
			verdict = verdicts.VerifiedUnknown
		}
		row := []string{use.image, strings.TrimPrefix(reference.ShortDigest(cmp.Or(use.digest, a.Meaning.Digest)), "sha256:"), verdict, fmt.Sprint(counts[use]), why}
		if namespaces {
			row = append([]string{use.namespace}, row...)
		}
		t.Rows = append(t.Rows, row)
	}
	if namespaces {
		t.Columns = append([]string{"NAMESPACE"}, t.Columns...)
	}
	return t.Print(out)
}

// noUses says why no image is listed.
func (l *looker) noUses(ctx context.Context, cluster, namespace string) error {
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
	if cluster != "" && !slices.Contains(names, cluster) {
		return cli.WithHint(fmt.Errorf("%s does not follow a cluster %s", l.Server.destination(), cluster), "it follows: %s", cmp.Or(strings.Join(names, ", "), "none"))
	}
	where, hint := "in namespace "+namespace, "-A lists those of all namespaces"
	if namespace == metav1.NamespaceAll {
		where, hint = "in any namespace", ""
	}
	if cluster == "" && len(names) > 0 {
		hint = "--cluster lists those of a followed cluster: " + strings.Join(names, ", ")
	}
	err = fmt.Errorf("no pod runs an image %s", where)
	if hint != "" {
		err = cli.WithHint(err, "%s", hint)
	}
	return &cli.Exit{Code: exitAbsent, Err: err}
}
