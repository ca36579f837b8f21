package signatures_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/notaryproject/notation-core-go/signature/jws"
	"github.com/notaryproject/notation-go"
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// documented returns the policies in docs/reference/signatures.md, each as a whole document. The
// first is complete; the others are inserted into it where the text says so. Each commented line
// makes a further policy, in which the line is active.
func documented(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/signatures.md")
	if err != nil {
		t.Fatal(err)
	}
	const subjects = "    rootOfTrust:\n      policyType: TrustedRoot\n      trustedRoot:\n        trustedRootPath: trusted_root.json\n"
	alternative := regexp.MustCompile(`(?m)^( +)# (\w+: .*)$`)
	var first, head, tail string
	var all []string
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for part := range strings.SplitSeq(block[1], "---\n") {
			switch {
			case strings.HasPrefix(part, "apiVersion:") && !strings.Contains(part, "    rootOfTrust:"):
				// what else a policy may have
				continue
			case strings.HasPrefix(part, "apiVersion:"):
				first = part
				before, after, _ := strings.Cut(part, "    rootOfTrust:")
				head, tail = before, after[strings.Index(after, "    signedIdentity:"):]
			case strings.HasPrefix(part, "    rootOfTrust:") && strings.Contains(part, "    attestations:"):
				part = head + part
			case strings.HasPrefix(part, "    rootOfTrust:"):
				part = head + part + tail
			case strings.HasPrefix(part, "        fulcioSubjects:"):
				part = head + subjects + part + tail
			case strings.HasPrefix(part, "spec:"):
				all = append(all, regexp.MustCompile(`(?m)^spec:\n  scopes: .*\n`).ReplaceAllLiteralString(first, part))
				continue
			case strings.HasPrefix(part, "  exceptions:"):
				all = append(all, first+part)
				continue
			case strings.HasPrefix(part, "registriesDir:"), strings.HasPrefix(part, "trustedRoots:"), strings.HasPrefix(part, "registries:"):
				// part of the configuration
				continue
			default:
				t.Errorf("what is this?\n%s", part)
				continue
			}
			all = append(all, part)
			for _, m := range alternative.FindAllStringSubmatchIndex(part, -1) {
				with := part[:m[0]] + part[m[2]:m[3]] + part[m[4]:m[5]] + part[m[1]:]
				if strings.HasPrefix(part[m[4]:], "keyPaths:") {
					with = strings.Replace(with, "keyPath: ", "# ", 1)
				}
				all = append(all, with)
			}
		}
	}
	if first == "" || len(all) < 12 {
		t.Fatalf("%d policies were found: the test reads something else", len(all))
	}
	return all
}

// found are the signatures of an image.
type found []imagev1.ImageSignature

type documentedCase struct {
	of             string // tells the policy from those below
	trusted, other []found
	n              int // how many policies this row is about
}

// Every policy in docs/reference/signatures.md trusts exactly the signers that the document names.
func TestDocumentedPolicies(t *testing.T) {
	t.Parallel()
	dir, present := t.TempDir(), time.Now()
	d := signaturestest.NewDeployment(t)
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	gpg := signaturestest.NewGPG(t, "Release", present.AddDate(0, -1, 0), 0)
	statementOf := signaturestest.Statement(digest, cosignSign)

	// Signers with certificates as Fulcio, a private CA and notation issue them.
	by := func(issuer string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			der, err := asn1.MarshalWithParams(issuer, "utf8")
			if err != nil {
				t.Fatal(err)
			}
			c.ExtraExtensions = []pkix.Extension{{Id: signaturestest.OIDIssuer, Value: []byte(issuer)}, {Id: signaturestest.OIDIssuerV2, Value: der}}
		}
	}
	keyless := func(subject, issuer string) imagev1.ImageSignature {
		leaf, k := d.Identity(t, subject, by(issuer))
		return stored(t, signatures.TypeBundle, d.KeylessBundle(t, leaf, k, statementOf, present))
	}
	const accounts, actions, workflow = "https://accounts.example.com", "https://token.actions.githubusercontent.com", "https://github.com/acme/app/.github/workflows/release.yml@refs/"
	const shared = "https://github.com/acme/shared/.github/workflows/build.yml@refs/tags/v1"
	called := func(repository, ref, trigger string) imagev1.ImageSignature {
		leaf, k := d.Identity(t, shared, func(c *x509.Certificate) {
			by(actions)(c)
			signaturestest.Extensions(t, map[int]string{12: repository, 14: ref, 20: trigger})(c)
		})
		return stored(t, signatures.TypeBundle, d.KeylessBundle(t, leaf, k, statementOf, present))
	}
	signed := stored(t, signatures.TypeBundle, key.Bundle(t, statementOf))
	logged := key.SimpleSigning(t, digest, repository)
	d.Log(t, logged, key.Hash(), key.PEM, present)
	inLog := stored(t, signatures.TypeSimpleSigning, logged)
	releaseLeaf, releaseKey := d.Identity(t, "release@example.com", nil)
	release := releaseKey.SimpleSigning(t, digest, repository)
	release.Annotations[payload.AnnotationCertificate] = string(signaturestest.CertPEM(t, releaseLeaf))
	release.Annotations[payload.AnnotationChain] = string(signaturestest.CertPEM(t, d.Intermediate, d.Root))
	byAcme := func(serial int64) imagev1.ImageSignature {
		leaf, k := d.Identity(t, "", func(c *x509.Certificate) {
			c.SerialNumber = big.NewInt(serial)
			c.Subject = pkix.Name{Country: []string{"US"}, Province: []string{"WA"}, Organization: []string{"acme"}, CommonName: "release"}
		})
		chain := []*x509.Certificate{leaf, d.Intermediate, d.Root}
		return stored(t, signatures.TypeNotation, notarized(t, k.Private, chain, digest, notation.SignerSignOptions{SignatureMediaType: jws.MediaTypeEnvelope}))
	}
	acme, acmeRevoked := byAcme(2), byAcme(4711)
	rootList, acmeList := d.RevocationLists(t, 4711)
	pgp := stored(t, signatures.TypeAtomic, gpg.SimpleSigning(t, digest, repository, present))
	strange := stored(t, signatures.TypeBundle, stranger.Bundle(t, statementOf))
	attested := func(typ, predicate string) imagev1.ImageSignature {
		return stored(t, signatures.TypeAttestation, key.Bundle(t, statement(digest, typ, predicate)))
	}

	for name, content := range map[string][]byte{
		"cosign.pub": key.PEM, "new.pub": key.PEM, "old.pub": signaturestest.NewKey(t, signaturestest.P256).PEM, "rekor.pub": d.RekorKey(t),
		"fulcio.pem": signaturestest.CertPEM(t, d.Root, d.Intermediate), "trusted_root.json": d.TrustedRoot(t, nil), "ca.pem": signaturestest.CertPEM(t, d.Root),
		"acme-ca.pem": signaturestest.CertPEM(t, d.Root), "authority.pem": signaturestest.CertPEM(t, d.Root), "tsa.pem": signaturestest.CertPEM(t, d.Root),
		"release.gpg": gpg.Public(t), "acme-root.crl": rootList, "acme-ca.crl": acmeList,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const slsa = `{"runDetails":{"builder":{"id":"https://builder.example.com/v1"}}}`
	scan := func(severity string) imagev1.ImageSignature {
		return attested(vuln, `{"scanner":{"result":[{"severity":"`+severity+`"}]}}`)
	}
	provenance, sbom := attested(slsa1, slsa), attested(spdx, `{}`)
	cases := []documentedCase{
		{of: "\n    attestations:", trusted: []found{{provenance, scan("LOW"), sbom}},
			other: []found{{provenance, scan("LOW")}, {provenance, scan("CRITICAL"), sbom}, {attested(slsa1, `{}`), scan("LOW"), sbom}, {signed}}},
		{of: "\n  exceptions:", trusted: []found{{signed}}},
		{of: "FulcioCAWithRekor", trusted: []found{{keyless("dev@example.com", accounts)}}, other: []found{{keyless("dev@example.com", actions)}, {keyless("other@example.com", accounts)}}},
		{of: "\n        rekorKeyPath:", trusted: []found{{inLog}}, other: []found{{signed}}},
		{of: "\n        keyPaths:", trusted: []found{{signed}}},
		{of: "\n        fulcioSubjects:", trusted: []found{{keyless(workflow+"tags/v1.2.3", actions)}, {keyless("release@example.com", accounts)}},
			other: []found{{keyless(workflow+"tags/v1.2.3-rc", actions)}, {keyless(workflow+"tags/v1.2.3", accounts)}, {keyless("release@example.com", actions)}}},
		{of: "\n          extensions:", trusted: []found{{called("https://github.com/acme/app", "refs/tags/v1.2.3", "push")}},
			other: []found{{called("https://github.com/acme/lib", "refs/tags/v1.2.3", "push")}, {called("https://github.com/acme/app", "refs/heads/main", "push")}, {called("https://github.com/acme/app", "refs/tags/v1.2.3", "pull_request")}, {keyless(shared, actions)}}},
		{of: "signedURI:", trusted: []found{{keyless(workflow+"heads/main", actions)}}, other: []found{{keyless(workflow+"heads/mine", actions)}, {keyless(workflow+"heads/main", accounts)}}},
		{of: "policyType: TrustedRoot", trusted: []found{{inLog}}, other: []found{{signed}}},
		{of: "policyType: PublicKey", trusted: []found{{signed}, {inLog}}},
		{of: "policyType: PKI", trusted: []found{{stored(t, signatures.TypeSimpleSigning, release)}}, other: []found{{keyless("dev@example.com", accounts)}}},
		{of: "policyType: GPGKeys", trusted: []found{{pgp}}},
		{of: "\n        tsaRootsPath:", other: []found{{acme}}}, // it has no timestamp
		{of: "\n        crlPaths:", trusted: []found{{acme}}, other: []found{{acmeRevoked}}},
		{of: "policyType: Notary", trusted: []found{{acme}, {acmeRevoked}}},
	}
	for _, document := range documented(t) {
		i := slices.IndexFunc(cases, func(c documentedCase) bool { return strings.Contains(document, c.of) })
		if i < 0 {
			t.Errorf("who is trusted by this?\n%s", document)
			continue
		}
		cases[i].n++
		policies, err := policy.Parse([]byte(document), filepath.Join(dir, "policy.yaml"))
		if err != nil {
			t.Errorf("%v in\n%s", err, document)
			continue
		}
		set, err := policy.NewSet(policies)
		if err != nil {
			t.Fatal(err)
		}
		judge := func(there found, want string) {
			img := object(there...)
			signatures.VerifyImage(img, set, present, nil)
			if v := annotation.Judged(img.Annotations)[repository]; v.Verified != want {
				t.Errorf("%s %s, want %s: %s by\n%s", v.Verified, v.Reason, want, v.Message, document)
			}
		}
		for _, there := range cases[i].trusted {
			judge(there, verdicts.VerifiedTrue)
		}
		for _, there := range append(cases[i].other, found{strange}) {
			judge(there, verdicts.VerifiedFalse)
		}
	}
	for _, c := range cases {
		if c.n == 0 {
			t.Errorf("no policy has %q", c.of)
		}
	}
}
