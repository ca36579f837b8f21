package signatures_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-go"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const translationDocument = "docs/tasks/translate-policies.md"

// translations returns the policies in a page: our blocks, each with all of its documents, and
// those of other tools.
func translations(t *testing.T) (ours, theirs []string) {
	t.Helper()
	text, err := os.ReadFile("../" + translationDocument)
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range regexp.MustCompile("(?s)```(?:yaml|json)\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(block[1], "apiVersion: config.openshift.io/v1\n") {
			ours = append(ours, block[1])
		} else {
			theirs = append(theirs, block[1])
		}
	}
	return ours, theirs
}

// Every policy of another tool in docs/tasks/translate-policies.md is refused with the page's name,
// and its translation on the page trusts exactly the same signers.
func TestTranslatedPolicies(t *testing.T) {
	t.Parallel()
	dir, present := t.TempDir(), time.Now()
	d := signaturestest.NewDeployment(t)
	alice, bob, carol := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	gpg := signaturestest.NewGPG(t, "Release", present.AddDate(0, -1, 0), 0)
	sign := signaturestest.Statement(digest, cosignSign)
	const actions, accounts = "https://token.actions.githubusercontent.com", "https://accounts.example.com"
	keyless := func(subject, issuer string, extensions map[int]string, of []byte) *imagev1.ImageSignature {
		leaf, k := d.Identity(t, subject, func(c *x509.Certificate) {
			der, err := asn1.MarshalWithParams(issuer, "utf8")
			if err != nil {
				t.Fatal(err)
			}
			c.ExtraExtensions = []pkix.Extension{{Id: signaturestest.OIDIssuer, Value: []byte(issuer)}, {Id: signaturestest.OIDIssuerV2, Value: der}}
			signaturestest.Extensions(t, extensions)(c)
		})
		typ := signatures.TypeBundle
		if string(of) != string(sign) {
			typ = signatures.TypeAttestation
		}
		s := stored(t, typ, d.KeylessBundle(t, leaf, k, of, present))
		return &s
	}
	by := func(key *signaturestest.Key) imagev1.ImageSignature {
		return stored(t, signatures.TypeBundle, key.Bundle(t, sign))
	}
	workflow := func(subject, repository string) imagev1.ImageSignature {
		return *keyless(subject, actions, map[int]string{5: repository}, sign)
	}
	scan := func(subject, scanner string) imagev1.ImageSignature {
		return *keyless(subject, accounts, nil, statement(digest, vuln, `{"scanner":{"uri":"`+scanner+`"}}`))
	}
	named := func(reference string) imagev1.ImageSignature {
		return stored(t, signatures.TypeAtomic, gpg.SimpleSigning(t, digest, reference, present))
	}
	notarizedBy := func(organization string) imagev1.ImageSignature {
		leaf, key := d.Identity(t, "", func(c *x509.Certificate) {
			c.Subject = pkix.Name{Country: []string{"US"}, Province: []string{"WA"}, Organization: []string{organization}, CommonName: "release"}
		})
		return stored(t, signatures.TypeNotation, notarized(t, key.Private, []*x509.Certificate{leaf, d.Intermediate, d.Root}, digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope}))
	}
	for name, content := range map[string][]byte{
		"alice.pub": alice.PEM, "bob.pub": bob.PEM, "carol.pub": carol.PEM, "nobody.pub": signaturestest.NewKey(t, signaturestest.P256).PEM,
		"trusted_root.json": d.TrustedRoot(t, nil), "fulcio.pem": signaturestest.CertPEM(t, d.Root, d.Intermediate), "rekor.pub": d.RekorKey(t),
		"acme-ca.pem": signaturestest.CertPEM(t, d.Root), "release.gpg": gpg.Public(t),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	release := "https://github.com/acme/shared/.github/workflows/build.yml@refs/tags/v1"
	stranger := workflow("https://github.com/acme-inc/app/.github/workflows/build.yml@refs/heads/main", "acme/app")
	annSigned := *keyless("ann@example.com", accounts, nil, sign)
	// by the name of the first policy of a block
	cases := map[string]struct{ trusted, other []found }{
		"workflow":     {trusted: []found{{workflow(release, "acme/app")}}, other: []found{{workflow(release, "acme/lib")}, {stranger}}},
		"scanned":      {trusted: []found{{scan("release@example.com", "https://scanner.example.com")}}, other: []found{{scan("release@example.com", "https://other.example.com")}, {scan("dev@example.com", "https://scanner.example.com")}}},
		"both-key":     {trusted: []found{{by(alice), workflow(release, "acme/app")}}, other: []found{{by(alice)}, {workflow(release, "acme/app")}, {by(alice), stranger}}},
		"either-key":   {trusted: []found{{by(alice)}, {annSigned}, {by(alice), annSigned}, {by(bob), annSigned}}, other: []found{{by(bob)}, {*keyless("dev@example.com", accounts, nil, sign)}, {by(bob), *keyless("ann@example.com", actions, nil, sign)}}},
		"alice-or-bob": {trusted: []found{{by(alice), by(bob)}, {by(alice), by(carol)}, {by(bob), by(carol)}, {by(alice), by(bob), by(carol)}}, other: []found{{by(alice)}, {by(bob)}, {by(carol)}}},
		"mirror":       {trusted: []found{{named("vendor.example.com/app:v1")}}, other: []found{{named("registry.example.com/demo/app:v1")}, {named("vendor.example.com/other:v1")}}},
		"nobody":       {other: []found{{by(alice)}, {by(alice), workflow(release, "acme/app"), named("vendor.example.com/app:v1")}}},
		"acme":         {trusted: []found{{notarizedBy("acme")}}, other: []found{{notarizedBy("other")}}},
		"ann":          {trusted: []found{{annSigned}}, other: []found{{*keyless("ann@example.com", actions, nil, sign)}, {*keyless("dev@example.com", accounts, nil, sign)}}},
	}
	ours, theirs := translations(t)
	for _, block := range ours {
		policies, err := policy.Parse([]byte(block), filepath.Join(dir, "policy.yaml"))
		if err != nil {
			t.Errorf("%v in\n%s", err, block)
			continue
		}
		set, err := policy.NewSet(policies)
		if err != nil {
			t.Fatal(err)
		}
		name := policies[0].Name
		tc, ok := cases[name]
		delete(cases, name)
		if !ok {
			t.Errorf("whom does this trust?\n%s", block)
			continue
		}
		judge := func(there found, want string) {
			img := object(there...)
			signatures.VerifyImage(img, set, present, nil)
			if v := annotation.Judged(img.Annotations)[repository]; v.Verified != want {
				t.Errorf("%s: %s %s, want %s: %s", name, v.Verified, v.Reason, want, v.Message)
			}
		}
		for _, there := range tc.trusted {
			judge(there, verdicts.VerifiedTrue)
		}
		for _, there := range tc.other {
			judge(there, verdicts.VerifiedFalse)
		}
	}
	for name := range cases {
		t.Errorf("the page has no policy %s", name)
	}
	if len(theirs) < 5 {
		t.Errorf("the page has %d policies of other tools: the test reads something else", len(theirs))
	}
	for _, block := range theirs {
		if policies, err := policy.Parse([]byte(block), ""); err == nil || len(policies) > 0 || !strings.Contains(err.Error(), translationDocument) {
			t.Errorf("%v for\n%s", err, block)
		}
	}
}
