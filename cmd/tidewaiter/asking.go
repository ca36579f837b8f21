package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// reviewsPath is the path of reviews of references on a server.
var reviewsPath = "/apis/" + answers.GroupVersion.String() + "/" + answers.Resource

// review sends questions to the server and returns its answer.
func (l *looker) review(ctx context.Context, spec answers.ReferenceReviewSpec) ([]byte, error) {
	return l.send(ctx, reviewsPath, "references", &answers.ReferenceReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.Kind}, Spec: spec})
}

// send sends a review of something to the server and returns its answer.
func (l *looker) send(ctx context.Context, path, of string, review any) ([]byte, error) {
	client, err := pathClient(l.Config)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	result := client.Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
	switch err := result.Error(); {
	case apierrors.IsNotFound(err):
		return nil, cli.WithHint(fmt.Errorf("%s does not review %s: it is not a tidewaiter server, or it is an older one", l.Server.destination(), of), "kubectl config current-context shows the context in use; --kubeconfig and --server select another server")
	case err != nil:
		return nil, err
	}
	return result.Raw()
}

// ask asks the server about references.
func (l *looker) ask(ctx context.Context, questions ...answers.Question) ([]answers.Answer, error) {
	raw, err := l.review(ctx, answers.ReferenceReviewSpec{References: questions, FormerTags: l.formerTags})
	if l.local != "" && apierrors.IsForbidden(err) {
		return l.askLocal(ctx, questions, err)
	}
	if err != nil {
		return nil, err
	}
	var review answers.ReferenceReview
	if err := json.Unmarshal(raw, &review); err != nil || len(review.Status.References) != len(questions) {
		return nil, fmt.Errorf("%s did not answer with a review: %w", l.Server.destination(), cmp.Or(err, errors.New("it does not answer every question")))
	}
	return review.Status.References, nil
}

// printLine prints an answer as kubectl prints a review, as a table.
func printLine(cmd *cobra.Command, wide bool, a answers.Answer) error {
	review := &answers.ReferenceReview{Status: answers.ReferenceReviewStatus{References: []answers.Answer{a}}}
	table, err := answers.Table(cmd.Context(), review)
	if err != nil {
		return err
	}
	return cli.WriteTable(cmd.OutOrStdout(), table, wide)
}

// warnUnknown warns of the parts of an answer that are not known, or not as of now.
func warnUnknown(w io.Writer, unknowns []answers.UnknownPart) {
	for _, u := range unknowns {
		fmt.Fprintf(w, "Warning: %s\n", printable.Line(u.Reason, 0))
	}
}

// warnOverwritten warns of a tag that has moved although it must not.
func warnOverwritten(w io.Writer, how *answers.Overwritten) {
	if how != nil {
		fmt.Fprintf(w, "Warning: %s\n", printable.Line(how.Message, 0))
	}
}

// found is a server's answer about a reference.
type found struct {
	answers.Answer
	// image is nil until it was read.
	image *imagev1.Image
}

// ref is the whole reference, zero if a digest was given that is in several repositories.
func (f *found) ref() reference.Reference {
	ref, err := reference.Parse(f.Meaning.Reference)
	if err != nil {
		return reference.Reference{}
	}
	return ref
}

// name is its name in messages: the whole reference, or the digest as it was given.
func (f *found) name() string {
	asked := strings.TrimSpace(f.Question.Reference)
	if f.Meaning.Tag == "" && !strings.Contains(asked, "@") {
		return asked
	}
	return cmp.Or(f.Meaning.Reference, asked)
}

// find asks what a person means. It fails unless something is known about that; an unknown image
// may run all the same, so its answer is returned beside the error.
func (l *looker) find(ctx context.Context, asked, platform string) (*found, error) {
	all, err := l.ask(ctx, answers.Question{Reference: asked, Platform: platform, Namespace: l.namespace})
	if err != nil {
		return nil, err
	}
	f := &found{Answer: all[0]}
	m := &f.Meaning
	switch f.State {
	case answers.Invalid:
		if f.Suggestion != "" {
			return nil, cli.WithHint(errors.New(f.Message), "%s", l.corrected(asked, f.Suggestion))
		}
		return nil, errors.New(f.Message)
	case answers.Ambiguous:
		text := f.Message
		if len(m.Others) > 0 {
			text += ":\n  " + strings.Join(m.Others, "\n  ")
		}
		hint := "add the name of the registry"
		switch {
		case m.Reference != "":
			hint = "tidewaiter import " + m.Reference + " looks"
		case f.Reason == answers.SeveralDigests:
			hint = "give more digits"
		}
		return nil, cli.WithHint(errors.New(text), "%s", hint)
	case answers.Unknown:
		if l.isLocal {
			return nil, cli.WithHint(errors.New(f.Message), "-n names another namespace; the role tidewaiter:image-viewer allows to ask about all images")
		}
		return nil, cli.Refused(f.Message)
	case answers.Absent:
		return f, &cli.Exit{Code: exitAbsent, Err: l.absent(ctx, f, asked)}
	}
	if len(m.Others) > 0 && !l.noted[asked] {
		l.noted[asked] = true
		fmt.Fprintf(l.notes, "Note: %s\n", f.taken())
	}
	return f, nil
}

// taken returns a note about how a short reference was understood, and its other meanings.
func (f *found) taken() string {
	return fmt.Sprintf("%s was taken to mean %s; known references that end so: %s", strings.TrimSpace(f.Question.Reference), cmp.Or(f.Meaning.Reference, f.Meaning.Digest), strings.Join(f.Meaning.Others, ", "))
}

// orElse adds the other meanings of a short reference to an error about an unknown one.
func (f *found) orElse(err error) error {
	if err == nil || f == nil || f.State != answers.Absent || len(f.Meaning.Others) == 0 {
		return err
	}
	if exit, ok := errors.AsType[*cli.Exit](err); ok {
		return &cli.Exit{Code: exit.Code, Err: cli.WithHint(exit.Err, "%s", f.taken())}
	}
	return cli.WithHint(err, "%s", f.taken())
}

// minDigits is how many digits of a digest stand for it.
const minDigits = 4

// absent returns the error for a reference that the server does not know, with advice. It never
// suggests a registry that the user did not name.
func (l *looker) absent(ctx context.Context, f *found, asked string) error {
	m, hint := &f.Meaning, ""
	err := fmt.Errorf("%s: %s does not know it", f.Message, l.Server.destination())
	runs := f.runs()
	if runs != "" {
		err = errors.New(runs)
	}
	switch {
	case f.Reason == answers.OtherPlatform:
		err, hint = errors.New(f.Message), ""
		if !strings.Contains(f.Question.Platform, "/") {
			hint = "--platform is os/architecture[/variant], such as " + m.Platforms[0].Platform
		}
	case m.Tag == "":
	case f.Suggestion != "":
		hint = "tidewaiter describe " + f.Suggestion + "; to import the tag: tidewaiter import " + m.Reference
	case len(m.Others) > 0:
		hint = f.taken()
	case runs != "" && m.Reference != "": // as its pods name it, so the registry is no guess
		hint = "tidewaiter pods -o wide says why it was not imported; to try again: tidewaiter import " + m.Reference
	case reference.NamesRegistry(asked):
		hint = "tidewaiter import " + m.Reference
		if near := l.near(ctx, f, asked); near != "" {
			hint = near + "; else: " + hint
		}
	default:
		hint = "add the name of the registry, as in registry.example.com/" + strings.TrimPrefix(asked, "/")
		if len(asked) < minDigits && strings.Trim(asked, "0123456789abcdef") == "" {
			hint = fmt.Sprintf("the beginning of a digest has at least %d digits", minDigits)
		}
		if f.Reason == answers.NoDigest {
			hint = ""
		} else if near := l.near(ctx, f, asked); near != "" {
			hint = near + "; else " + hint
		}
	}
	if len(m.KnownTags) > 0 {
		hint += "; known tags of the repository: " + strings.Join(m.KnownTags, ", ")
	}
	if hint == "" {
		return err
	}
	return cli.WithHint(err, "%s", hint)
}

// near asks whether a known repository was meant, with the command for it; "" if none is near, or
// if tags of the repository are known.
func (l *looker) near(ctx context.Context, f *found, asked string) string {
	if len(f.Meaning.KnownTags) > 0 {
		return ""
	}
	meant := l.likely(ctx, strings.TrimSpace(asked))
	if meant == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s? Try: %s", meant, l.corrected(asked, meant))
}

// one is find for the verbs that need exactly one image.
func (l *looker) one(ctx context.Context, asked, platform string) (*found, error) {
	f, err := l.find(ctx, asked, platform)
	if err != nil {
		return nil, err
	}
	if f.State == answers.Found {
		return f, nil
	}
	hint := "tidewaiter import " + cmp.Or(f.Meaning.Reference, f.name())
	if f.State == answers.Gone {
		hint = "tidewaiter history " + f.name()
	}
	message := f.Message
	if runs := f.runs(); runs != "" {
		message = runs
	}
	return nil, &cli.Exit{Code: exitAbsent, Err: cli.WithHint(errors.New(message), "%s", hint)}
}

// maxRunsNamed is how many pods a message names.
const maxRunsNamed = 3

// runs returns a note that pods run or name the image, which is not imported; "" if no known pod
// does.
func (f *found) runs() string {
	r := f.Running
	if r == nil || r.Pods == 0 {
		return ""
	}
	does := "run"
	if f.Meaning.Digest == "" {
		does = "name"
	}
	if r.Pods == 1 && r.Complete {
		does += "s"
	}
	text := fmt.Sprintf("%s; %s %s it", f.Message, podsCounted(r.Pods, r.Complete), does)
	if f.Suggestion == "" { // else what runs is imported
		text = "runs, not imported: " + text
	}
	if named := r.Names[:min(len(r.Names), maxRunsNamed)]; len(named) > 0 {
		text += ": " + strings.Join(named, ", ")
		if len(named) < int(r.Pods) {
			text += ", …"
		}
	}
	return text
}

// podsCounted is a number of pods in words.
func podsCounted(n int32, complete bool) string {
	switch {
	case n == 0 && !complete:
		return "an unknown number of pods"
	case complete:
		return table.Quantity(n, "pod")
	}
	return table.Count(int(n), false) + " pods"
}

// withImage is one, with the Image itself.
func (l *looker) withImage(ctx context.Context, asked, platform string) (*found, error) {
	f, err := l.one(ctx, asked, platform)
	if err != nil {
		return nil, err
	}
	if l.isLocal { // who may not read images is told of the verdict alone
		f.image = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: f.Meaning.Digest}}
		return f, nil
	}
	f.image, err = l.client.Get(ctx, f.Meaning.Digest, metav1.GetOptions{})
	return f, err
}

// history reads the tag that was asked for.
func (l *looker) history(ctx context.Context, f *found) (*imagev1.ImageTag, error) {
	tag, err := l.client.GetTag(ctx, tags.Name(f.ref()), metav1.GetOptions{})
	return tag, err
}
