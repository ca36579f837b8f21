package imageapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

func condition(t imagev1.SignatureConditionType, status corev1.ConditionStatus, probed int) imagev1.SignatureCondition {
	return imagev1.SignatureCondition{Type: t, Status: status, LastProbeTime: metav1.Unix(int64(probed), 0), LastTransitionTime: metav1.Unix(0, 0)}
}

func TestValidateImage(t *testing.T) {
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	child := imagev1.ImageManifest{Digest: digest, MediaType: manifest.MediaTypeOCIManifest, ManifestSize: 1, Architecture: "arm64", OS: "linux"}
	changeChild := func(change func(*imagev1.ImageManifest)) func(*imagev1.Image) {
		return func(image *imagev1.Image) {
			m := child
			change(&m)
			image.DockerImageManifests = []imagev1.ImageManifest{m}
		}
	}
	tests := []struct {
		name   string
		change func(*imagev1.Image)
		want   []string
	}{
		{"valid", func(*imagev1.Image) {}, nil},
		{"valid: index without its manifest", changeChild(func(*imagev1.ImageManifest) {}), nil},
		{"valid: no metadata", func(i *imagev1.Image) { i.DockerImageMetadata.Raw = nil }, nil},
		{"valid: short reference", func(i *imagev1.Image) { i.DockerImageReference = "alpine" }, nil},

		{"name: missing", func(i *imagev1.Image) { i.Name = "" }, []string{"FieldValueRequired metadata.name"}},
		{"name: dot", func(i *imagev1.Image) { i.Name = "." }, []string{"FieldValueInvalid metadata.name"}},
		{"name: two dots", func(i *imagev1.Image) { i.Name = ".." }, []string{"FieldValueInvalid metadata.name"}},
		{"name: slash", func(i *imagev1.Image) { i.Name = "a/b" }, []string{"FieldValueInvalid metadata.name"}},
		{"name: percent", func(i *imagev1.Image) { i.Name = "a%b" }, []string{"FieldValueInvalid metadata.name"}},
		{"namespace", func(i *imagev1.Image) { i.Namespace = "x" }, []string{"FieldValueForbidden metadata.namespace"}},

		{"reference: missing", func(i *imagev1.Image) { i.DockerImageReference = "" }, []string{"FieldValueRequired dockerImageReference"}},
		{"reference: unparsable", func(i *imagev1.Image) { i.DockerImageReference = "http://x/Y z" }, []string{"FieldValueInvalid dockerImageReference"}},
		{"reference: short digest", func(i *imagev1.Image) { i.DockerImageReference = "a/b@sha256:12" }, []string{"FieldValueInvalid dockerImageReference"}},

		{"metadata: no JSON", func(i *imagev1.Image) { i.DockerImageMetadata.Raw = []byte("x") }, []string{"FieldValueInvalid dockerImageMetadata"}},
		{"metadata: field of a wrong type", func(i *imagev1.Image) { i.DockerImageMetadata.Raw = []byte(`{"Size":"big"}`) }, []string{"FieldValueInvalid dockerImageMetadata"}},
		{"metadata: a field twice", func(i *imagev1.Image) {
			i.DockerImageMetadata.Raw = []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Size":1,"Size":2}`)
		}, []string{"FieldValueInvalid dockerImageMetadata"}},
		{"metadata: another kind", func(i *imagev1.Image) {
			i.DockerImageMetadata.Raw = []byte(`{"kind":"Pod","apiVersion":"v1"}`)
		}, []string{"FieldValueNotSupported dockerImageMetadata.kind", "FieldValueNotSupported dockerImageMetadata.apiVersion"}},

		{"manifests: digest", changeChild(func(m *imagev1.ImageManifest) { m.Digest = "sha256:12" }), []string{"FieldValueInvalid dockerImageManifests[0].digest"}},
		{"manifests: digest is anchored", changeChild(func(m *imagev1.ImageManifest) { m.Digest = "x/" + digest + "/x" }), []string{"FieldValueInvalid dockerImageManifests[0].digest"}},
		{"manifests: media type", changeChild(func(m *imagev1.ImageManifest) { m.MediaType = "json" }), []string{"FieldValueInvalid dockerImageManifests[0].mediaType"}},
		{"manifests: architecture", changeChild(func(m *imagev1.ImageManifest) { m.Architecture = "" }), []string{"FieldValueRequired dockerImageManifests[0].architecture"}},
		{"manifests: os", changeChild(func(m *imagev1.ImageManifest) { m.OS = "" }), []string{"FieldValueRequired dockerImageManifests[0].os"}},
		{"manifests: size", changeChild(func(m *imagev1.ImageManifest) { m.ManifestSize = -1 }), []string{"FieldValueInvalid dockerImageManifests[0].size"}},
		{"manifests and layers", func(i *imagev1.Image) {
			i.DockerImageManifests = []imagev1.ImageManifest{child}
			i.DockerImageLayers = []imagev1.ImageLayer{{Name: digest}}
		}, []string{"FieldValueInvalid dockerImageLayers"}},
		{"config: too long", func(i *imagev1.Image) { i.DockerImageConfig = strings.Repeat(" ", manifest.MaxConfigSize+1) }, []string{"FieldValueTooLong dockerImageConfig"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := plainImage()
			tt.change(image)
			if diff := cmp.Diff(append([]string{}, tt.want...), problems(imageregistry.ValidateImage(image))); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidateImageSignatures(t *testing.T) {
	const trusted, forImage = verdicts.Trusted, verdicts.ForImage
	tests := []struct {
		name   string
		change func(*imagev1.ImageSignature)
		want   []string
	}{
		{"valid", func(*imagev1.ImageSignature) {}, nil},
		{"valid: both conditions", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(trusted, "True", 1), condition(forImage, "True", 1)}
			s.ImageIdentity, s.SignedClaims = "a/b", map[string]string{"a": "b"}
			s.IssuedBy, s.IssuedTo = &imagev1.SignatureIssuer{}, &imagev1.SignatureSubject{}
		}, nil},
		{"valid: other order", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(forImage, "True", 1), condition(trusted, "True", 1)}
		}, nil},
		{"labels", func(s *imagev1.ImageSignature) { s.Labels = map[string]string{"a": "b"} }, []string{"FieldValueForbidden signatures[0].metadata.labels"}},
		{"annotations", func(s *imagev1.ImageSignature) { s.Annotations = map[string]string{"a": "b"} }, []string{"FieldValueForbidden signatures[0].metadata.annotations"}},
		{"name: no at sign", func(s *imagev1.ImageSignature) { s.Name = "plain" }, []string{"FieldValueInvalid signatures[0].metadata.name"}},
		{"name: two at signs", func(s *imagev1.ImageSignature) { s.Name = "plain@a@b" }, []string{"FieldValueInvalid signatures[0].metadata.name"}},
		{"name: no image", func(s *imagev1.ImageSignature) { s.Name = "@a" }, []string{"FieldValueInvalid signatures[0].metadata.name"}},
		{"name: no signature", func(s *imagev1.ImageSignature) { s.Name = "plain@" }, []string{"FieldValueInvalid signatures[0].metadata.name"}},
		{"type", func(s *imagev1.ImageSignature) { s.Type = "" }, []string{"FieldValueRequired signatures[0].type"}},
		{"content", func(s *imagev1.ImageSignature) { s.Content = nil }, []string{"FieldValueRequired signatures[0].content"}},
		{"content: too long", func(s *imagev1.ImageSignature) { s.Content = make([]byte, verdicts.MaxContent+1) }, []string{"FieldValueTooLong signatures[0].content"}},
		{"Trusted without ForImage", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(trusted, "True", 1)}
		}, []string{"FieldValueInvalid signatures[0].conditions"}},
		{"ForImage without Trusted", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(forImage, "True", 1)}
		}, []string{"FieldValueInvalid signatures[0].conditions"}},
		// openshift-apiserver panics on these: an && and an || without parentheses.
		{"Expired alone", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(verdicts.Expired, "True", 1)}
		}, nil},
		{"Expired before ForImage", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(verdicts.Expired, "True", 9), condition(forImage, "True", 1), condition(trusted, "True", 1)}
		}, nil},
		{"second Trusted before ForImage", func(s *imagev1.ImageSignature) {
			s.Conditions = []imagev1.SignatureCondition{condition(trusted, "True", 9), condition(trusted, "True", 1)}
		}, []string{"FieldValueInvalid signatures[0].conditions"}},
		{"claims without a verdict", func(s *imagev1.ImageSignature) {
			s.ImageIdentity, s.SignedClaims = "a/b", map[string]string{"a": "b"}
			s.IssuedBy, s.IssuedTo = &imagev1.SignatureIssuer{}, &imagev1.SignatureSubject{}
		}, []string{"FieldValueInvalid signatures[0].imageIdentity", "FieldValueInvalid signatures[0].signedClaims", "FieldValueInvalid signatures[0].issuedBy", "FieldValueInvalid signatures[0].issuedTo"}},
		{"claims and newest Trusted is Unknown", func(s *imagev1.ImageSignature) {
			s.ImageIdentity = "a/b"
			s.Conditions = []imagev1.SignatureCondition{condition(trusted, "Unknown", 9), condition(trusted, "True", 1), condition(forImage, "True", 1)}
		}, []string{"FieldValueInvalid signatures[0].imageIdentity"}},
		{"claims and newest Trusted is False", func(s *imagev1.ImageSignature) {
			s.ImageIdentity = "a/b"
			s.Conditions = []imagev1.SignatureCondition{condition(trusted, "Unknown", 1), condition(trusted, "False", 9), condition(forImage, "True", 1)}
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			image := plainImage()
			s := signature("plain", "a", "AtomicImageV1", "bytes")
			tt.change(&s)
			image.Signatures = []imagev1.ImageSignature{s}
			if diff := cmp.Diff(append([]string{}, tt.want...), problems(imageregistry.ValidateImage(image))); diff != "" {
				t.Errorf("errors (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("two of one name", func(t *testing.T) {
		image := plainImage()
		image.Signatures = []imagev1.ImageSignature{signature("plain", "a", "x", "1"), signature("plain", "a", "x", "2")}
		if diff := cmp.Diff([]string{"FieldValueDuplicate signatures[1].metadata.name"}, problems(imageregistry.ValidateImage(image))); diff != "" {
			t.Errorf("errors (-want +got):\n%s", diff)
		}
	})
}

// Every subset and order of the four conditions, with every order of their times: no panic, and
// Trusted and ForImage are accepted only together.
func TestConditionsNeverPanic(t *testing.T) {
	types := []imagev1.SignatureConditionType{verdicts.Trusted, verdicts.ForImage, verdicts.Expired, verdicts.Revoked, "Other"}
	var try func(conditions []imagev1.SignatureCondition)
	try = func(conditions []imagev1.SignatureCondition) {
		image := plainImage()
		s := signature("plain", "a", "x", "1")
		s.Conditions = conditions
		image.Signatures = []imagev1.ImageSignature{s}
		has := map[imagev1.SignatureConditionType]bool{}
		for _, c := range conditions {
			has[c.Type] = true
		}
		ok := len(imageregistry.ValidateImage(image)) == 0
		if ok != (has[verdicts.Trusted] == has[verdicts.ForImage]) {
			t.Fatalf("conditions %v: accepted is %v", conditions, ok)
		}
		if len(conditions) == 3 {
			return
		}
		for _, ct := range types {
			for probed := range 3 {
				try(append(conditions[:len(conditions):len(conditions)], condition(ct, "True", probed*int(time.Second))))
			}
		}
	}
	try(nil)
}
