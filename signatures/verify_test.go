package signatures_test

import (
	"crypto"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore-go/pkg/root"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const (
	repository = "registry.example.com/demo/app"
	manifest   = `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json"}`
	otherImage = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

var (
	digest = func() string {
		sum := sha256.Sum256([]byte(manifest))
		return "sha256:" + hex.EncodeToString(sum[:])
	}()
	image = signatures.Image{Digest: digest, Reference: repository + "@" + digest, Manifest: []byte(manifest)}
	// now is an arbitrary time: no verdict may depend on the real one. Keyless tests use the
	// present instead, because the virtual sigstore issues certificates for it.
	now = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
)

const matchRepository = "{matchPolicy: MatchRepository}"

// verify calls Verify and checks rules that hold for every verdict.
func verify(t testing.TB, typ string, content []byte, set *policy.Set) signatures.Verdict {
	t.Helper()
	v := signatures.Verify(signatures.Signature{Type: typ, Content: content}, image, set, now)
	wellFormed(t, v)
	return v
}

// Messages describe the fault in words, not in terms of a library's encoding.
func TestWordsForAnotherKey(t *testing.T) {
	t.Parallel()
	trusted := signaturestest.NewKey(t, signaturestest.P256)
	for _, kind := range []string{signaturestest.P256, signaturestest.RSA2048} {
		_, other := twoKeys(t, kind)
		set := signaturestest.Set(t, signaturestest.TrustKey(trusted, nil), "{matchPolicy: MatchRepository}")
		v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, other.SimpleSigning(t, digest, repository)), set)
		c, _ := v.Condition("Trusted")
		if !strings.Contains(c.Message, "signed with a different key than sha256:") || strings.Contains(c.Message, "ASN.1") {
			t.Errorf("%s: says %q", kind, c.Message)
		}
	}
}

// wellFormed checks the rules of openshift-apiserver's validation that every set of conditions must
// meet.
func wellFormed(t testing.TB, v signatures.Verdict) {
	t.Helper()
	if len(v.Conditions) < 2 || v.Conditions[0].Type != "Trusted" || v.Conditions[1].Type != "ForImage" {
		t.Errorf("conditions do not begin with Trusted, ForImage: %+v", v.Conditions)
		return
	}
	for i, c := range v.Conditions[2:] {
		if want := []string{"Expired", "Revoked"}; string(c.Type) != want[i] && string(c.Type) != want[1] {
			t.Errorf("condition %d is %s", i+2, c.Type)
		}
	}
	for _, c := range v.Conditions {
		if c.Reason == "" || c.Message == "" {
			t.Errorf("condition %s lacks reason or message: %+v", c.Type, c)
		}
	}
	if v.Conditions[0].Status == corev1.ConditionUnknown && (v.ImageIdentity != "" || v.SignedClaims != nil || v.IssuedBy != nil || v.IssuedTo != nil || v.Created != nil) {
		t.Errorf("an unknown verdict has details: %+v", v)
	}
	if (v.IssuedBy != nil) != v.Trusted() {
		t.Errorf("issuedBy is %v although trusted is %v", v.IssuedBy, v.Trusted())
	}
}

// want checks the Trusted and ForImage conditions: "True SignatureVerified / True".
func want(t testing.TB, v signatures.Verdict, expected string) {
	t.Helper()
	trusted, _ := v.Condition(verdicts.Trusted)
	forImage, _ := v.Condition(verdicts.ForImage)
	if got := fmt.Sprintf("%s %s / %s", trusted.Status, trusted.Reason, forImage.Status); got != expected {
		t.Errorf("verdict is %s, want %s\nmessage: %s", got, expected, trusted.Message)
	}
}

const trusted = "True SignatureVerified / True"

// keysMade are keys that tests share, because generating an RSA key takes up to seconds.
var keysMade = struct {
	sync.Mutex
	of map[string][2]signaturestest.Key // by kind
}{of: map[string][2]signaturestest.Key{}}

// twoKeys returns two different keys of a kind, always the same.
func twoKeys(t *testing.T, kind string) (one, other *signaturestest.Key) {
	t.Helper()
	keysMade.Lock()
	defer keysMade.Unlock()
	keys, made := keysMade.of[kind]
	if !made {
		keys = [2]signaturestest.Key{*signaturestest.NewKey(t, kind), *signaturestest.NewKey(t, kind)}
		keysMade.of[kind] = keys
	}
	return &keys[0], &keys[1]
}

func TestVerifyKeys(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	for _, kind := range signaturestest.Kinds {
		_, stranger := twoKeys(t, kind)
		for _, old := range []bool{false, true} {
			key, _ := twoKeys(t, kind)
			key.Old = old
			for _, rekor := range []bool{false, true} {
				if rekor && old && kind == signaturestest.Ed25519 {
					// a log entry has only a digest, and pure Ed25519 cannot be verified from a digest
					continue
				}
				t.Run(fmt.Sprintf("%s/old=%v/rekor=%v", kind, old, rekor), func(t *testing.T) {
					var logKey []byte
					blob := key.SimpleSigning(t, digest, repository)
					if rekor {
						logKey = d.RekorKey(t)
						d.Log(t, blob, key.Hash(), key.PEM, now)
					}
					set := signaturestest.Set(t, signaturestest.TrustKey(key, logKey), matchRepository)
					v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, blob), set)
					want(t, v, trusted)
					if v.IssuedTo == nil || v.IssuedTo.PublicKeyID != key.ID(t) || v.IssuedTo.CommonName != "demo" {
						t.Errorf("issuedTo %+v, want key %s of demo", v.IssuedTo, key.ID(t))
					}
					if v.ImageIdentity != repository {
						t.Errorf("imageIdentity %q", v.ImageIdentity)
					}
					if got := v.SignedClaims["rekor.logIndex"]; rekor && got != "4711" || !rekor && got != "" {
						t.Errorf("rekor.logIndex %q", got)
					}
					c, _ := v.Condition("Trusted")
					for _, part := range []string{`policy "demo"`, key.ID(t), repository} {
						if !strings.Contains(c.Message, part) {
							t.Errorf("message %q does not name %s", c.Message, part)
						}
					}
					if rekor && !strings.Contains(c.Message, "log index 4711") {
						t.Errorf("message %q does not name the log index", c.Message)
					}

					other := signaturestest.Set(t, signaturestest.TrustKey(stranger, logKey), matchRepository)
					want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, blob), other), "False NoMatchingKey / Unknown")
				})
			}
		}
		t.Run(kind+"/bundle", func(t *testing.T) {
			key, _ := twoKeys(t, kind)
			content := signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1")))
			trust := signaturestest.TrustKey(key, nil)
			v := verify(t, signatures.TypeBundle, content, signaturestest.Set(t, trust, "{matchPolicy: DigestOnly}"))
			want(t, v, trusted)
			if got := v.SignedClaims["subject.digest"]; got != digest {
				t.Errorf("subject.digest %q", got)
			}
			want(t, verify(t, signatures.TypeBundle, content, signaturestest.Set(t, trust, matchRepository)), "False NoSignedIdentity / True")
			want(t, verify(t, signatures.TypeBundle, content, signaturestest.Set(t, trust, "")), "False NoSignedIdentity / True")
			other := signaturestest.Set(t, signaturestest.TrustKey(stranger, nil), "{matchPolicy: DigestOnly}")
			want(t, verify(t, signatures.TypeBundle, content, other), "False NoMatchingKey / Unknown")
		})
		t.Run(kind+"/manifest-bundle", func(t *testing.T) {
			key, _ := twoKeys(t, kind)
			content := signaturestest.Marshal(t, key.ManifestBundle(t, []byte(manifest)))
			set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), "{matchPolicy: DigestOnly}")
			want(t, verify(t, signatures.TypeBundle, content, set), trusted)
			// Without the manifest, only algorithms that sign a SHA-256 digest can be checked.
			bare := signatures.Image{Digest: digest, Reference: image.Reference}
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeBundle, Content: content}, bare, set, now)
			switch kind {
			case signaturestest.P256, signaturestest.RSA2048, signaturestest.RSA4096:
				want(t, v, trusted)
			default:
				if v.Trusted() {
					t.Errorf("trusted without the manifest")
				}
			}
			other := signaturestest.Marshal(t, key.ManifestBundle(t, []byte("another manifest")))
			if v := verify(t, signatures.TypeBundle, other, set); v.Trusted() {
				t.Errorf("trusted for another manifest")
			} else if kind == signaturestest.P256 {
				want(t, v, "False DigestMismatch / False")
			}
		})
	}
}

// A signature with any SHA-2 hash verifies with the policy's key, whatever the key's size. If the
// signed bytes are not available, no signature counts as damaged or as made with another key.
func TestVerifyEveryHash(t *testing.T) {
	for _, kind := range []string{signaturestest.P256, signaturestest.P384, signaturestest.P521, signaturestest.RSA2048, signaturestest.RSA4096} {
		key, stranger := twoKeys(t, kind)
		set := signaturestest.Set(t, signaturestest.TrustKey(key, nil), "{matchPolicy: DigestOnly}")
		other := signaturestest.Set(t, signaturestest.TrustKey(stranger, nil), "{matchPolicy: DigestOnly}")
		for with, algorithm := range map[crypto.Hash]protocommon.HashAlgorithm{
			crypto.SHA256: protocommon.HashAlgorithm_SHA2_256, crypto.SHA384: protocommon.HashAlgorithm_SHA2_384, crypto.SHA512: protocommon.HashAlgorithm_SHA2_512,
		} {
			key.With = with
			sum := with.New()
			sum.Write([]byte(manifest))
			named := key.ManifestBundle(t, []byte(manifest))
			named.GetMessageSignature().MessageDigest = &protocommon.HashOutput{Algorithm: algorithm, Digest: sum.Sum(nil)}
			for what, s := range map[string]signatures.Signature{
				"payload":                       {Type: signatures.TypeSimpleSigning, Content: signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository))},
				"envelope":                      {Type: signatures.TypeBundle, Content: signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1")))},
				"manifest":                      {Type: signatures.TypeBundle, Content: signaturestest.Marshal(t, key.ManifestBundle(t, []byte(manifest)))},
				"manifest, with its own digest": {Type: signatures.TypeBundle, Content: signaturestest.Marshal(t, named)},
			} {
				t.Run(fmt.Sprintf("%s/%v/%s", kind, with, what), func(t *testing.T) {
					v := verify(t, s.Type, s.Content, set)
					want(t, v, trusted)
					if c, _ := v.Condition("Trusted"); strings.Contains(c.Message, ", with "+with.String()) != (with != crypto.SHA256) {
						t.Errorf("the message does not say which hash: %s", c.Message)
					}
					want(t, verify(t, s.Type, s.Content, other), "False NoMatchingKey / Unknown")
					if !strings.HasPrefix(what, "manifest") {
						return
					}
					v = signatures.Verify(s, signatures.Image{Digest: digest, Reference: image.Reference}, set, now)
					if c, _ := v.Condition("Trusted"); !v.Trusted() && (c.Reason != "UnsupportedFormat" || !strings.Contains(c.Message, "needs the manifest's bytes")) {
						t.Errorf("without the manifest: %s: %s", c.Reason, c.Message)
					}
				})
			}
		}
	}
}

// If a certificate's key may be used only with its own hash, a valid signature with another hash
// counts as unsupported, not as damaged.
func TestVerifyHashOfACertificatesKey(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	leaf, key := d.Identity(t, "dev@example.com", nil)
	set := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: dev@example.com"), matchRepository)
	for _, with := range []crypto.Hash{crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		key.With = with
		signed := d.Keyless(t, leaf, key, digest, repository, time.Now())
		d.Log(t, signed, key.Hash(), signaturestest.CertPEM(t, leaf), time.Now())
		v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, signed), set)
		if with == crypto.SHA256 {
			want(t, v, trusted)
			continue
		}
		if c, _ := v.Condition("Trusted"); c.Reason != "UnsupportedFormat" || !strings.Contains(c.Message, "with a hash that is supported only for public keys") {
			t.Errorf("%v: %s: %s", with, c.Reason, c.Message)
		}
	}
}

// Every row of the table of verdicts that does not need a certificate or OpenPGP.
func TestVerdictOfKeySignatures(t *testing.T) {
	key := signaturestest.NewKey(t, signaturestest.P256)
	d := signaturestest.NewDeployment(t)
	trust, trustLogged := signaturestest.TrustKey(key, nil), signaturestest.TrustKey(key, d.RekorKey(t))
	logged := key.SimpleSigning(t, digest, repository)
	d.Log(t, logged, "sha256", key.PEM, now)
	tampered := key.SimpleSigning(t, digest, repository)
	tampered.Payload = []byte(strings.Replace(string(tampered.Payload), `"optional":null`, `"optional":{"a":"b"}`, 1))
	tamperedLogged := key.SimpleSigning(t, digest, repository)
	d.Log(t, tamperedLogged, "sha256", key.PEM, now)
	tamperedLogged.Payload = tampered.Payload
	tamperedBundle := key.Bundle(t, signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1"))
	tamperedBundle.GetDsseEnvelope().Payload = signaturestest.Statement(otherImage, "https://sigstore.dev/cosign/sign/v1")

	for _, tc := range []struct {
		name, typ string
		signature any
		trust     string
		identity  string
		want      string
	}{
		{"trusted", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository), trust, matchRepository, trusted},
		{"trusted, by tag and default rule", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository+":v1"), trust, "", trusted},
		{"cosign's default name fails the default rule", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository), trust, "", "False SignedIdentityMismatch / True"},
		{"another repository", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, "registry.example.com/demo/web"), trust, matchRepository, "False SignedIdentityMismatch / True"},
		{"no reference", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, ""), trust, matchRepository, "False SignedIdentityMismatch / True"},
		{"another repository, digest only", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, "registry.example.com/demo/web"), trust, "{matchPolicy: DigestOnly}", trusted},
		{"another digest", signatures.TypeSimpleSigning, key.SimpleSigning(t, otherImage, repository), trust, matchRepository, "False DigestMismatch / False"},
		{"tampered", signatures.TypeSimpleSigning, tampered, trust, matchRepository, "False NoMatchingKey / Unknown"},
		{"tampered, and the log names the key", signatures.TypeSimpleSigning, tamperedLogged, trust, matchRepository, "False InvalidSignature / Unknown"},
		{"tampered bundle, and the hint names the key", signatures.TypeBundle, tamperedBundle, trust, "{matchPolicy: DigestOnly}", "False InvalidSignature / Unknown"},
		{"no log entry", signatures.TypeSimpleSigning, key.SimpleSigning(t, digest, repository), trustLogged, matchRepository, "False TransparencyLogEntryMissing / True"},
		{"no log entry, another digest", signatures.TypeSimpleSigning, key.SimpleSigning(t, otherImage, repository), trustLogged, matchRepository, "False TransparencyLogEntryMissing / False"},
		{"logged", signatures.TypeSimpleSigning, logged, trustLogged, matchRepository, trusted},
		{"Notary where a key is trusted", signatures.TypeNotation, map[string]string{}, trust, matchRepository, "False NoMatchingKey / Unknown"},
		{"unknown type", "Elsewhere", map[string]string{}, trust, matchRepository, "Unknown UnsupportedFormat / Unknown"},
		{"not a blob", signatures.TypeSimpleSigning, map[string]string{}, trust, matchRepository, "False InvalidSignature / Unknown"},
		{"not a bundle", signatures.TypeBundle, map[string]string{}, trust, matchRepository, "Unknown UnsupportedFormat / Unknown"},
		{"OpenPGP where a key is trusted", signatures.TypeAtomic, map[string]string{}, trust, matchRepository, "False NoMatchingKey / Unknown"},
		{"a blob from lookaside storage", signatures.TypeAtomicAlias, key.SimpleSigning(t, digest, repository), trust, matchRepository, trusted},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := verify(t, tc.typ, signaturestest.Marshal(t, tc.signature), signaturestest.Set(t, tc.trust, tc.identity))
			want(t, v, tc.want)
			believed := strings.Contains(tc.want, "Verified") || strings.Contains(tc.want, "Mismatch") || strings.Contains(tc.want, "NoSignedIdentity")
			if (v.SignedClaims != nil) != believed {
				t.Errorf("signedClaims %v, believed %v", v.SignedClaims, believed)
			}
		})
	}
	t.Run("no policy", func(t *testing.T) {
		elsewhere := signaturestest.SetFrom(t, signaturestest.Document("x", "[quay.io]", trust, matchRepository))
		for name, set := range map[string]*policy.Set{"none": nil, "elsewhere": elsewhere} {
			v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, logged), set)
			want(t, v, "Unknown NoMatchingPolicy / Unknown")
			if v.Policy != "" {
				t.Errorf("%s: policy %q", name, v.Policy)
			}
		}
	})
	t.Run("reference that says two things", func(t *testing.T) {
		set := signaturestest.Set(t, trust, matchRepository)
		for _, ref := range []string{repository + ":v1@" + digest, repository + "@" + otherImage, "", "UPPER/case", repository + "@sha256:1"} {
			odd := signatures.Image{Digest: digest, Reference: ref}
			content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository))
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeSimpleSigning, Content: content}, odd, set, now)
			want(t, v, "Unknown NoMatchingPolicy / Unknown")
		}
	})
	t.Run("claims", func(t *testing.T) {
		doc := fmt.Sprintf(`{"critical":{"type":"cosign container image signature","image":{"docker-manifest-digest":%q},"identity":{"docker-reference":%q}},`+
			`"optional":{"creator":"ci","build":{"n":1},"timestamp":1700000000,"huge":%q}}`, digest, repository, strings.Repeat("x", 2000))
		v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, key.Blob(t, []byte(doc))), signaturestest.Set(t, trust, matchRepository))
		want(t, v, trusted)
		for key, value := range map[string]string{
			"optional.creator": "ci", "optional.build": `{"n":1}`, "optional.timestamp": "1700000000",
			"critical.type": "cosign container image signature", "critical.image.docker-manifest-digest": digest,
			"critical.identity.docker-reference": repository, "tidewaiter.dev/omitted": "1",
		} {
			if v.SignedClaims[key] != value {
				t.Errorf("claim %s is %q, want %q", key, v.SignedClaims[key], value)
			}
		}
		if _, ok := v.SignedClaims["optional.huge"]; ok {
			t.Error("a claim of 2000 bytes was kept")
		}
		if v.Created == nil || v.Created.Unix() != 1700000000 {
			t.Errorf("created %v", v.Created)
		}
		if v.IssuedBy.CommonName != "demo" || v.IssuedBy.Organization != "ClusterImagePolicy" {
			t.Errorf("issuedBy %+v", v.IssuedBy)
		}
	})
	t.Run("message fit for a terminal", func(t *testing.T) {
		evil := key.SimpleSigning(t, digest, "x\x1b[31m\n"+strings.Repeat("y", 5000))
		v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, evil), signaturestest.Set(t, trust, matchRepository))
		c, _ := v.Condition("Trusted")
		if strings.ContainsAny(c.Message, "\x1b\n") || len(c.Message) > 1024 {
			t.Errorf("message %q", c.Message)
		}
	})
}

func TestVerifyKeyless(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	const mail, uri = "dev@example.com", "https://github.com/acme/app/.github/workflows/build.yml@refs/heads/main"
	at := time.Now()
	statement := signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1")
	for _, subject := range []string{mail, uri} {
		field := "signedEmail: " + subject
		if subject == uri {
			field = "signedURI: " + subject
		}
		leaf, key := d.Identity(t, subject, nil)
		for trustName, trust := range map[string]string{
			// bundles do not contain the intermediate
			"fulcio": d.TrustFulcio(t, field, d.Root, d.Intermediate),
			"root":   d.TrustRoot(t, field, nil),
		} {
			t.Run(trustName+"/"+subject, func(t *testing.T) {
				legacy := signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, at))
				bundle := signaturestest.Marshal(t, d.KeylessBundle(t, leaf, key, statement, at))
				set, anyName := signaturestest.Set(t, trust, matchRepository), signaturestest.Set(t, trust, "{matchPolicy: DigestOnly}")
				for name, v := range map[string]signatures.Verdict{
					"legacy": verify(t, signatures.TypeSimpleSigning, legacy, set),
					"bundle": verify(t, signatures.TypeBundle, bundle, anyName),
				} {
					want(t, v, trusted)
					if v.IssuedTo == nil || v.IssuedTo.CommonName != subject || v.IssuedTo.Organization != signaturestest.Issuer {
						t.Errorf("%s: issuedTo %+v", name, v.IssuedTo)
					}
					if v.IssuedBy == nil || v.IssuedBy.CommonName != "test intermediate" || v.IssuedBy.Organization != "tests" {
						t.Errorf("%s: issuedBy %+v", name, v.IssuedBy)
					}
					if v.SignedClaims["rekor.integratedTime"] != at.UTC().Format(time.RFC3339) || v.SignedClaims["rekor.logID"] == "" || v.SignedClaims["fulcio.issuer"] != signaturestest.Issuer {
						t.Errorf("%s: claims %v", name, v.SignedClaims)
					}
					if v.Created == nil || v.Created.Unix() > at.Unix() {
						t.Errorf("%s: created %v", name, v.Created)
					}
				}
				want(t, verify(t, signatures.TypeBundle, bundle, set), "False NoSignedIdentity / True")
			})
		}
	}

	leaf, key := d.Identity(t, mail, nil)
	fulcio := signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+mail), matchRepository)
	check := func(name, expected string, set *policy.Set, content []byte) {
		t.Run(name, func(t *testing.T) { want(t, verify(t, signatures.TypeSimpleSigning, content, set), expected) })
	}
	content := signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, at))
	check("somebody else", "False SubjectMismatch / True", signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: boss@example.com"), matchRepository), content)
	workflow, workflowKey := d.Identity(t, uri, nil)
	check("URI taken for mail", "False SubjectMismatch / True", signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: "+uri), matchRepository),
		signaturestest.Marshal(t, d.Keyless(t, workflow, workflowKey, digest, repository, at)))
	check("root CA only, intermediate with the signature", trusted, fulcio, content)
	noChain := d.Keyless(t, leaf, key, digest, repository, at)
	delete(noChain.Annotations, "dev.sigstore.cosign/chain")
	check("root CA only, no intermediate", "False NoMatchingKey / Unknown", fulcio, signaturestest.Marshal(t, noChain))
	check("another issuer", "False SubjectMismatch / True", signaturestest.Set(t, strings.Replace(d.TrustFulcio(t, "signedEmail: "+mail), signaturestest.Issuer, "https://other.example.com", 1), matchRepository), content)
	check("another CA", "False NoMatchingKey / Unknown", signaturestest.Set(t, signaturestest.NewDeployment(t).TrustFulcio(t, "signedEmail: "+mail), matchRepository), content)
	check("another digest", "False DigestMismatch / False", fulcio, signaturestest.Marshal(t, d.Keyless(t, leaf, key, otherImage, repository, at)))
	check("logged after the certificate", "False CertificateExpired / True", fulcio, signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, at.Add(time.Hour))))
	noEntry := d.Keyless(t, leaf, key, digest, repository, at)
	delete(noEntry.Annotations, "dev.sigstore.cosign/bundle")
	check("not logged", "False TransparencyLogEntryMissing / True", fulcio, signaturestest.Marshal(t, noEntry))
	tampered := d.Keyless(t, leaf, key, digest, repository, at)
	tampered.Payload = []byte(strings.Replace(string(tampered.Payload), `"optional":null`, `"optional":{}`, 1))
	check("tampered", "False InvalidSignature / Unknown", fulcio, signaturestest.Marshal(t, tampered))
	check("a bare key", "False NoMatchingKey / Unknown", fulcio, signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository)))

	// A certificate counts at the time of the signature: long after, the verdict is the same.
	t.Run("years later", func(t *testing.T) {
		v := signatures.Verify(signatures.Signature{Type: signatures.TypeSimpleSigning, Content: content}, image, fulcio, now.AddDate(20, 0, 0))
		want(t, v, trusted)
		if _, ok := v.Condition("Expired"); ok || !v.NotAfter.IsZero() {
			t.Errorf("expires: %+v", v)
		}
	})
	t.Run("Expired condition", func(t *testing.T) {
		v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, d.Keyless(t, leaf, key, digest, repository, at.Add(time.Hour))), fulcio)
		if c, ok := v.Condition("Expired"); !ok || c.Status != corev1.ConditionTrue || c.Reason != evidence.CertificateExpired {
			t.Errorf("conditions %+v", v.Conditions)
		}
	})
}

func TestVerifyRekorV2(t *testing.T) {
	d := signaturestest.NewDeployment(t)
	b := d.KeylessV2Bundle(t, "dev@example.com", signaturestest.Statement(digest, "https://sigstore.dev/cosign/sign/v1"))
	content := signaturestest.Marshal(t, b)
	const digestOnly = "{matchPolicy: DigestOnly}"
	v := verify(t, signatures.TypeBundle, content, signaturestest.Set(t, d.TrustRoot(t, "signedEmail: dev@example.com", nil), digestOnly))
	want(t, v, trusted)
	if v.SignedClaims["rekor.logIndex"] != "0" || v.SignedClaims["rekor.integratedTime"] != "" {
		t.Errorf("claims %v", v.SignedClaims)
	}
	// A log's key alone does not determine the name under which the log signs its checkpoints.
	own := d.FulcioCertificateAuthorities()[0].(*root.FulcioCertificateAuthority)
	want(t, verify(t, signatures.TypeBundle, content, signaturestest.Set(t, d.TrustFulcio(t, "signedEmail: dev@example.com", own.Root, own.Intermediates[0]), digestOnly)),
		"False TransparencyLogEntryInvalid / True")
	// Rekor v2 promises no time, so without a timestamp the signature has no verified time.
	b.VerificationMaterial.TimestampVerificationData = nil
	want(t, verify(t, signatures.TypeBundle, signaturestest.Marshal(t, b), signaturestest.Set(t, d.TrustRoot(t, "signedEmail: dev@example.com", nil), digestOnly)),
		"False TimestampInvalid / True")
}
