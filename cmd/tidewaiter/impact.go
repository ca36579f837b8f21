package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// exitTouched is the exit code of verbs that review an act which touches something that runs.
const exitTouched = 3

// impactsPath is the path of reviews of acts on a server.
var impactsPath = "/apis/" + answers.GroupVersion.String() + "/" + answers.ImpactResource

type impactOptions struct {
	clientOptions
	output cli.Output
	spec   answers.ImpactReviewSpec
	// policies is a file or a folder, signer a file or what it would have, and at a time or a
	// duration.
	policies, signer, at string
	advisories           string // a file, a folder or an archive
	ever                 bool
	now                  func() time.Time
}

// impactExits is the help on exit codes of the verbs that review acts.
const impactExits = `Nothing is changed, and no registry is asked. The answer names what is unknown.

The exit code is 0 if nothing that runs, or that a workload needs, is touched, 3 if
something is, 1 if that is unknown, and 2 if the server could not be asked.`

func newImpactCommand() *cobra.Command {
	o := &impactOptions{now: time.Now}
	cmd := &cobra.Command{
		Use:   "impact",
		Short: "Show what an act would touch before you do it: pods, workloads, images, verdicts",
		Long: `Show what an act would touch: the references whose verdict changes, or that cannot be
pulled any more, with the verdict before and after, the pods that run them and the
workloads that need them. A summary comes first, then the references, what runs in
most pods first.

` + impactExits + `
With --image, it is 0 if the image is not affected, 3 if it is, and 1 if that is
unknown, whether it runs or not.`,
		Example: `  # What breaks if this policy is applied, or deleted?
  tidewaiter impact --policy strict.yaml
  tidewaiter impact --remove-policy prod

  # What is signed by this key alone?
  tidewaiter impact --revoke-key cosign.pub
  tidewaiter impact --revoke-key ann@example.com
  tidewaiter impact --revoke-key https://github.com/acme/app   # what workflows built from it

  # What expires within 30 days?
  tidewaiter impact --at 720h

  # Who runs what is in this registry, in this image, with this layer, on this base, with
  # this package?
  tidewaiter impact --registry old.example.com
  tidewaiter impact --delete registry.example.com/team/app:v1
  tidewaiter impact --layer sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  tidewaiter impact --base registry.example.com/team/base:v1
  tidewaiter impact --package 'openssl@>=3.0,<3.0.7'

  # What does a new advisory touch, and which tag has the fix? Which of all advisories do?
  tidewaiter impact --advisory GHSA-jfh8-c2jp-5v3q.json
  curl -s https://api.osv.dev/v1/vulns/CVE-2021-44228 | tidewaiter impact --advisory -
  tidewaiter impact --advisory all.zip

  # In a pipeline: is this image affected?
  tidewaiter impact --advisory advisories/ --image registry.example.com/team/app:v1

  # And what ran before?
  tidewaiter impact --advisory GHSA-jfh8-c2jp-5v3q.json --ever`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	f := cmd.Flags()
	f.StringVar(&o.policies, "policy", "", "file or folder of ClusterImagePolicy and ImagePolicy documents that are applied")
	f.StringVar(&o.spec.RemovePolicy, "remove-policy", "", "policy that is deleted: NAME, or NAMESPACE/NAME of an ImagePolicy")
	f.StringVar(&o.signer, "revoke-key", "", "signer that is no longer trusted: a file with public keys or an OpenPGP keyring, a fingerprint, the subject of a certificate or key, or the repository that a workflow built")
	f.StringVar(&o.spec.LoseRegistry, "registry", "", "registry that goes away, HOST[:PORT]")
	f.StringVar(&o.spec.Delete, "delete", "", "tag that its registry loses, REPOSITORY@DIGEST that the repository loses, or digest whose Image is deleted")
	f.StringVar(&o.spec.Layer, "layer", "", "digest of a layer: the images that have it")
	f.StringVar(&o.spec.Base, "base", "", "tag, digest or repository of a base image: the images that are built on it, by their annotations or their layers")
	f.StringVar(&o.spec.Package, "package", "", "package by name or package URL, and a range of its versions: NAME[@>=1.0,<1.2]; the images that have it, by their SBOMs")
	f.StringVar(&o.advisories, "advisory", "", "advisories in the OSV format: a file, a folder, a ZIP archive, or - for standard input; the images with an affected package, by their SBOMs")
	f.StringVar(&o.spec.Image, "image", "", "with --advisory: look only at this image, or at the platforms of this index; exit with 3 if it is affected")
	f.StringVar(&o.at, "at", "", "time (2027-01-31, 2027-01-31T12:00:00Z) or duration from now (720h): what expires until then")
	f.BoolVar(&o.ever, "ever", false, "with --advisory, also list what ran at any time; exit with 3 if something did")
	acts := []string{"policy", "remove-policy", "revoke-key", "registry", "delete", "layer", "base", "package", "advisory", "at"}
	cmd.MarkFlagsMutuallyExclusive(acts...)
	cmd.MarkFlagsMutuallyExclusive("image", "ever")
	o.addCommonFlags(cmd)
	return cmd
}

func (o *impactOptions) addCommonFlags(cmd *cobra.Command) {
	cmd.Flags().Int32Var(&o.spec.MaxRows, "max-rows", 500, "references that are listed, at most 5000; all are counted")
	o.output.AddFlag(cmd, "a summary and a table", cli.Wide, "json", "jsonl", "yaml")
	o.addFlags(cmd)
	o.completeNames(cmd)
}

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "policy",
		Short:   "Try policies before they are applied",
		Long:    "Try policies for images before they are applied.",
		Example: "  tidewaiter policy preview -f strict.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	o := &impactOptions{now: time.Now}
	preview := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "Show what policies would change: tidewaiter impact --policy",
		Long: `Show which verdicts policies would change if they were applied, and which pods run
what they are about. It is tidewaiter impact --policy FILE.

` + impactExits,
		Example: "  tidewaiter policy preview -f strict.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.policies == "" {
				return cli.Misuse(errors.New("which policies?"), "tidewaiter policy preview -f strict.yaml")
			}
			return o.run(cmd)
		},
	}
	preview.Flags().StringVarP(&o.policies, "filename", "f", "", "file or folder of ClusterImagePolicy and ImagePolicy documents")
	o.addCommonFlags(preview)
	cmd.AddCommand(preview)
	return cmd
}

func (o *impactOptions) run(cmd *cobra.Command) error {
	what, err := o.act()
	if err != nil {
		return err
	}
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	var review *answers.ImpactReview
	var ran *everReview
	if o.advisories == "" {
		review, err = l.impact(cmd.Context(), &o.spec)
	} else {
		review, ran, what, err = o.advised(cmd, l)
	}
	if err != nil {
		return err
	}
	switch err := o.print(cmd, what, review, ran); {
	case err != nil:
		return err
	case ran != nil:
		return ran.exit()
	case o.spec.Image != "":
		return imageExit(o.spec.Image, &review.Status)
	}
	return impactExit(&review.Status)
}

// print prints a review in the format that was asked for. ran is nil without --ever.
func (o *impactOptions) print(cmd *cobra.Command, what string, review *answers.ImpactReview, ran *everReview) error {
	warnUnknown(cmd.ErrOrStderr(), review.Status.Unknowns) // the lines of jsonl do not have it
	if o.output.ForPeople() {
		err := o.show(cmd, what, review)
		if err == nil && ran != nil {
			err = ran.print(cmd.OutOrStdout())
		}
		return err
	}
	omitted := func(n int, what string) {
		if n > 0 && o.output.Lines() {
			fmt.Fprintf(cmd.ErrOrStderr(), "Warning: %s not listed; --max-rows lists more of them\n", tablecells.Clause(n, "more "+what, "are"))
		}
	}
	omitted(int(review.Status.OmittedRows), "row")
	d := cli.Document{Whole: review, Items: cli.ItemsOf(review.Status.Rows)}
	if ran != nil {
		omitted(ran.RanOmitted, "stretch")
		d.Whole, d.Items = ran, append(d.Items, cli.ItemsOf(ran.Ran)...)
	}
	return o.output.Print(cmd.OutOrStdout(), d)
}

// impact has the server review an act.
func (l *looker) impact(ctx context.Context, spec *answers.ImpactReviewSpec) (*answers.ImpactReview, error) {
	review := &answers.ImpactReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.ImpactKind}, Spec: *spec}
	raw, err := l.send(ctx, impactsPath, "acts", review)
	if err != nil {
		return nil, err
	}
	*review = answers.ImpactReview{}
	if err := json.Unmarshal(raw, review); err != nil {
		return nil, fmt.Errorf("%s did not answer with a review: %w", l.Server.destination(), err)
	}
	return review, nil
}

// impactExit is how a verb ends that has shown a review: nothing that runs, or that a workload
// such as a CronJob will run, is touched only if that is known.
func impactExit(s *answers.ImpactReviewStatus) error {
	switch {
	case s.Summary.Pods > 0 || s.Summary.Workloads > 0:
		return &cli.Exit{Code: exitTouched}
	case !s.Summary.PodsComplete:
		return &cli.Exit{Code: cli.ExitSome, Err: errors.New("it is unknown whether something that runs is touched")}
	case slices.ContainsFunc(s.Unknowns, func(u answers.UnknownPart) bool { return u.Part == answers.PartNeededBy }):
		return &cli.Exit{Code: cli.ExitSome, Err: errors.New("it is unknown whether something that a workload needs is touched")}
	}
	return nil
}

// imageExit is how a review of advisories about one image ends: what runs has no part in it.
func imageExit(image string, s *answers.ImpactReviewStatus) error {
	has := func(effect answers.Effect) bool {
		return slices.ContainsFunc(s.Rows, func(r answers.ImpactRow) bool { return r.Effect == effect })
	}
	unknown := slices.ContainsFunc(s.Unknowns, func(u answers.UnknownPart) bool {
		return slices.Contains([]string{"act", "advisories", "packages", "verdict"}, u.Part)
	})
	switch {
	case has(answers.Contains):
		return &cli.Exit{Code: exitTouched}
	case unknown || has(answers.MayContain) || s.OmittedRows > 0 || s.Summary.Unchecked > 0 || s.Summary.Unlisted > 0:
		return &cli.Exit{Code: cli.ExitSome, Err: fmt.Errorf("it is unknown whether %s is affected", image)}
	}
	return nil
}

// act reads the act that the flags name, and says it in words.
func (o *impactOptions) act() (what string, err error) {
	s := &o.spec
	if o.ever && o.advisories == "" {
		return "", cli.Misuse(errors.New("--ever is about advisories"), "tidewaiter impact --advisory FILE --ever")
	}
	if s.Image != "" && o.advisories == "" {
		return "", cli.Misuse(errors.New("--image is about advisories"), "tidewaiter impact --advisory FILE --image REF")
	}
	switch {
	case o.policies != "":
		all, err := policy.LoadObjects(o.policies)
		if err != nil {
			return "", config.ExplainPolicies(o.policies, err)
		}
		var names []string
		for _, p := range all {
			object, err := p.Object()
			if err != nil {
				return "", err
			}
			s.ApplyPolicies, names = append(s.ApplyPolicies, runtime.RawExtension{Raw: object}), append(names, p.ID())
		}
		return "applying " + strings.Join(names, ", "), nil
	case s.RemovePolicy != "":
		return "deleting the policy " + s.RemovePolicy, nil
	case o.signer != "":
		s.RevokeSigner, err = keyOrText(o.signer)
		return "revoking " + o.signer, err
	case s.LoseRegistry != "":
		return "losing the registry " + s.LoseRegistry, nil
	case s.Delete != "":
		return "deleting " + s.Delete, nil
	case s.Layer != "":
		return "what has the layer " + s.Layer, nil
	case s.Base != "":
		return "what is built on " + s.Base, nil
	case s.Package != "":
		return "what has the package " + s.Package, nil
	case o.advisories != "":
		return "", nil // how many there are is known when they were read
	case o.at != "":
		at, err := o.time(o.at)
		s.At = &metav1.Time{Time: at}
		return "waiting until " + at.UTC().Format(time.RFC3339), err
	}
	return "", cli.Misuse(errors.New("which act?"), "tidewaiter impact --policy strict.yaml, --revoke-key cosign.pub, --registry HOST, --delete REF, --layer DIGEST, --base REF, --package NAME, --advisory FILE, --at 720h")
}

// keyFiles are the ends of the names of files with keys.
var keyFiles = []string{".pub", ".pem", ".crt", ".cer", ".key", ".asc", ".gpg"}

// keyOrText has the fingerprints of the keys in a file of that name, or else is the text.
func keyOrText(text string) (string, error) {
	info, err := os.Stat(text)
	if err != nil || !info.Mode().IsRegular() {
		if slices.Contains(keyFiles, filepath.Ext(text)) {
			return "", cli.WithHint(cmp.Or(err, fmt.Errorf("%s is not a file", text)), "--revoke-key names a file, a fingerprint or a subject")
		}
		return text, nil
	}
	data, err := trusted.ReadFile(text, policy.MaxSigners)
	if err != nil {
		return "", err
	}
	signers, err := policy.ParseSigners(string(data))
	if err != nil {
		return "", fmt.Errorf("%s: %w", text, err)
	}
	return signers.String(), nil
}

// time reads a time, or a duration from now.
func (o *impactOptions) time(text string) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return o.now().Add(d), nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, cli.Misuse(fmt.Errorf("--at %q is neither a time nor a duration", text), "--at 2027-01-31, --at 2027-01-31T12:00:00Z, --at 720h")
}

// packagesUnknown reports whether images may have packages that no document which was read says.
func packagesUnknown(review *answers.ImpactReview) bool {
	return slices.ContainsFunc(review.Status.Unknowns, func(u answers.UnknownPart) bool { return u.Part == "packages" })
}

// show prints a review for people.
func (o *impactOptions) show(cmd *cobra.Command, what string, review *answers.ImpactReview) error {
	out, s := cmd.OutOrStdout(), &review.Status.Summary
	fmt.Fprintf(out, "%s: ", printable.Line(what, 0))
	if s.References == 0 && s.NotAffected == 0 {
		is, and := "is", ""
		if s.Unlisted > 0 || s.Unchecked > 0 || packagesUnknown(review) || !s.PodsComplete {
			is = "is known to be"
		}
		switch {
		case s.Undecided > 0:
			and = fmt.Sprintf("; of %s that pods run it is unknown", tablecells.Quantity(s.Undecided, "image"))
		case !s.PodsComplete:
			and = "; it is unknown whether something that runs is"
		}
		fmt.Fprintf(out, "nothing %s touched%s (%s examined)\n", is, and, tablecells.Quantity(s.Examined, "image"))
		return nil
	}
	run, need := "run", "need"
	if s.Pods == 0 && !s.PodsComplete || s.Pods == 1 && s.PodsComplete {
		run = "runs"
	}
	if s.Workloads == 1 {
		need = "needs"
	}
	fmt.Fprintf(out, "%s by %s; %s %s them, %s %s them\n", tablecells.Quantity(s.Images, "image"), tablecells.Quantity(s.References, "reference"), podsCounted(s.Pods, s.PodsComplete), run, tablecells.Quantity(s.Workloads, "workload"), need)
	if s.Undecided > 0 {
		fmt.Fprintf(out, "  of %s that pods run it is unknown whether the act touches it\n", tablecells.Quantity(s.Undecided, "more image"))
	}
	if s.NotAffected > 0 {
		fmt.Fprintf(out, "  %s not affected, by a trusted VEX document: -o wide names its signer\n", tablecells.Clause(s.NotAffected, "more reference", "are"))
	}
	if s.Denied > 0 {
		fmt.Fprintf(out, "  a cluster that asks on admission would refuse %d of the pods when they start again\n", s.Denied)
	}
	for _, c := range s.Changes {
		if c.Before != c.After {
			fmt.Fprintf(out, "  %s → %s: %s, %s\n", c.Before, c.After, tablecells.Quantity(c.References, "reference"), podsCounted(c.Pods, c.PodsComplete))
		}
	}
	fmt.Fprintln(out)
	var err error
	if o.advisories != "" && !o.output.Wide() {
		err = printAdvised(out, review)
	} else {
		err = printImpact(cmd, out, o.output.Wide(), review)
	}
	if err != nil {
		return err
	}
	if n := review.Status.OmittedRows; n > 0 {
		fmt.Fprintf(out, "and %d more; --max-rows lists more of them\n", n)
	}
	return nil
}

// printImpact prints the rows in the width of a terminal, or with all columns.
func printImpact(cmd *cobra.Command, out io.Writer, wide bool, review *answers.ImpactReview) error {
	table, err := answers.ImpactTable(cmd.Context(), review)
	if err != nil {
		return err
	}
	if wide {
		return cli.WriteTable(out, table, true)
	}
	t := cli.Table{Rows: make([][]string, len(table.Rows))}
	for i, column := range table.ColumnDefinitions {
		if column.Priority > 0 {
			continue
		}
		t.Columns = append(t.Columns, strings.ToUpper(column.Name))
		for r, row := range table.Rows {
			t.Rows[r] = append(t.Rows[r], fmt.Sprint(row.Cells[i]))
		}
	}
	return t.Print(out)
}
