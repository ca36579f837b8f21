package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/version"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/cmd/internal/auditreport"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxReported is how many stretches a report has.
const maxReported = 100_000

type reportOptions struct {
	ranOptions
}

func newReportCommand() *cobra.Command {
	o := &reportOptions{ranOptions{now: time.Now}}
	cmd := &cobra.Command{
		Use:   "report --from TIME --until TIME",
		Short: "Report what ran in a time, who signed it and what is not known, for an auditor",
		Long: `Report everything that ran in a time: the digest, reference and workload, from when until
when, when the cluster could not be seen, the verdict at the beginning and at the end,
who signed, whether the server has an SBOM, and how the cluster admitted it. Then which
of the tags that ran moved, which exceptions of policies let something run, and what is
not known. A report about all clusters and namespaces also names the tags that have moved
although they must not, whether anything ran by them.

The report has nothing in it that happened after --until, and no time at which it was
made. So the same question about the same records gives the same bytes, which cosign
sign-blob signs. Its head names the server's version, the revision of the records, and
the digests of the server's policies.

-o html writes one page without scripts that prints well. -o csv writes a line for each
part, and says in the first column which part it is.

The report shows what you may read, and names what you may not.`,
		Example: `  # A page for the third quarter
  tidewaiter report --from 2026-07-01 --until 2026-10-01 -o html >report.html

  # A document of one cluster, signed
  tidewaiter report --cluster prod --from 2026-07-01 --until 2026-10-01 -o json >report.json
  cosign sign-blob --key cosign.key --bundle report.json.bundle report.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "report what ran at this time or later, such as 2026-11-24T16:45:00Z or 2026-11-24")
	f.StringVar(&o.until, "until", "", "report what ran at this time or earlier")
	f.StringVar(&o.cluster, "cluster", "", "report what ran in this cluster; local is the server's own pods")
	f.StringVarP(&o.namespace, "namespace", "n", "", "report what ran in this namespace (default: all)")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "report what ran in all namespaces, as without -n")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	o.output.AddFlag(cmd, "a page", "json", "yaml", "csv", "html")
	o.addFlags(cmd)
	o.completeNames(cmd)
	return cmd
}

func (o *reportOptions) run(cmd *cobra.Command) error {
	if o.from == "" || o.until == "" {
		return cli.Misuse(errors.New("about which time?"), "tidewaiter report --from 2026-07-01 --until 2026-10-01")
	}
	w, err := o.window()
	if err != nil {
		return err
	}
	if w.Until.After(o.now()) {
		return cli.Misuse(fmt.Errorf("--until: %s is in the future", o.until), "a report is about a time that is over: --until %s", o.now().UTC().Format(time.RFC3339))
	}
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	r, err := o.report(cmd.Context(), l, w)
	if err != nil {
		return ranFailed(err, o.namespace, l.Server)
	}
	switch out := cmd.OutOrStdout(); o.output.String() {
	case "csv":
		return r.CSV(out)
	case "html":
		return r.HTML(out)
	case "":
		return r.Text(out)
	default:
		return o.output.Print(out, cli.Document{Whole: r})
	}
}

// report asks for everything that a report has.
func (o *reportOptions) report(ctx context.Context, l *looker, w imageruns.Window) (*auditreport.Report, error) {
	config, notes := withWarnings(l.Config)
	var all []imageruns.ImageRun
	err := eachRun(ctx, config, o.namespace, o.selector(nil, w), func(page []imageruns.ImageRun) error {
		if all = append(all, page...); len(all) > maxReported {
			return cli.WithHint(fmt.Errorf("more than %d stretches ran", maxReported), "report a shorter time, or one --cluster or -n NAMESPACE at a time")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(all) == 0 {
		if err := l.noRuns(ctx, o.cluster); err != nil {
			return nil, err
		}
	}
	client, err := pathClient(config)
	if err != nil {
		return nil, err
	}
	r := auditreport.New(w, o.cluster, o.namespace, serverVersion(ctx, client))
	known, unknown := l.haveSBOMs(ctx, all)
	for _, text := range unknown {
		r.Unknown("%s", text)
	}
	for i := range all {
		r.Add(&all[i], cmp.Or(known[imageOn(&all[i])], auditreport.SBOMUnknown))
	}
	followed := listed(ctx, client, clustersPath, r, "for which times records are whole", func(c *clusters.Cluster) error {
		r.Follow(c.Name, c.Status.Records)
		return nil
	})
	if !followed {
		for _, text := range notes.all {
			r.Unknown("%s", text)
		}
	}
	o.policies(ctx, client, r)
	l.movedTags(ctx, all, w, r, o.cluster == "" && o.namespace == "")
	r.Finish(followed)
	return r, nil
}

// serverVersion is the version of Tidewaiter that a server says it is.
func serverVersion(ctx context.Context, client restclient.Interface) string {
	raw, err := client.Get().AbsPath("/version").DoRaw(ctx)
	var v version.Info
	if err != nil || json.Unmarshal(raw, &v) != nil {
		return "unknown"
	}
	if _, ours, ok := strings.Cut(v.GitVersion, "+tidewaiter."); ok {
		return ours
	}
	return cmp.Or(v.GitVersion, "unknown")
}

// listed calls use with each object of a list. If the list cannot be read, it notes in the report
// that this part is unknown.
func listed[T any](ctx context.Context, client restclient.Interface, path string, r *auditreport.Report, what string, use func(*T) error) (ok bool) {
	type list struct {
		metav1.ListMeta `json:"metadata"`
		Items           []T `json:"items"`
	}
	err := pages.Each(ctx, metav1.ListOptions{Limit: pages.Size}, func(ctx context.Context, options metav1.ListOptions) (*list, error) {
		raw, err := client.Get().AbsPath(path).Param("limit", fmt.Sprint(options.Limit)).Param("continue", options.Continue).DoRaw(ctx)
		page := &list{}
		if err == nil {
			err = json.Unmarshal(raw, page)
		}
		return page, err
	}, func(page *list) error {
		for i := range page.Items {
			if err := use(&page.Items[i]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.Unknown("%s is not known: %v", what, err)
	}
	return err == nil
}

// writtenPolicy is what counts of a policy: what its author wrote.
type writtenPolicy struct {
	Metadata struct {
		Namespace, Name string
		Annotations     map[string]string
	}
	Spec json.RawMessage
}

// policies adds the policies of the server.
func (o *reportOptions) policies(ctx context.Context, client restclient.Interface, r *auditreport.Report) {
	add := func(p *writtenPolicy) error {
		digest, err := p.digest()
		r.Policies = append(r.Policies, auditreport.Policy{Namespace: p.Metadata.Namespace, Name: p.Metadata.Name, Digest: digest})
		return err
	}
	const group = "/apis/config.openshift.io/v1/"
	listed(ctx, client, group+"clusterimagepolicies", r, "which policies of the cluster the server has", add)
	in := ""
	if o.namespace != "" {
		in = "namespaces/" + o.namespace + "/"
	}
	listed(ctx, client, group+in+"imagepolicies", r, "which policies of namespaces the server has", add)
}

// digest is the SHA-256 of the canonical JSON of a policy's specification and of Tidewaiter's
// annotations, which docs/tasks/audit.md computes with jq.
func (p *writtenPolicy) digest() (string, error) {
	var written struct {
		Annotations map[string]string `json:"annotations"`
		Spec        any               `json:"spec"`
	}
	written.Annotations = map[string]string{}
	for name, value := range p.Metadata.Annotations {
		if strings.HasPrefix(name, "tidewaiter.dev/") {
			written.Annotations[name] = value
		}
	}
	d := json.NewDecoder(bytes.NewReader(p.Spec))
	d.UseNumber()
	if err := d.Decode(&written.Spec); err != nil {
		return "", err
	}
	sum := sha256.New()
	e := json.NewEncoder(sum)
	e.SetEscapeHTML(false)
	err := e.Encode(written)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

// onPlatform is an image that ran on a platform.
type onPlatform struct{ digest, platform string }

func imageOn(r *imageruns.ImageRun) onPlatform { return onPlatform{r.Spec.Digest, r.Spec.Platform} }

// sbomReaders is how many images are asked about at the same time.
const sbomReaders = 8

// haveSBOMs returns whether the images that ran have SBOMs, as far as that is known, and why it is
// not.
func (l *looker) haveSBOMs(ctx context.Context, all []imageruns.ImageRun) (known map[onPlatform]string, unknown []string) {
	known = map[onPlatform]string{}
	for i := range all {
		if one := imageOn(&all[i]); one.digest != "" {
			known[one] = ""
		}
	}
	var mu sync.Mutex
	var asking errgroup.Group
	asking.SetLimit(sbomReaders)
	for _, one := range slices.SortedFunc(maps.Keys(known), func(a, b onPlatform) int {
		return cmp.Or(cmp.Compare(a.digest, b.digest), cmp.Compare(a.platform, b.platform))
	}) {
		asking.Go(func() error {
			answer, err := l.hasSBOM(ctx, one)
			mu.Lock()
			defer mu.Unlock()
			known[one] = answer
			if err != nil && !apierrors.IsNotFound(err) {
				text := "some SBOMs could not be asked for"
				if apierrors.IsForbidden(err) {
					text = "SBOMs may not be read"
				}
				if !slices.Contains(unknown, text) {
					unknown = append(unknown, text)
				}
			}
			return nil
		})
	}
	_ = asking.Wait() // errors are in unknown
	return known, unknown
}

// hasSBOM returns a word for whether the server has an SBOM of an image. SBOMs of an index describe
// its platforms.
func (l *looker) hasSBOM(ctx context.Context, one onPlatform) (string, error) {
	list, err := l.client.GetPackages(ctx, one.digest, metav1.GetOptions{})
	if err == nil {
		if slices.ContainsFunc(list.Sources, func(s packages.Source) bool {
			return s.Format == packages.FormatSPDX || s.Format == packages.FormatCycloneDX
		}) {
			return auditreport.SBOMYes, nil
		}
		if slices.ContainsFunc(list.Sources, func(s packages.Source) bool { return s.Format == "" || s.Problem != "" }) {
			return auditreport.SBOMUnknown, nil
		}
	} else if !apierrors.IsNotFound(err) {
		return auditreport.SBOMUnknown, err
	}
	image, err := l.client.Get(ctx, one.digest, metav1.GetOptions{})
	if err != nil {
		return auditreport.SBOMUnknown, err
	}
	if len(image.DockerImageManifests) == 0 {
		return auditreport.SBOMNoneFound, nil
	}
	answer := ""
	for i, nodes := range manifest.Nodes(manifest.Platforms(image.DockerImageManifests)) {
		if !slices.Contains(nodes, one.platform) {
			continue
		}
		of, err := l.hasSBOM(ctx, onPlatform{digest: image.DockerImageManifests[i].Digest})
		if err != nil || answer != "" && answer != of { // variants of an architecture
			return auditreport.SBOMUnknown, err
		}
		answer = of
	}
	return cmp.Or(answer, auditreport.SBOMUnknown), nil
}

// movedTags adds the moves of the tags that something ran by and, if whole is true, of those that
// have moved although they must not.
func (l *looker) movedTags(ctx context.Context, all []imageruns.ImageRun, w imageruns.Window, r *auditreport.Report, whole bool) {
	asked := map[reference.Reference]bool{}
	if whole {
		if err := l.overwrittenIn(ctx, w, asked); err != nil {
			r.Unknown("which tags have moved although they must not is not known: %v", err)
		}
	}
	for i := range all {
		if ref := podimages.Parse(all[i].Spec.Image); ref.Repository != "" && ref.Tag != "" && ref.Digest == "" {
			asked[ref] = true
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(asked), func(a, b reference.Reference) int { return cmp.Compare(a.String(), b.String()) }) {
		tag, err := l.client.GetTag(ctx, tags.Name(ref), metav1.GetOptions{})
		switch {
		case apierrors.IsForbidden(err):
			r.Unknown("which tags moved may not be read")
			return
		case apierrors.IsNotFound(err):
			r.Unknown("where %s led is not recorded", ref)
			continue
		case err != nil:
			r.Unknown("where %s led could not be asked for", ref)
			continue
		}
		history := historyOf(tag)
		if item, unknown := history.at(w.From); item == nil {
			r.Unknown("%s", unknown)
		}
		for i, item := range history.Items {
			if i+1 < len(history.Items) && !item.Created.After(w.Until) && !item.Created.Time.Before(w.From) {
				r.TagsMoved = append(r.TagsMoved, auditreport.Move{At: metav1.NewTime(item.Created.UTC()), Reference: history.Reference, Before: item.Before, Digest: item.Digest, By: item.By})
			}
		}
	}
}

// overwrittenIn adds the tags that moved in a time although they must not, and still lead there.
func (l *looker) overwrittenIn(ctx context.Context, w imageruns.Window, found map[reference.Reference]bool) error {
	const most = 100 // questions at once
	var questions []answers.Question
	ask := func(n int) error {
		if len(questions) < n {
			return nil
		}
		all, err := l.ask(ctx, questions...)
		for i := range all {
			if ref, bad := reference.Parse(questions[i].Reference); bad == nil && all[i].Checked.Overwritten != nil {
				found[ref] = true
			}
		}
		questions = nil
		return err
	}
	moved := fields.OneTermEqualSelector(selectors.TagMoved, "true").String()
	err := pages.Each(ctx, metav1.ListOptions{Limit: pages.Size, FieldSelector: moved}, l.client.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			move := tags.Overwritten(&list.Items[i])
			if ref, ok := tags.Reference(&list.Items[i]); ok && move != nil && !move.At.Before(w.From) && !move.At.After(w.Until) {
				questions = append(questions, answers.Question{Reference: ref.String()})
			}
			if err := ask(most); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return ask(1)
}
