package signatures_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
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

func TestCatchAllScope(t *testing.T) {
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository))
	all := signaturestest.Document("all", `["*"]`, signaturestest.TrustKey(key, nil), matchRepository)
	want(t, verify(t, signatures.TypeSimpleSigning, content, signaturestest.SetFrom(t, all)), trusted)
	nearer := signaturestest.Document("nearer", `["*.example.com"]`, signaturestest.TrustKey(other, nil), matchRepository)
	want(t, verify(t, signatures.TypeSimpleSigning, content, signaturestest.SetFrom(t, all+nearer)), "False NoMatchingKey / Unknown")
}

// Nobody signs annotations: whoever can write to a registry can put rubbish beside a good
// signature. Rubbish matters only in an annotation that is needed.
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
	want(t, v, "False TimestampInvalid / True")
	if message := v.Conditions[0].Message; strings.Contains(message, "%!") {
		t.Error(message)
	}
}
