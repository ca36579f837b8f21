package signatures_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp/armor"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func TestVerifyGPG(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key, stranger := signaturestest.NewGPG(t, "Release", made, 0), signaturestest.NewGPG(t, "Stranger", made, 0)
	short := signaturestest.NewGPG(t, "Short", made, 24*time.Hour)
	revoked := signaturestest.NewGPG(t, "Revoked", made, 0)
	revokedMessage := revoked.SimpleSigning(t, digest, repository, made)
	revoked.Revoke(t, made.Add(time.Hour))

	good := key.SimpleSigning(t, digest, repository, made.Add(time.Minute))
	flipped := bytes.Clone(good)
	flipped[bytes.Index(flipped, []byte("docker-manifest-digest"))+30] ^= 1
	signer := fmt.Sprintf("%016X", key.Entity.PrimaryKey.KeyId)
	keyrings := bytes.Join([][]byte{key.Public(t), short.Public(t), revoked.Public(t)}, nil)
	for _, tc := range []struct {
		name    string
		message []byte
		want    string
		extra   string
	}{
		{"trusted", good, trusted, ""},
		{"another name", key.SimpleSigning(t, digest, "registry.example.com/demo/web", made), "False SignedIdentityMismatch / True", ""},
		{"another digest", key.SimpleSigning(t, otherImage, repository, made), "False DigestMismatch / False", ""},
		{"unknown key", stranger.SimpleSigning(t, digest, repository, made), "False NoMatchingKey / Unknown", ""},
		{"expired key", short.SimpleSigning(t, digest, repository, made), "False KeyExpired / True", "Expired"},
		{"expired key, another digest", short.SimpleSigning(t, otherImage, repository, made), "False KeyExpired / False", "Expired"},
		{"expired key, no document", short.Sign(t, []byte("hello"), made), "False KeyExpired / Unknown", "Expired"},
		{"revoked key", revokedMessage, "False KeyRevoked / True", "Revoked"},
		{"a hash that is not supported", otherHash(t, good, 3), "False InvalidSignature / Unknown", "names key " + signer + " and signs with RIPEMD-160, which is not supported"},
		{"an unknown hash", otherHash(t, good, 99), "False InvalidSignature / Unknown", "names key " + signer + " and signs with the unknown hash number 99"},
		{"tampered", flipped, "False InvalidSignature / Unknown", ""},
		{"truncated", good[:len(good)-20], "False InvalidSignature / Unknown", ""},
		{"empty", nil, "False InvalidSignature / Unknown", ""},
		{"not OpenPGP", []byte("hello"), "False InvalidSignature / Unknown", ""},
		{"signed but no document", key.Sign(t, []byte("hello"), made), "False InvalidSignature / Unknown", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := verify(t, signatures.TypeAtomic, tc.message, signaturestest.Set(t, signaturestest.TrustGPG(keyrings), matchRepository))
			want(t, v, tc.want)
			if message := v.Conditions[0].Message; strings.HasPrefix(tc.extra, "names") && !strings.Contains(message, tc.extra) {
				t.Errorf("says %q", message)
			}
			for _, typ := range []string{"Expired", "Revoked"} {
				i := strings.Index(tc.extra, typ)
				found := false
				for _, c := range v.Conditions[2:] {
					found = found || string(c.Type) == typ && c.Status == corev1.ConditionTrue
				}
				if found != (i >= 0) {
					t.Errorf("condition %s is there: %v", typ, found)
				}
			}
		})
	}
	t.Run("details", func(t *testing.T) {
		v := verify(t, signatures.TypeAtomicAlias, good, signaturestest.Set(t, signaturestest.TrustGPG(keyrings), matchRepository))
		fingerprint := strings.ToUpper(hex.EncodeToString(key.Entity.PrimaryKey.Fingerprint))
		if v.IssuedTo.PublicKeyID != fingerprint || v.IssuedTo.CommonName != "Release <release@example.com>" {
			t.Errorf("issuedTo %+v", v.IssuedTo)
		}
		if v.IssuedBy.CommonName != fingerprint[len(fingerprint)-16:] {
			t.Errorf("issuedBy %+v, want the key ID, as oc writes it", v.IssuedBy)
		}
		if v.SignedClaims["optional.creator"] != "tests" || v.Created.Unix() != made.Add(time.Minute).Unix() {
			t.Errorf("claims %v, created %v", v.SignedClaims, v.Created)
		}
	})
	t.Run("the clock decides on expiry", func(t *testing.T) {
		set := signaturestest.Set(t, signaturestest.TrustGPG(keyrings), matchRepository)
		content := short.SimpleSigning(t, digest, repository, made)
		before := signatures.Verify(signatures.Signature{Type: signatures.TypeAtomic, Content: content}, image, set, made.Add(time.Hour))
		want(t, before, trusted)
		if !before.NotAfter.Equal(made.Add(24 * time.Hour)) {
			t.Errorf("NotAfter %v, the key expires %v", before.NotAfter, made.Add(24*time.Hour))
		}
	})
	t.Run("armored keyrings", func(t *testing.T) {
		var text bytes.Buffer
		for _, k := range []*signaturestest.GPG{short, key} {
			w, err := armor.Encode(&text, "PGP PUBLIC KEY BLOCK", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(k.Public(t)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			text.WriteString("\n")
		}
		set := signaturestest.Set(t, signaturestest.TrustGPG(text.Bytes()), matchRepository)
		want(t, verify(t, signatures.TypeAtomic, good, set), trusted)
	})
	t.Run("cosign signature", func(t *testing.T) {
		blob := signaturestest.NewKey(t, signaturestest.P256).SimpleSigning(t, digest, repository)
		set := signaturestest.Set(t, signaturestest.TrustGPG(keyrings), matchRepository)
		want(t, verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, blob), set), "False NoMatchingKey / Unknown")
	})
}

// otherHash changes a message so that it names another hash.
func otherHash(t *testing.T, message []byte, hash byte) []byte {
	t.Helper()
	other := bytes.Clone(message)
	if other[0] != 0xc4 || other[2] != 3 {
		// a new-format header of the tag one-pass signature, version 3
		t.Fatalf("the message begins with % x", other[:4])
	}
	other[4] = hash
	return other
}
