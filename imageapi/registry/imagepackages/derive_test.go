package imagepackages

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
)

const digest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

// stored are images by name; an error is that of the storage.
type stored struct {
	images map[string]*imagev1.Image
	err    error
}

func (s stored) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if image := s.images[name]; image != nil || s.err != nil {
		return image, s.err
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

func statementOf(digest, typ, predicate string) string {
	return fmt.Sprintf(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":%q,"predicate":%s}`, strings.TrimPrefix(digest, "sha256:"), typ, predicate)
}

func envelopeOf(statement, more string) string {
	return `{"payloadType":"` + payload.MediaTypeInToto + `","payload":"` + base64.StdEncoding.EncodeToString([]byte(statement)) + `","signatures":[{"sig":"AA=="}]` + more + `}`
}

func spdxOf(name string) string {
	return `{"spdxVersion":"SPDX-2.3","packages":[{"name":"` + name + `","SPDXID":"x"}]}`
}

// attested is an image with an attestation.
func attested(t *testing.T, envelope string) *imagev1.Image {
	t.Helper()
	content, err := (&payload.Blob{MediaType: payload.MediaTypeEnvelope, Payload: []byte(envelope), Annotations: map[string]string{}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, Signatures: []imagev1.ImageSignature{
		{ObjectMeta: metav1.ObjectMeta{Name: digest + "@s"}, Type: verdicts.TypeAttestation, Content: content},
		{ObjectMeta: metav1.ObjectMeta{Name: digest + "@other"}, Type: "SigstoreBundleV03", Content: content},
	}}
}

func as(groups ...string) context.Context {
	return genericapirequest.WithUser(context.Background(), &user.DefaultInfo{Name: "who", Groups: groups})
}

func forged(signature, index string) *packages.ImagePackages {
	return &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}, Sources: []packages.Source{{
		Repository: "example.com/app", Manifest: digest, Blob: digest, Signature: signature, Index: index, DerivedFrom: digest,
		Format: packages.FormatSPDX, Packages: []packages.Package{{Name: "harmless"}}, Statements: []packages.Statement{{Vulnerability: "CVE-1", Status: "not_affected"}}, Author: "Ann",
		Problem: packages.JoinProblem("", "3 more documents"),
	}}}
}

// What a client writes about a signed document does not count: the server reads the document from
// the signature that the image holds.
func TestAttackForgedPackages(t *testing.T) {
	t.Parallel()
	spdx := statementOf(digest, "https://spdx.dev/Document", spdxOf("log4j-core"))
	signedSBOM, err := payload.ParseStatement([]byte(spdx))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		envelope, signature string
		derived             string
		names               string
		problem             string
	}{
		"a signed SBOM":                 {envelopeOf(spdx, ""), "s", signedSBOM.Sum, "log4j-core", ""},
		"a signature that is not there": {envelopeOf(spdx, ""), "t", "", "harmless", ""},
		"one that is no attestation":    {envelopeOf(spdx, ""), "other", "", "harmless", ""},
		"two payloads":                  {envelopeOf(spdx, `,"dsseEnvelope":{"payload":""}`), "s", "", "", "unknown key"},
		"another image's":               {envelopeOf(statementOf("sha256:2222", "https://spdx.dev/Document", spdxOf("x")), ""), "s", "*", "", "another image"},
		"provenance that looks like it": {envelopeOf(statementOf(digest, "https://slsa.dev/provenance/v1", spdxOf("x")), ""), "s", "*", "", "not one of an SBOM"},
	} {
		r := &REST{images: stored{images: map[string]*imagev1.Image{digest: attested(t, tc.envelope)}}}
		list := forged(tc.signature, "")
		// an administrator's word does not count either
		if err := r.derive(as(user.SystemPrivilegedGroup), list, list.DeepCopy()); err != nil {
			t.Fatal(err)
		}
		s := &list.Sources[0]
		all, err := s.All()
		if err != nil {
			t.Fatal(err)
		}
		names := ""
		for _, p := range all {
			names += p.Name
		}
		if s.DerivedFrom != tc.derived && tc.derived != "*" || names != tc.names || !s.Signed {
			t.Errorf("%s: derived from %q, packages %q, want %q and %q", name, s.DerivedFrom, names, tc.derived, tc.names)
		}
		if tc.names != "harmless" && (len(s.Statements) > 0 || s.Author != "") {
			t.Errorf("%s: the client's statements stay: %+v", name, s)
		}
		if own, note := packages.SplitProblem(s.Problem); !strings.Contains(own, tc.problem) || note != "3 more documents" {
			t.Errorf("%s: problem %q", name, s.Problem)
		}
	}
}

// A document that an index lists is read by whoever writes the list. It counts as read by the
// server if the server, or an administrator, wrote it, and others left it so.
func TestAttackForgedPackagesOfIndexes(t *testing.T) {
	t.Parallel()
	r, index := &REST{images: stored{}}, "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	fresh := forged("", index)
	if err := r.derive(as("developers"), fresh, nil); err != nil || fresh.Sources[0].DerivedFrom != "" {
		t.Errorf("a client's: %+v, %v", fresh.Sources[0], err)
	}
	own := forged("", index)
	if err := r.derive(as(user.SystemPrivilegedGroup), own, nil); err != nil || own.Sources[0].DerivedFrom != digest {
		t.Fatalf("the server's: %+v, %v", own.Sources[0], err)
	}
	same := own.DeepCopy()
	same.Sources[0].Packages, same.Sources[0].Packed = []packages.Package{{Name: "harmless"}}, nil // as it is read by its name
	same.Sources[0].DerivedFrom = ""
	if err := r.derive(as("developers"), same, own); err != nil || same.Sources[0].DerivedFrom != digest {
		t.Errorf("one that a client leaves as it is: %+v, %v", same.Sources[0], err)
	}
	for what, change := range map[string]func(*packages.Source){
		"packages":   func(s *packages.Source) { s.Packed, s.Packages = nil, []packages.Package{{Name: "other"}} },
		"statements": func(s *packages.Source) { s.Statements = nil },
		"blob":       func(s *packages.Source) { s.Blob = index },
		"index":      func(s *packages.Source) { s.Index = digest },
		"problem":    func(s *packages.Source) { s.Problem = "none" },
	} {
		changed := own.DeepCopy()
		change(&changed.Sources[0])
		if err := r.derive(as("developers"), changed, own); err != nil || changed.Sources[0].DerivedFrom != "" {
			t.Errorf("other %s: %+v, %v", what, changed.Sources[0], err)
		}
	}
}

// If it is not known what the image holds, the list is not written.
func TestDeriveNeedsTheImage(t *testing.T) {
	t.Parallel()
	r := &REST{images: stored{err: apierrors.NewTimeoutError("busy", 1)}}
	if err := r.derive(as(), forged("s", ""), nil); err == nil {
		t.Error("written without the image")
	}
}

// Whatever the bytes of an envelope are, they are refused, or the packages are those of the
// statement that a verifier gets.
func FuzzDerive(f *testing.F) {
	spdx := statementOf(digest, "https://spdx.dev/Document", spdxOf("log4j-core"))
	for _, more := range []string{"", `,"dsseEnvelope":{"payload":"` + base64.StdEncoding.EncodeToString([]byte(spdx)) + `"}`, `,"spdxVersion":"SPDX-2.3","packages":[{"name":"x"}]`} {
		f.Add([]byte(envelopeOf(spdx, more)))
		f.Add([]byte(`{"mediaType":"x","dsseEnvelope":` + envelopeOf(spdx, "") + more + `}`))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s := forged("s", "").Sources[0]
		s.DerivedFrom = ""
		read(&s, content, digest)
		statement, err := payload.ParseAttestation(content)
		switch {
		case err != nil && (s.DerivedFrom != "" || s.Format != "" || s.Packed != nil || s.Statements != nil):
			t.Fatalf("refused, and read as %+v", s)
		case err == nil && s.DerivedFrom != statement.Sum:
			t.Fatalf("derived from %q, verified is %q", s.DerivedFrom, statement.Sum)
		case err == nil && s.Format != "" && !statement.Covers(digest):
			t.Fatalf("read as of the image, and about another: %s", content)
		}
	})
}
