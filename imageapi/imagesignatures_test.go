package imageapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

func (s storages) sign(sig imagev1.ImageSignature) (*imagev1.ImageSignature, error) {
	obj, err := s.signatures.Create(requestContext(), &sig, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageSignature), nil
}

func (s storages) unsign(name string, options *metav1.DeleteOptions) error {
	_, _, err := s.signatures.Delete(requestContext(), name, rest.ValidateAllObjectFunc, options)
	return err
}

// signatureNames are the names of an image's signatures after the "@".
func signatureNames(t *testing.T, image *imagev1.Image) []string {
	t.Helper()
	names := []string{}
	for i := range image.Signatures {
		_, name, err := imageregistry.SplitSignatureName(image.Signatures[i].Name)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	return names
}

func TestCreateSignature(t *testing.T) {
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	sig := signature(image.Name, "a", "AtomicImageV1", "bytes")
	sig.Conditions = []imagev1.SignatureCondition{condition(verdicts.Trusted, "True", 1), condition(verdicts.ForImage, "True", 1)}
	sig.ImageIdentity, sig.SignedClaims = "a/b", map[string]string{"a": "b"}
	sig.IssuedBy, sig.IssuedTo = &imagev1.SignatureIssuer{}, &imagev1.SignatureSubject{}
	created, err := s.sign(sig)
	if err != nil {
		t.Fatal(err)
	}
	want := signature(image.Name, "a", "AtomicImageV1", "bytes")
	want.UID, want.CreationTimestamp = created.UID, created.CreationTimestamp
	if created.UID == "" || created.CreationTimestamp.IsZero() {
		t.Error("no UID or creation time")
	}
	// What only a verifier may say is gone.
	if diff := cmp.Diff(&want, created); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]imagev1.ImageSignature{want}, s.get(t, image.Name).Signatures); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
}

// While it is not known which policies are in force, nothing is judged, and so nothing is stored:
// by those of before a verdict would be stored that nobody judges again.
func TestNothingIsJudgedByFormerPolicies(t *testing.T) {
	v := &stubVerifier{}
	s := newStorages(t, v)
	image := s.mustCreate(t, plainImage())
	v.stale = errors.New("the copy lags behind")
	changed := s.get(t, image.Name)
	changed.Annotations = map[string]string{"example.com/a": "b"}
	_, signed := s.sign(signature(image.Name, "a", "AtomicImageV1", "good"))
	_, updated := s.update(changed)
	for what, err := range map[string]error{"signed": signed, "updated": updated} {
		if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "the copy lags behind") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := s.get(t, image.Name); len(got.Signatures) > 0 || got.ResourceVersion != image.ResourceVersion || v.calls > 0 {
		t.Errorf("stored %+v after %d verdicts", got.ObjectMeta, v.calls)
	}
	v.stale = nil
	if _, err := s.sign(signature(image.Name, "a", "AtomicImageV1", "good")); err != nil || v.calls == 0 {
		t.Errorf("%v after %d verdicts", err, v.calls)
	}
}

func TestCreateSignatureRefuses(t *testing.T) {
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	if _, err := s.sign(signature(image.Name, "a", "AtomicImageV1", "bytes")); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		sig  imagev1.ImageSignature
		want func(error) bool
	}{
		{"unknown image", signature("absent", "a", "x", "y"), apierrors.IsNotFound},
		{"same name", signature(image.Name, "a", "other", "bytes"), apierrors.IsAlreadyExists},
		{"same type and content", signature(image.Name, "b", "AtomicImageV1", "bytes"), apierrors.IsAlreadyExists},
		{"same format by its other name", signature(image.Name, "b", "atomic", "bytes"), apierrors.IsAlreadyExists},
		{"no image in the name", signature("", "a", "x", "y"), apierrors.IsInvalid},
		{"no content", signature(image.Name, "b", "x", ""), apierrors.IsInvalid},
		{"no type", signature(image.Name, "b", "", "x"), apierrors.IsInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := s.sign(tt.sig); !tt.want(err) {
				t.Errorf("error %v", err)
			}
		})
	}
	if names := signatureNames(t, s.get(t, image.Name)); len(names) != 1 {
		t.Errorf("signatures %v", names)
	}
	_, err := s.sign(signature("absent", "a", "x", "y"))
	if want := `images.image.openshift.io "absent" not found`; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

// openshift-apiserver reads and writes the image without retrying: one of two concurrent POSTs
// fails. Here all succeed, each once.
func TestCreateSignatureConcurrently(t *testing.T) {
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	const n = 16
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			_, errs[i] = s.sign(signature(image.Name, fmt.Sprintf("s%02d", i), "x", fmt.Sprint(i)))
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("signature %d: %v", i, err)
		}
	}
	if names := signatureNames(t, s.get(t, image.Name)); len(names) != n {
		t.Errorf("%d signatures, want %d: %v", len(names), n, names)
	}
}

func TestCreateSignatureDryRun(t *testing.T) {
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	sig := signature(image.Name, "a", "x", "y")
	if _, err := s.signatures.Create(requestContext(), &sig, nil, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if names := signatureNames(t, s.get(t, image.Name)); len(names) != 0 {
		t.Errorf("signatures after a dry run: %v", names)
	}
}

func TestDeleteSignature(t *testing.T) {
	s := newStorages(t, nil)
	image := s.mustCreate(t, ociImage(t))
	for _, name := range []string{"a", "b"} {
		if _, err := s.sign(signature(image.Name, name, "x", name)); err != nil {
			t.Fatal(err)
		}
	}
	other := types.UID("other")
	if err := s.unsign(image.Name+"@a", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("another UID: %v, want 409", err)
	}
	if err := s.unsign(image.Name+"@a", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b"}, signatureNames(t, s.get(t, image.Name))); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{
		image.Name + "@a": `imagesignatures.image.openshift.io "` + image.Name + `@a" not found`,
		"absent@a":        `images.image.openshift.io "absent" not found`,
	} {
		if err := s.unsign(name, &metav1.DeleteOptions{}); !apierrors.IsNotFound(err) || err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if err := s.unsign("a", &metav1.DeleteOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("a name without an image: %v", err)
	}
}

// A signature is not a thing one can read or list.
func TestSignaturesAreWriteOnly(t *testing.T) {
	var r any = newStorages(t, nil).signatures
	if _, ok := r.(rest.Getter); ok {
		t.Error("has get")
	}
	if _, ok := r.(rest.Lister); ok {
		t.Error("has list")
	}
	if _, ok := r.(rest.Watcher); ok {
		t.Error("has watch")
	}
	if _, ok := r.(rest.Updater); ok {
		t.Error("has update")
	}
}

// stubVerifier trusts signatures whose content is "good", on images of registry.example.com.
type stubVerifier struct {
	mu    sync.Mutex
	calls int
	saw   []imagev1.SignatureCondition // of the first signature, as handed in
	stale error                        // why it is not known by what to judge
}

func (v *stubVerifier) Current(context.Context) error { return v.stale }

func (v *stubVerifier) Verify(_ context.Context, image *imagev1.Image, _ func(string) ([]*imagev1.Image, error)) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(image.Signatures) == 0 {
		return false
	}
	v.calls++
	v.saw = image.Signatures[0].Conditions
	if image.DockerImageReference == "uncovered.example.com/a:1" {
		return false
	}
	for i := range image.Signatures {
		s := &image.Signatures[i]
		status := corev1.ConditionFalse
		if string(s.Content) == "good" {
			status = corev1.ConditionTrue
		}
		s.Conditions = []imagev1.SignatureCondition{condition(verdicts.Trusted, status, v.calls), condition(verdicts.ForImage, "True", v.calls)}
		s.ImageIdentity = "verified"
	}
	image.Annotations = map[string]string{"policy": "hash"}
	return true
}

type warnings struct{ texts []string }

func (w *warnings) AddWarning(_, text string) { w.texts = append(w.texts, text) }

func trustOf(image *imagev1.Image) []string {
	out := []string{}
	for _, s := range image.Signatures {
		trust := "none"
		for _, c := range s.Conditions {
			if c.Type == verdicts.Trusted {
				trust = string(c.Status)
			}
		}
		out = append(out, trust)
	}
	return out
}

// The server's verdict stands on an image that a policy covers, by whatever way a signature is
// written.
func TestVerdictIsTheServers(t *testing.T) {
	forged := signature("plain", "forged", "x", "bad")
	forged.Conditions = []imagev1.SignatureCondition{condition(verdicts.Trusted, "True", 1), condition(verdicts.ForImage, "True", 1)}
	forged.ImageIdentity = "forged"
	good := signature("plain", "good", "x", "good")

	t.Run("create", func(t *testing.T) {
		s := newStorages(t, &stubVerifier{})
		image := plainImage()
		image.Signatures = []imagev1.ImageSignature{forged, good}
		created := s.mustCreate(t, image)
		if diff := cmp.Diff([]string{"False", "True"}, trustOf(created)); diff != "" {
			t.Error(diff)
		}
		if created.Annotations["policy"] != "hash" {
			t.Errorf("annotations %v", created.Annotations)
		}
	})
	t.Run("POST imagesignatures", func(t *testing.T) {
		s := newStorages(t, &stubVerifier{})
		s.mustCreate(t, plainImage())
		if _, err := s.sign(forged); err != nil {
			t.Fatal(err)
		}
		created, err := s.sign(good)
		if err != nil {
			t.Fatal(err)
		}
		if created.ImageIdentity != "verified" {
			t.Errorf("the answer has no verdict: %+v", created)
		}
		if diff := cmp.Diff([]string{"False", "True"}, trustOf(s.get(t, "plain"))); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("update", func(t *testing.T) {
		v := &stubVerifier{}
		s := newStorages(t, v)
		image := plainImage()
		image.Signatures = []imagev1.ImageSignature{signature("plain", "a", "x", "bad")}
		created := s.mustCreate(t, image)
		changed := created.DeepCopy()
		changed.Signatures[0].Conditions[0].Status = "True"
		w := &warnings{}
		obj, _, err := s.images.Update(warning.WithWarningRecorder(requestContext(), w), "plain", rest.DefaultUpdatedObjectInfo(changed), nil, nil, false, &metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"False"}, trustOf(obj.(*imagev1.Image))); diff != "" {
			t.Error(diff)
		}
		if len(w.texts) != 1 {
			t.Errorf("warnings %v, want one", w.texts)
		}
		// The verifier is handed the stored verdict, not the forged one.
		if diff := cmp.Diff(created.Signatures[0].Conditions, v.saw); diff != "" {
			t.Errorf("handed in (-stored +got):\n%s", diff)
		}
	})
	t.Run("a forged verdict under a known name and other bytes", func(t *testing.T) {
		v := &stubVerifier{}
		s := newStorages(t, v)
		image := plainImage()
		image.Signatures = []imagev1.ImageSignature{signature("plain", "a", "x", "good")}
		created := s.mustCreate(t, image)
		changed := created.DeepCopy()
		changed.Signatures[0].Content = []byte("bad")
		updated, err := s.update(changed)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"False"}, trustOf(updated)); diff != "" {
			t.Error(diff)
		}
		if len(v.saw) != 0 {
			t.Errorf("other bytes inherit a verdict: %v", v.saw)
		}
	})
	t.Run("no policy: the administrator's", func(t *testing.T) {
		s := newStorages(t, &stubVerifier{})
		image := plainImage()
		image.DockerImageReference = "uncovered.example.com/a:1"
		image.Signatures = []imagev1.ImageSignature{forged}
		created := s.mustCreate(t, image)
		if diff := cmp.Diff([]imagev1.ImageSignature{forged}, created.Signatures); diff != "" {
			t.Error(diff)
		}
	})
}

// Writes that touch neither signatures nor reference cost no verification.
func TestVerifyOnlyWhatChanged(t *testing.T) {
	v := &stubVerifier{}
	s := newStorages(t, v)
	image := plainImage()
	image.Signatures = []imagev1.ImageSignature{signature("plain", "a", "x", "good")}
	created := s.mustCreate(t, image)
	created.Labels = map[string]string{"a": "b"}
	updated, err := s.update(created)
	if err != nil {
		t.Fatal(err)
	}
	if v.calls != 1 {
		t.Errorf("%d verifications after a label, want 1", v.calls)
	}
	updated.DockerImageReference = "elsewhere.example.com/a:1"
	if _, err := s.update(updated); err != nil {
		t.Fatal(err)
	}
	if v.calls != 2 {
		t.Errorf("%d verifications after another reference, want 2", v.calls)
	}
}
