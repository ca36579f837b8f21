package signatures_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// While keys change, two overlap: the old one stays trusted until it is taken out.
func TestSeveralKeys(t *testing.T) {
	older, newer, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.Ed25519), signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	items := fmt.Sprintf("keyDatas: [%s, %s]", signaturestest.B64(older.PEM), signaturestest.B64(newer.PEM))
	blocks := "keyData: " + signaturestest.B64(append(append([]byte{}, older.PEM...), newer.PEM...))
	for name, trust := range map[string]string{
		"items":  "{policyType: PublicKey, publicKey: {" + items + "}}",
		"blocks": "{policyType: PublicKey, publicKey: {" + blocks + "}}",
	} {
		t.Run(name, func(t *testing.T) {
			set := signaturestest.Set(t, trust, matchRepository)
			for _, key := range []*signaturestest.Key{older, newer} {
				v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository)), set)
				want(t, v, trusted)
				if v.IssuedTo.PublicKeyID != key.ID(t) {
					t.Errorf("signed by %s, the verdict says %s", key.ID(t), v.IssuedTo.PublicKeyID)
				}
			}
			want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, stranger.SimpleSigning(t, digest, repository)), set), "False NoMatchingKey / Unknown")
		})
	}
	t.Run("what the right key has to say", func(t *testing.T) {
		set := signaturestest.Set(t, fmt.Sprintf("{policyType: PublicKey, publicKey: {%s, rekorKeyData: %s}}", items, signaturestest.B64(d.RekorKey(t))), matchRepository)
		want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, newer.SimpleSigning(t, digest, repository)), set), "False TransparencyLogEntryMissing / True")
	})
	t.Run("with a trusted root", func(t *testing.T) {
		set := signaturestest.Set(t, fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootData: %s, %s}}", signaturestest.B64(d.TrustedRoot(t, nil)), items), matchRepository)
		blob := older.SimpleSigning(t, digest, repository)
		d.Log(t, blob, older.Hash(), older.PEM, time.Now())
		want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, blob), set), trusted)
	})
}

// A workflow's URI changes with each release, so it is named by an expression.
func TestSubjectsByExpression(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	const workflow = "https://github.com/acme/app/.github/workflows/release.yml@refs/tags/"
	const expression = `https://github\.com/acme/app/\.github/workflows/release\.yml@refs/tags/v[0-9.]+`
	for _, tc := range []struct{ name, subject, subjects, want string }{
		{"matches", workflow + "v1.2.3", "fulcioSubject: {oidcIssuer: %q, subjectRegExp: '" + expression + "'}", trusted},
		{"the next release", workflow + "v1.2.4", "fulcioSubject: {oidcIssuer: %q, subjectRegExp: '" + expression + "'}", trusted},
		{"more behind it", workflow + "v1.2.3/evil", "fulcioSubject: {oidcIssuer: %q, subjectRegExp: '" + expression + "'}", "False SubjectMismatch / True"},
		{"more in front of it", "https://evil.example.com/?" + workflow + "v1.2.3", "fulcioSubject: {oidcIssuer: %q, subjectRegExp: '" + expression + "'}", "False SubjectMismatch / True"},
		{"one of two, of which the other would match", workflow + "v1.2.3.", "fulcioSubject: {oidcIssuer: %q, subjectRegExp: 'a|" + workflow + "v'}", "False SubjectMismatch / True"},
		{"issuer by expression", workflow + "v1", "fulcioSubject: {issuerRegExp: 'https://[a-z.]+', subjectRegExp: '" + expression + "'}", trusted},
		{"another issuer", workflow + "v1", "fulcioSubject: {issuerRegExp: 'https://other\\.example\\.com', subjectRegExp: '" + expression + "'}", "False SubjectMismatch / True"},
		{"the second of two", "dev@example.com", "fulcioSubjects: [{oidcIssuer: %[1]q, signedEmail: boss@example.com}, {oidcIssuer: %[1]q, signedEmail: dev@example.com}]", trusted},
		{"none of two", "eve@example.com", "fulcioSubjects: [{oidcIssuer: %[1]q, signedEmail: boss@example.com}, {oidcIssuer: %[1]q, signedEmail: dev@example.com}]", "False SubjectMismatch / True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			subjects := tc.subjects
			if strings.Contains(subjects, "%") {
				subjects = fmt.Sprintf(subjects, signaturestest.Issuer)
			}
			leaf, key := d.Identity(t, tc.subject, nil)
			set := signaturestest.Set(t, fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootData: %s, %s}}", signaturestest.B64(d.TrustedRoot(t, nil)), subjects), matchRepository)
			want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, time.Now())), set), tc.want)
		})
	}
}

// The subject is the reusable workflow, whatever calls it. The extensions name the caller.
func TestSubjectsByExtension(t *testing.T) {
	t.Parallel()
	d := signaturestest.NewDeployment(t)
	const (
		workflow = "https://github.com/acme/shared/.github/workflows/build.yml@refs/tags/v1"
		caller   = "https://github.com/acme/app"
		other    = "False SubjectMismatch / True"
	)
	called := map[int]string{5: "acme/app", 11: "github-hosted", 12: caller, 14: "refs/tags/v1.2.3", 16: "https://github.com/acme", 20: "push"}
	older := map[int]string{2: "push", 5: "acme/app", 6: "refs/tags/v1.2.3"}
	broken := func(c *x509.Certificate) {
		signaturestest.Extensions(t, map[int]string{20: "push"})(c)
		c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 12}, Value: []byte(caller)})
	}
	for _, tc := range []struct {
		name    string
		edit    func(*x509.Certificate)
		demands string
		want    string
		says    string
	}{
		{"no demand", signaturestest.Extensions(t, called), "", trusted, "sourceRepositoryURI " + caller},
		{"the caller", signaturestest.Extensions(t, called), "{name: sourceRepositoryURI, value: %q}", trusted, "sourceRepositoryURI " + caller},
		{"all of them", signaturestest.Extensions(t, called), `{name: sourceRepositoryURI, value: %q}, {name: sourceRepositoryRef, valueRegExp: 'refs/tags/v[0-9.]+'}, {name: buildTrigger, value: push}, {name: runnerEnvironment, value: github-hosted}, {name: sourceRepositoryOwnerURI, value: "https://github.com/acme"}`, trusted, "buildTrigger push"},
		{"all but one", signaturestest.Extensions(t, called), "{name: sourceRepositoryURI, value: %q}, {name: buildTrigger, value: pull_request}", other, "with buildTrigger push, the policy wants buildTrigger pull_request"},
		{"another caller", signaturestest.Extensions(t, map[int]string{12: caller + "-evil"}), "{name: sourceRepositoryURI, value: %q}", other, caller + "-evil"},
		{"more in front of it", signaturestest.Extensions(t, map[int]string{12: "https://evil.example.com/" + caller}), "{name: sourceRepositoryURI, valueRegExp: %q}", other, ""},
		{"more behind it", signaturestest.Extensions(t, map[int]string{12: caller + "/evil"}), "{name: sourceRepositoryURI, valueRegExp: %q}", other, ""},
		{"another case", signaturestest.Extensions(t, map[int]string{12: "https://github.com/Acme/app"}), "{name: sourceRepositoryURI, value: %q}", other, ""},
		{"no extension", nil, "{name: sourceRepositoryURI, value: %q}", other, "no extension sourceRepositoryURI"},
		{"an empty extension", signaturestest.Extensions(t, map[int]string{12: ""}), "{name: sourceRepositoryURI, value: %q}", other, "no extension sourceRepositoryURI"},
		{"only the deprecated form", signaturestest.Extensions(t, older), "{name: sourceRepositoryURI, value: %q}", other, "no extension sourceRepositoryURI"},
		{"the deprecated forms by name", signaturestest.Extensions(t, older), "{name: githubWorkflowRepository, value: acme/app}, {name: githubWorkflowRef, valueRegExp: 'refs/tags/.+'}, {name: githubWorkflowTrigger, value: push}", trusted, "githubWorkflowRepository acme/app"},
		{"one that cannot be read", broken, "{name: buildTrigger, value: push}", "False InvalidSignature / Unknown", "string"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Contains(tc.demands, "%") {
				tc.demands = fmt.Sprintf(tc.demands, caller)
			}
			subject := "signedURI: " + workflow
			if tc.demands != "" {
				subject += ", extensions: [" + tc.demands + "]"
			}
			leaf, key := d.Identity(t, workflow, tc.edit)
			content := signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, time.Now()))
			for root, trust := range map[string]string{"trusted root": d.TrustRoot(t, subject, nil), "Fulcio": d.TrustFulcio(t, subject)} {
				v := verify(t, signatures.TypeSimpleSigning, content, signaturestest.Set(t, trust, matchRepository))
				want(t, v, tc.want)
				if message := v.Conditions[0].Message; !strings.Contains(message, tc.says) {
					t.Errorf("by %s it says %q, want %q", root, message, tc.says)
				}
			}
		})
	}
	leaf, key := d.Identity(t, workflow, signaturestest.Extensions(t, called))
	content := signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, time.Now()))
	of := func(demands ...string) *policy.Set {
		var subjects []string
		for _, x := range demands {
			subjects = append(subjects, fmt.Sprintf("{oidcIssuer: %q, signedURI: %q, extensions: [%s]}", signaturestest.Issuer, workflow, x))
		}
		return signaturestest.Set(t, fmt.Sprintf("{policyType: TrustedRoot, trustedRoot: {trustedRootData: %s, fulcioSubjects: [%s]}}", signaturestest.B64(d.TrustedRoot(t, nil)), strings.Join(subjects, ", ")), matchRepository)
	}
	t.Run("the second of two callers", func(t *testing.T) {
		want(t, verify(t, signatures.TypeSimpleSigning, content, of("{name: githubWorkflowRepository, value: acme/tool}", "{name: githubWorkflowRepository, value: acme/app}")), trusted)
	})
	t.Run("none of two callers", func(t *testing.T) {
		v := verify(t, signatures.TypeSimpleSigning, content, of("{name: githubWorkflowRepository, value: acme/tool}", "{name: githubWorkflowRepository, value: acme/lib}"))
		want(t, v, other)
		if message := v.Conditions[0].Message; !strings.Contains(message, "githubWorkflowRepository acme/app") {
			t.Error(message)
		}
	})
	t.Run("the caller is a signer", func(t *testing.T) {
		img := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: repository + "@" + digest, Signatures: []imagev1.ImageSignature{{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeSimpleSigning, Content: content}}}
		signatures.VerifyImage(img, of("{name: buildTrigger, value: push}"), now, nil)
		if _, signers, _ := signatures.Summary(img); !slices.Equal(signers, []string{caller, workflow}) {
			t.Errorf("the signers are %q", signers)
		}
	})
}

func TestCatchAllScope(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository))
	all := signaturestest.Document("all", `["*"]`, signaturestest.TrustKey(key, nil), matchRepository)
	want(t, verify(t, signatures.TypeSimpleSigning, content, signaturestest.SetFrom(t, all)), trusted)
	nearer := signaturestest.Document("nearer", `["*.example.com"]`, signaturestest.TrustKey(other, nil), matchRepository)
	want(t, verify(t, signatures.TypeSimpleSigning, content, signaturestest.SetFrom(t, all+nearer)), "False NoMatchingKey / Unknown")
}

// Annotations are not signed: anyone who can write to a registry can put rubbish beside a good
// signature. It matters only in an annotation that is needed.
func TestAttackRubbishInAnnotations(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	plain := signaturestest.Set(t, signaturestest.TrustKey(key, nil), matchRepository)
	logged := signaturestest.Set(t, signaturestest.TrustKey(key, d.RekorKey(t)), matchRepository)
	good := key.SimpleSigning(t, digest, repository)
	d.Log(t, good, "sha256", key.PEM, now)
	for annotation, wantLogged := range map[string]string{
		payload.AnnotationCertificate: trusted,
		payload.AnnotationChain:       trusted,
		payload.AnnotationTimestamp:   trusted,
		payload.AnnotationLogBundle:   "False TransparencyLogEntryInvalid / True",
	} {
		content := signaturestest.Marshal(t, edited(good, annotation, "rubbish"))
		t.Run(annotation, func(t *testing.T) {
			want(t, verify(t, signatures.TypeSimpleSigning, content, plain), trusted)
			want(t, verify(t, signatures.TypeSimpleSigning, content, logged), wantLogged)
		})
	}
	leaf, leafKey := d.Identity(t, "dev@example.com", nil)
	keyless := signaturestest.Marshal(t, edited(d.Keyless(t, leaf, leafKey, digest, repository, time.Now()), payload.AnnotationCertificate, "rubbish"))
	want(t, verify(t, signatures.TypeSimpleSigning, keyless, signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: dev@example.com"), matchRepository)), "False InvalidSignature / Unknown")
}

func TestUnknownCAIsNamed(t *testing.T) {
	d, other := signaturestest.NewDeployment(t), signaturestest.NewDeployment(t)
	expired, _ := signaturestest.IssueCA(t, "an expired CA", nil, nil, now.AddDate(-2, 0, 0), now.AddDate(-1, 0, 0))
	leaf, key := other.Identity(t, "dev@example.com", nil)
	v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, other.Keyless(t, leaf, key, digest, repository, time.Now())),
		signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: dev@example.com", expired, d.Root), matchRepository))
	want(t, v, "False NoMatchingKey / Unknown")
	for _, name := range []string{"test intermediate", "an expired CA", "test root"} {
		if message := v.Conditions[0].Message; !strings.Contains(message, name) {
			t.Errorf("%q does not name %q", message, name)
		}
	}
}

// A message about a missing time stamp must not read "%!w(<nil>)".
func TestMessageWithoutTime(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	key := signaturestest.NewKey(t, signaturestest.P256)
	trust := d.TrustRootKey(t, key, func(p *signaturestest.TrustedRootParts) { p.Logs = nil })
	v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository)), signaturestest.Set(t, trust, matchRepository))
	// The same of a stamp, if no authority is trusted.
	bundle := d.KeylessV2Bundle(t, "dev@example.com", signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1"))
	trust = d.TrustRoot(t, "signedEmail: dev@example.com", func(p *signaturestest.TrustedRootParts) { p.TSAs = nil })
	stamped := verify(t, signatures.TypeBundle, signaturestest.Marshal(t, bundle), signaturestest.Set(t, trust, "{matchPolicy: DigestOnly}"))
	for _, v := range []signatures.Verdict{v, stamped} {
		want(t, v, "False TimestampInvalid / True")
		if message := v.Conditions[0].Message; strings.Contains(message, "%!") {
			t.Error(message)
		}
	}
}
