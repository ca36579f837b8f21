package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// localHelp is the help of verbs that can ask what the pods of one namespace run.
const localHelp = `-n NAMESPACE asks as its pods do: its policies count. If you may not ask about all
images, the answer is about what the pods of NAMESPACE name and run, which the role view
in that namespace allows.`

// localOptions are the options of these verbs.
type localOptions struct{ namespace string }

func (o *localOptions) addFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", usage+", or the namespace of the kubeconfig's context if you may ask only in a namespace)")
}

// apply has a looker ask as the pods of a namespace.
func (o *localOptions) apply(l *looker, client *clientOptions) {
	l.namespace, l.local = o.namespace, cmp.Or(o.namespace, client.contextNamespace())
}

// localReview asks what the pods of the namespace run; without questions, all of it. refused is why
// the caller may not ask about all images.
func (l *looker) localReview(ctx context.Context, questions []answers.Question, refused error) (*answers.LocalReferenceReview, error) {
	client, err := pathClient(l.Config)
	if err != nil {
		return nil, err
	}
	review := &answers.LocalReferenceReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.LocalKind}, Spec: answers.LocalReferenceReviewSpec{References: questions}}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	path := "/apis/" + answers.GroupVersion.String() + "/namespaces/" + l.local + "/" + answers.LocalResource
	raw, err := client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).DoRaw(ctx)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsNotFound(err): // an older server
		return nil, cmp.Or(refused, err)
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(raw, review); err != nil || len(questions) > 0 && len(review.Status.References) != len(questions) {
		return nil, fmt.Errorf("%s did not answer with a review: %w", l.Server.destination(), cmp.Or(err, errors.New("it does not answer every question")))
	}
	if !l.isLocal {
		l.isLocal = true
		fmt.Fprintf(l.notes, "Note: you may not ask about all images: this is about what the pods of namespace %s name and run\n", l.local)
	}
	return review, nil
}

// askLocal is ask for a caller who may only ask what the pods of a namespace run.
func (l *looker) askLocal(ctx context.Context, questions []answers.Question, refused error) ([]answers.Answer, error) {
	review, err := l.localReview(ctx, questions, refused)
	if err != nil {
		return nil, err
	}
	return review.Status.References, nil
}

// localUses is usesOfCluster for a caller who may only ask what the pods of a namespace run.
func (l *looker) localUses(ctx context.Context, cluster string, refused error) (*useCounts, error) {
	review, err := l.localReview(ctx, nil, refused)
	if err != nil {
		return nil, err
	}
	warnUnknown(l.notes, review.Status.Unknowns)
	counts, pods := newUseCounts(), map[string][]podContainer{}
	for _, c := range review.Status.Containers {
		if c.Cluster == cluster {
			pods[c.Pod] = append(pods[c.Pod], podContainer{c.Image, c.Digest})
		}
	}
	for _, containers := range pods {
		if err := counts.add(l.local, containers); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// runLocal lists the pods of the namespace that run an image, or an outdated one.
func (o *podsOptions) runLocal(cmd *cobra.Command, l *looker, args []string, refused error) error {
	var questions []answers.Question
	for _, arg := range args {
		questions = append(questions, answers.Question{Reference: arg})
	}
	review, err := l.localReview(cmd.Context(), questions, refused)
	if err != nil {
		return err
	}
	s := &review.Status
	var unsure []string
	is := func(value, demanded string) bool { return demanded == "" || value == demanded }
	s.Containers = slices.DeleteFunc(s.Containers, func(c answers.LocalContainer) bool {
		return !is(c.Cluster, o.cluster) || !is(c.Verified, o.verified) || !is(c.Reason, o.reason)
	})
	if o.outdated != "" {
		s.Containers = slices.DeleteFunc(s.Containers, func(c answers.LocalContainer) bool {
			drift := "false"
			if c.Outdated != "" {
				drift = "true"
			} else if c.OutdatedUnknown != "" {
				drift, unsure = "unknown", append(unsure, c.Pod)
			}
			return drift != o.outdated
		})
	}
	warnUnknown(cmd.ErrOrStderr(), s.Unknowns)
	if !o.output.ForPeople() {
		d := cli.Document{Whole: review, Items: cli.ItemsOf(s.Containers)}
		for _, c := range s.Containers {
			d.Names = append(d.Names, "pod/"+c.Pod)
		}
		if err := o.output.Print(cmd.OutOrStdout(), d); err != nil {
			return err
		}
	} else if len(s.Containers) > 0 {
		return printLocal(cmd, l.local, s.Containers)
	}
	switch {
	case len(s.Containers) > 0:
		return nil
	case len(s.References) > 0 && len(args) > 0 && s.References[0].State == answers.Unknown:
		return &cli.Exit{Code: cli.ExitNone, Err: errors.New(s.References[0].Message)}
	case !s.Complete:
		return &cli.Exit{Code: cli.ExitNone, Err: fmt.Errorf("no known pod of namespace %s does, but not all pods are known", l.local)}
	}
	if o.outdated == "true" && len(unsure) > 0 {
		slices.Sort(unsure)
		return mayBeOutdated(slices.Compact(unsure))
	}
	return noResources(cmd, l.local)
}

// printLocal prints containers as the table of clusterpods.
func printLocal(cmd *cobra.Command, namespace string, containers []answers.LocalContainer) error {
	t := cli.Table{Columns: []string{"NAME", "CONTAINER", "IMAGE", "DIGEST", "OUTDATED", "VERIFIED", "SINCE"}}
	short := func(digest, none string) string {
		return strings.TrimPrefix(cmp.Or(reference.ShortDigest(digest), none), "sha256:")
	}
	drift := func(c answers.LocalContainer) string {
		if c.OutdatedUnknown != "" {
			return table.Unknown
		}
		return short(c.Outdated, table.None)
	}
	for _, c := range containers {
		since := table.Unknown
		if c.Since != nil {
			since = metatable.ConvertToHumanReadableDateType(*c.Since)
		}
		t.Rows = append(t.Rows, []string{c.Cluster + ":" + namespace + ":" + c.Pod, c.Name, c.Image, short(c.Digest, table.Unknown), drift(c), c.Verified, since})
	}
	return t.Print(cmd.OutOrStdout())
}
