//go:build containers_image_openpgp

package differential

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"go.podman.io/image/v5/signature"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const manifest = `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}`

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// rule is how the name in a signature must relate to the image's, in both languages.
type rule struct {
	ours   string
	theirs signature.PolicyReferenceMatch
}

func rules(t *testing.T) map[string]rule {
	t.Helper()
	must := func(m signature.PolicyReferenceMatch, err error) signature.PolicyReferenceMatch {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	return map[string]rule{
		"MatchRepoDigestOrExact": {"", signature.NewPRMMatchRepoDigestOrExact()},
		"MatchRepository":        {"{matchPolicy: MatchRepository}", signature.NewPRMMatchRepository()},
		"ExactRepository": {"{matchPolicy: ExactRepository, exactRepository: {repository: registry.example.com/demo/app}}",
			must(signature.NewPRMExactRepository("registry.example.com/demo/app"))},
		"RemapIdentity": {"{matchPolicy: RemapIdentity, remapIdentity: {prefix: registry.example.com/demo, signedPrefix: vendor.example.com}}",
			must(signature.NewPRMRemapIdentity("registry.example.com/demo", "vendor.example.com"))},
	}
}

// root is whom to trust, in both languages, and one who can sign so.
type root struct {
	ours   string
	theirs func(signature.PolicyReferenceMatch) (signature.PolicyRequirement, error)
	typ    string
	sign   func(document []byte) []byte
}

func roots(t *testing.T) map[string]root {
	t.Helper()
	gpg := signaturestest.NewGPG(t, "Release", time.Now().Add(-time.Hour), 0)
	ring := gpg.Public(t)
	all := map[string]root{"GPGKeys": {
		signaturestest.TrustGPG(ring),
		func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
			return signature.NewPRSignedByKeyData(signature.SBKeyTypeGPGKeys, ring, m)
		},
		payload.TypeAtomic,
		func(document []byte) []byte { return gpg.Sign(t, document, time.Now()) },
	}}
	for _, kind := range []string{signaturestest.P256, signaturestest.RSA2048} {
		key := signaturestest.NewKey(t, kind)
		all["key "+kind] = root{
			signaturestest.TrustKey(key, nil),
			func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
				return signature.NewPRSigstoreSigned(signature.PRSigstoreSignedWithKeyData(key.PEM), signature.PRSigstoreSignedWithSignedIdentity(m))
			},
			payload.TypeCosign,
			func(document []byte) []byte { return signaturestest.Marshal(t, key.Blob(t, document)) },
		}
	}
	d := signaturestest.NewDeployment(t)
	logged := signaturestest.NewKey(t, signaturestest.P256)
	all["key and log"] = root{
		signaturestest.TrustKey(logged, d.RekorKey(t)),
		func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
			return signature.NewPRSigstoreSigned(signature.PRSigstoreSignedWithKeyData(logged.PEM), signature.PRSigstoreSignedWithRekorPublicKeyData(d.RekorKey(t)),
				signature.PRSigstoreSignedWithSignedIdentity(m))
		},
		payload.TypeCosign,
		func(document []byte) []byte {
			blob := logged.Blob(t, document)
			d.Log(t, blob, "sha256", logged.PEM, time.Now())
			return signaturestest.Marshal(t, blob)
		},
	}
	leaf, leafKey := d.Identity(t, "dev@example.com", nil)
	all["Fulcio and log"] = root{
		d.TrustFulcio(t, "signedEmail: dev@example.com"),
		func(m signature.PolicyReferenceMatch) (signature.PolicyRequirement, error) {
			fulcio, err := signature.NewPRSigstoreSignedFulcio(signature.PRSigstoreSignedFulcioWithCAData(signaturestest.CertPEM(t, d.Root)),
				signature.PRSigstoreSignedFulcioWithOIDCIssuer(signaturestest.Issuer), signature.PRSigstoreSignedFulcioWithSubjectEmail("dev@example.com"))
			if err != nil {
				return nil, err
			}
			return signature.NewPRSigstoreSigned(signature.PRSigstoreSignedWithFulcio(fulcio), signature.PRSigstoreSignedWithRekorPublicKeyData(d.RekorKey(t)),
				signature.PRSigstoreSignedWithSignedIdentity(m))
		},
		payload.TypeCosign,
		func(document []byte) []byte {
			blob := leafKey.Blob(t, document)
			certificate := signaturestest.CertPEM(t, leaf)
			blob.Annotations[payload.AnnotationCertificate] = string(certificate)
			blob.Annotations[payload.AnnotationChain] = string(signaturestest.CertPEM(t, d.Intermediate, d.Root))
			d.Log(t, blob, "sha256", certificate, time.Now())
			return signaturestest.Marshal(t, blob)
		},
	}
	return all
}

// tally counts what was compared, and fails where we are looser, or stricter for no reason that is
// known.
type tally struct {
	both, neither int
	version3      int // not compared
	stricter      map[string]int
	failures      int
}

func (c *tally) add(t *testing.T, what string, ours signatures.Verdict, theirs error, why func() string) {
	t.Helper()
	trusted, _ := ours.Condition("Trusted")
	switch {
	case ours.Trusted() && theirs == nil:
		c.both++
	case !ours.Trusted() && theirs != nil:
		c.neither++
	case ours.Trusted():
		c.fail(t, "LOOSER than containers/image: %s\ntheirs: %v\nours: %s", what, theirs, trusted.Message)
	default:
		reason := why()
		if reason == "" {
			c.fail(t, "stricter than containers/image: %.2000s\nours: %s %s", what, trusted.Reason, trusted.Message)
		}
		c.stricter[reason]++
	}
}

func (c *tally) fail(t *testing.T, format string, args ...any) {
	t.Helper()
	if c.failures++; c.failures <= 5 {
		t.Errorf(format, args...)
	}
}

func (c *tally) report(t *testing.T) {
	t.Helper()
	t.Logf("%d accepted by both, %d refused by both, %d of version 3 not compared, %d looser or unexplained", c.both, c.neither, c.version3, c.failures)
	for _, reason := range slices.Sorted(maps.Keys(c.stricter)) {
		t.Logf("%d refused here only: %s", c.stricter[reason], reason)
	}
}

// perRoot is how many documents are signed and compared for each root of trust and rule, and how
// many contents are damaged.
const perRoot = 250

// seed makes other documents.
var seed = flag.Uint64("seed", 42, "of the random changes")

func TestNeverLooser(t *testing.T) {
	t.Parallel()
	registry := newTheirs(t)
	digest := digestOf([]byte(manifest))
	sum := sha512.Sum512([]byte(manifest))
	digests := []string{digest, "sha512:" + hex.EncodeToString(sum[:]), "sha256:" + strings.Repeat("0", 64), strings.ToUpper(digest), "sha256:" + strings.ToUpper(digest[7:]), digest[7:], digest[:70], "sha256:", "md5:" + digest[39:], digest + " ", ""}
	intended := []string{
		"registry.example.com/demo/app@" + digest, "registry.example.com/demo/app:v1", "registry.example.com/demo/app@" + digest, "registry.example.com:5000/demo/app:v1", "other.example.com/app@" + digest, "docker.io/library/busybox@" + digest, "docker.io/library/busybox:v1", "docker.io/demo/app@" + digest,
	}
	counts := tally{stricter: map[string]int{}}
	random := rand.New(rand.NewPCG(17, *seed))
	roots, rules := roots(t), rules(t)
	for _, by := range slices.Sorted(maps.Keys(roots)) {
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			trust, match := roots[by], rules[name]
			requirement, err := trust.theirs(match.theirs)
			if err != nil {
				t.Fatal(err)
			}
			set := signaturestest.SetFrom(t, signaturestest.Document("p", `["*"]`, trust.ours, match.ours))
			for i := range perRoot {
				image := intended[random.IntN(len(intended))]
				names := namesLike(image)
				switch {
				case name == "ExactRepository":
					names = namesLike("registry.example.com/demo/app:v1")
				case name == "RemapIdentity" && strings.HasPrefix(image, "registry.example.com/demo/"):
					names = namesLike("vendor.example.com/app:v1")
				}
				signed := document(trust.typ, names[2], digest)
				text := signed.String()
				if i > 0 { // the first as it is
					text = mutate(random, signed, names, digests)
				}
				content := trust.sign([]byte(text))
				compare(t, &counts, registry, set, requirement, image, []byte(manifest), content, fmt.Sprintf("%s %s %s %q", by, name, image, text), text)
			}
		}
	}
	counts.report(t)
	if counts.both < 500 || counts.neither < 1000 {
		t.Error("the comparison says little")
	}
}

// What is around a document is damaged after it was signed: the OpenPGP packets, the annotations.
func TestNeverLooserDamaged(t *testing.T) {
	t.Parallel()
	registry := newTheirs(t)
	digest := digestOf([]byte(manifest))
	image := "registry.example.com/demo/app@" + digest
	counts := tally{stricter: map[string]int{}}
	random := rand.New(rand.NewPCG(18, *seed))
	roots := roots(t)
	for _, by := range slices.Sorted(maps.Keys(roots)) {
		trust := roots[by]
		requirement, err := trust.theirs(signature.NewPRMMatchRepository())
		if err != nil {
			t.Fatal(err)
		}
		set := signaturestest.SetFrom(t, signaturestest.Document("p", `["*"]`, trust.ours, "{matchPolicy: MatchRepository}"))
		good := trust.sign([]byte(document(trust.typ, "registry.example.com/demo/app", digest).String()))
		for i := range perRoot {
			content := good
			if i > 0 {
				content = damage(random, good)
			}
			compare(t, &counts, registry, set, requirement, image, []byte(manifest), content, fmt.Sprintf("%s %q", by, content), string(content))
		}
	}
	counts.report(t)
	if counts.both < len(roots) || counts.neither < 500 {
		t.Error("the comparison says little")
	}
}

// damage changes bytes, or takes, repeats or adds some.
func damage(r *rand.Rand, good []byte) []byte {
	bad := slices.Clone(good)
	for range 1 + r.IntN(2) {
		at := r.IntN(len(bad))
		until := at + r.IntN(min(16, len(bad)-at)+1)
		switch r.IntN(6) {
		case 0:
			bad[at] ^= 1 << r.IntN(8)
		case 1:
			bad[at] = byte(r.IntN(256))
		case 2:
			bad = slices.Concat(bad[:at], bad[until:])
		case 3:
			bad = slices.Concat(bad[:until], bad[at:])
		case 4:
			bad = append(bad, good[:r.IntN(len(good))]...)
		case 5:
			bad = bad[:max(at, 1)]
		}
	}
	return bad
}

// The signatures that containers/image carries for its own tests, each by every root of trust that
// is meant for one.
func TestNeverLooserFixtures(t *testing.T) {
	t.Parallel()
	registry := newTheirs(t)
	fixtures := fixtures(t)
	counts := tally{stricter: map[string]int{}}
	for _, f := range fixtures.signatures {
		content := fixtures.read(f.signature)
		for _, by := range slices.Sorted(maps.Keys(fixtures.roots)) {
			for _, name := range slices.Sorted(maps.Keys(fixtures.rules)) {
				trust, match := fixtures.roots[by], fixtures.rules[name]
				requirement, err := trust.theirs(match.theirs)
				if err != nil {
					t.Fatal(err)
				}
				set := signaturestest.SetFrom(t, signaturestest.Document("p", `["*"]`, trust.ours, match.ours))
				m := fixtures.read(f.manifest)
				for _, suffix := range []string{":v1", ":latest", "@" + digestOf(m)} {
					compare(t, &counts, registry, set, requirement, f.repository+suffix, m, content, fmt.Sprint(f.signature, " ", by, " ", name, " ", f.repository, suffix), string(content))
				}
			}
		}
	}
	counts.report(t)
	if counts.both < 20 || counts.neither < 200 {
		t.Error("the comparison says little")
	}
}

func compare(t *testing.T, counts *tally, registry *theirs, set *policy.Set, requirement signature.PolicyRequirement, image string, manifest, content []byte, what, text string) {
	t.Helper()
	digest := digestOf(manifest)
	ours := signatures.Verify(signatures.Signature{Type: signatures.TypeAtomic, Content: content}, signatures.Image{Digest: digest, Reference: image, Manifest: manifest}, set, time.Now())
	theirs := registry.allow(t, requirement, image, manifest, digest, content)
	if theirs != nil && strings.Contains(theirs.Error(), "LiteralData not followed by signature") && strings.Contains(what, "-v3 ") {
		counts.version3++ // OpenPGP signatures of version 3 it verifies with GnuPG only
		return
	}
	counts.add(t, what, ours, theirs, func() string { return whyStricter(text, ours) })
}
