package imageapi_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// observing is told of verdicts that change.
type observing func(image *imagev1.Image, verified string, signers []string)

func (o observing) VerdictChanged(image *imagev1.Image, _, verified string, signers []string) {
	o(image, verified, signers)
}

func (observing) JudgedAgain(*imagev1.Image, []signatures.Change, bool) {}

func (observing) IndexVerdictChanged(*imagev1.Image) {}

// judgedAgain is told of images that are judged again, counts the verdicts that turned, and whether
// the write was a sweep's.
type judgedAgain func(turned int, swept bool)

func (judgedAgain) VerdictChanged(*imagev1.Image, string, string, []string) {}

func (o judgedAgain) JudgedAgain(_ *imagev1.Image, turned []signatures.Change, swept bool) {
	o(len(turned), swept)
}

func (judgedAgain) IndexVerdictChanged(*imagev1.Image) {}

// Whoever is told of images that are judged again is told of other signers, too, and which verdicts
// turned: also those of a namespace, and of a tag alone.
func TestJudgedAgainIsTold(t *testing.T) {
	var told []int
	sweeps := false
	s := newStoragesWith(t, imageapi.Options{
		Images: imageregistry.Options{Verdicts: saying(saidSummary), Observer: judgedAgain(func(turned int, swept bool) {
			if told = append(told, turned); swept != sweeps {
				t.Errorf("it is told that a sweep made the write: %v", swept)
			}
		})},
	})
	const repository = "r.example.com/app"
	s.mustCreate(t, plain("a", "Unsigned"))
	for _, step := range []struct {
		what, key, value string
		want             []int
	}{
		{"its references", annotation.References, `["` + repository + `:v1"]`, nil},
		{"a first verdict", annotation.Verdicts, `{"` + repository + `":{"verified":"True","signers":["ann"]}}`, []int{1}},
		{"another signer", annotation.Verdicts, `{"` + repository + `":{"verified":"True","signers":["bob"]}}`, []int{0}},
		{"for a namespace", annotation.NamespaceVerdicts, `{"` + repository + `#team":{"verified":"False"}}`, []int{1}},
		{"another reason there", annotation.NamespaceVerdicts, `{"` + repository + `#team":{"verified":"False","reason":"x"}}`, []int{0}},
		{"for a tag", annotation.TagVerdicts, `{"` + repository + `:v1":{"verified":"False"}}`, []int{1}},
		{"a label", "label", "x", nil},
		{"by a sweep", annotation.Policy, "again", []int{0}},
	} {
		told, sweeps = nil, step.value == "again"
		image := s.get(t, "a").DeepCopy()
		metav1.SetMetaDataAnnotation(&image.ObjectMeta, step.key, step.value)
		if _, err := s.update(image); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if diff := cmp.Diff(step.want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
	}
}

// Whoever is told of verdicts is told of each that changed, and of no other.
func TestVerdictChangedIsTold(t *testing.T) {
	var told []string
	s := newStoragesWith(t, imageapi.Options{
		Images: imageregistry.Options{Verdicts: saying(saidSummary), Observer: observing(func(image *imagev1.Image, verified string, signers []string) {
			if image.UID == "" || image.ResourceVersion == "" {
				t.Errorf("told of %q before it was stored", image.Name)
			}
			told = append(told, fmt.Sprint(image.Name, " ", verified, signers))
		})},
	})
	step := func(what string, do func() error, want ...string) {
		t.Helper()
		told = nil
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, told); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	create := func(name, summary string) func() error {
		return func() error { _, err := s.create(plain(name, summary)); return err }
	}
	say := func(summary, label string, dryRun ...string) func() error {
		return func() error {
			image := s.get(t, "a").DeepCopy()
			image.Annotations["summary"], image.Labels = summary, map[string]string{"label": label}
			_, _, err := s.images.Update(requestContext(), "a", rest.DefaultUpdatedObjectInfo(image), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{DryRun: dryRun})
			return err
		}
	}
	step("a new unsigned image", create("a", "Unsigned"), "a Unsigned[]")
	step("a new signed image", create("b", "True|ann"), "b True[ann]")
	step("a signature is added", say("True|ann", "1"), "a True[ann]")
	step("another change", say("True|ann", "2"))
	step("a dry run", say("False", "2", metav1.DryRunAll))
	step("another signer", say("True|ann|bob", "2"), "a True[ann bob]")
	step("no longer trusted", say("False", "2"), "a False[]")
	step("signatures are removed", say("Unsigned", "2"), "a Unsigned[]")

	refused := s.get(t, "a").DeepCopy()
	refused.Annotations["summary"], refused.ResourceVersion = "True|ann", "1"
	told = nil
	if _, err := s.update(refused); err == nil || told != nil {
		t.Errorf("a refused write: %v, told %q", err, told)
	}
}
