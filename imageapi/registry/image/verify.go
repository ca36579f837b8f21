package image

import (
	"bytes"
	"context"
	"maps"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"go.opentelemetry.io/otel/trace"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// Verifier judges the signatures of an image.
type Verifier interface {
	// Current is called before a write that Verify judges. If the policies are not known, it returns
	// an error, and the write fails; it can be repeated.
	Current(ctx context.Context) error
	// Verify reports whether a policy covers image in any repository that it is in. If so, it sets
	// the verdict on every signature: conditions, imageIdentity, signedClaims, created, issuedBy
	// and issuedTo. On other images it leaves conditions that an administrator has set. It may
	// remove signatures from repositories if they are too many, and set annotations of its own.
	//
	// The signatures of image hold their stored verdicts; a new signature has none. indexes finds
	// indexes that list the image and are verified in a repository; after an error it is unknown
	// whether there are any. Verify runs within a write: it must not wait for a network.
	Verify(ctx context.Context, image *imagev1.Image, indexes func(repository string) ([]*imagev1.Image, error)) (covered bool)
}

// judgedBy are the annotations that a verdict depends on or consists of.
var judgedBy = []string{annotation.References, annotation.Gone, annotation.Repositories, annotation.Verdicts, annotation.NamespaceVerdicts, annotation.TagVerdicts, annotation.Policy, annotation.NamespacePolicy, annotation.Recheck}

// isJudged reports whether everything that a verdict depends on is as it was when old was judged.
func isJudged(image, old *imagev1.Image) bool {
	for _, key := range judgedBy {
		if image.Annotations[key] != old.Annotations[key] {
			return false
		}
	}
	return old.DockerImageReference == image.DockerImageReference && (old.DockerImageManifest == "") == (image.DockerImageManifest == "") &&
		slices.EqualFunc(old.Signatures, image.Signatures, equalSignatures)
}

// equalSignatures is DeepEqual, but compares contents faster than reflection, which goes byte by
// byte.
func equalSignatures(a, b imagev1.ImageSignature) bool {
	if !bytes.Equal(a.Content, b.Content) {
		return false
	}
	a.Content, b.Content = nil, nil
	return apiequality.Semantic.DeepEqual(a, b)
}

// verifySignatures sets the verdicts of an image that a policy covers, whatever the client sent. On
// other images the client's own conditions stay: so `oc adm verify-image-signature` records an
// administrator's judgement. old is the stored image; nil on create.
func (s *imageStrategy) verifySignatures(ctx context.Context, image, old *imagev1.Image) {
	if s.verifier == nil || old != nil && isJudged(image, old) {
		return
	}
	// A copy of the fields that a verifier may change.
	judged := new(imagev1.Image)
	*judged = *image
	judged.Annotations = maps.Clone(image.Annotations)
	storedVerdict(judged, old)
	judged.Signatures = make([]imagev1.ImageSignature, len(image.Signatures))
	for i := range image.Signatures {
		image.Signatures[i].DeepCopyInto(&judged.Signatures[i])
		ClearVerdict(&judged.Signatures[i])
		if stored := findSignature(old, &judged.Signatures[i]); stored != nil {
			copyVerdict(&judged.Signatures[i], stored)
		}
	}
	if of := trace.SpanFromContext(ctx); of.IsRecording() {
		var span trace.Span
		ctx, span = of.TracerProvider().Tracer("github.com/tidewaiter/tidewaiter/imageapi/registry/image").Start(ctx, "judge signatures")
		defer span.End()
	}
	covered := s.verifier.Verify(ctx, judged, func(repository string) ([]*imagev1.Image, error) { return s.index(ctx, repository, image.Name) })
	warned := false
	for i := range judged.Signatures {
		verdict := &judged.Signatures[i]
		sent := image.Signatures[slices.IndexFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return s.Name == verdict.Name })]
		if !claimsVerdict(&sent, findSignature(old, &sent)) {
			continue
		}
		if !covered {
			sent.DeepCopyInto(verdict)
		} else if !warned && !apiequality.Semantic.DeepEqual(sent.Conditions, verdict.Conditions) {
			warned = true
			warning.AddWarning(ctx, "", "signatures: conditions are computed by the server: a policy covers this image")
		}
	}
	if len(judged.Signatures) == 0 {
		judged.Signatures = nil
	}
	image.Signatures, image.Annotations = judged.Signatures, judged.Annotations
}

// storedVerdict gives image its stored verdict in place of the one that a client sent.
func storedVerdict(image, old *imagev1.Image) {
	for _, key := range []string{annotation.Verdicts, annotation.NamespaceVerdicts, annotation.TagVerdicts, annotation.Policy, annotation.NamespacePolicy, annotation.Recheck} {
		delete(image.Annotations, key)
		if old == nil {
			continue
		}
		if value, ok := old.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&image.ObjectMeta, key, value)
		}
	}
}

// claimsVerdict reports whether the client sent a verdict that differs from the stored one.
func claimsVerdict(sent, stored *imagev1.ImageSignature) bool {
	return len(sent.Conditions) > 0 && (stored == nil || !apiequality.Semantic.DeepEqual(sent.Conditions, stored.Conditions))
}

// findSignature returns the signature of image with the name and the bytes of s.
func findSignature(image *imagev1.Image, s *imagev1.ImageSignature) *imagev1.ImageSignature {
	if image == nil {
		return nil
	}
	for i := range image.Signatures {
		if t := &image.Signatures[i]; t.Name == s.Name && sameSignatureContent(t, s) {
			return t
		}
	}
	return nil
}

// sameSignatureContent reports whether two signatures are the same, by type and bytes. The types
// atomic and AtomicImageV1 are two names of one format.
func sameSignatureContent(a, b *imagev1.ImageSignature) bool {
	return signatureFormat(a.Type) == signatureFormat(b.Type) && bytes.Equal(a.Content, b.Content)
}

func signatureFormat(t string) string {
	if t == verdicts.TypeAtomicAlias {
		return verdicts.TypeAtomic
	}
	return t
}

// ClearVerdict removes the fields that only a verifier may set.
func ClearVerdict(s *imagev1.ImageSignature) { copyVerdict(s, &imagev1.ImageSignature{}) }

func copyVerdict(to, from *imagev1.ImageSignature) {
	from = from.DeepCopy()
	to.Conditions = from.Conditions
	to.ImageIdentity = from.ImageIdentity
	to.SignedClaims = from.SignedClaims
	to.Created = from.Created
	to.IssuedBy = from.IssuedBy
	to.IssuedTo = from.IssuedTo
}
