package signatures_test

import (
	"bytes"
	"compress/zlib"
	"crypto"
	"encoding/binary"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/packet"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func trustGPG(t *testing.T, keyrings ...[]byte) *policy.Set {
	t.Helper()
	return signaturestest.Set(t, signaturestest.TrustGPG(bytes.Join(keyrings, nil)), matchRepository)
}

// A keyring that was put together over the years holds copies of a key. The newest copy counts,
// wherever it stands.
func TestGPGCopiesOfOneKey(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key := signaturestest.NewGPG(t, "Release", made, 0)
	message := key.SimpleSigning(t, digest, repository, made)
	old := key.Public(t)
	expired := key.Prolong(t, made.Add(time.Hour), 24*time.Hour)
	prolonged := key.Prolong(t, made.Add(2*time.Hour), 0)
	key.Revoke(t, made.Add(3*time.Hour))
	revoked := key.Public(t)

	for _, tc := range []struct {
		name   string
		copies [][]byte
		want   string
	}{
		{"one", [][]byte{old}, trusted},
		{"revoked", [][]byte{old, revoked}, "False KeyRevoked / True"},
		{"expired", [][]byte{old, expired}, "False KeyExpired / True"},
		{"expired, and prolonged", [][]byte{old, expired, prolonged}, trusted},
	} {
		backwards := slices.Clone(tc.copies)
		slices.Reverse(backwards)
		for i, copies := range [][][]byte{tc.copies, backwards} {
			t.Run(tc.name+[]string{"", ", the other way round"}[i], func(t *testing.T) {
				want(t, verify(t, signatures.TypeAtomic, message, trustGPG(t, copies...)), tc.want)
			})
		}
	}

	t.Run("a copy that cannot be read", func(t *testing.T) {
		damaged := bytes.Clone(revoked)
		damaged[len(damaged)-3] ^= 1 // in the last signature
		_, err := policy.Parse([]byte(signaturestest.Document("demo", `["registry.example.com"]`,
			signaturestest.TrustGPG(append(bytes.Clone(old), damaged...)), matchRepository)), "")
		if err == nil {
			t.Error("a keyring is accepted in which one copy of a key cannot be read")
		}
	})
}

// Several keyrings work as one. Each may be armored or binary, and a revocation in one keyring
// revokes the copies of the key in the others.
func TestGPGSeveralKeyrings(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	older, newer, stranger := signaturestest.NewGPG(t, "Older", made, 0), signaturestest.NewGPG(t, "Newer", made, 0), signaturestest.NewGPG(t, "Stranger", made, 0)
	var armored bytes.Buffer
	w, err := armor.Encode(&armored, openpgp.PublicKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(newer.Public(t)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	trust := func(keyrings ...[]byte) *policy.Set {
		var items []string
		for _, k := range keyrings {
			items = append(items, signaturestest.B64(k))
		}
		return signaturestest.Set(t, "{policyType: GPGKeys, gpgKeys: {keyDatas: ["+strings.Join(items, ", ")+"]}}", matchRepository)
	}
	set := trust(older.Public(t), armored.Bytes())
	for _, key := range []*signaturestest.GPG{older, newer} {
		want(t, verify(t, signatures.TypeAtomic, key.SimpleSigning(t, digest, repository, made), set), trusted)
	}
	want(t, verify(t, signatures.TypeAtomic, stranger.SimpleSigning(t, digest, repository, made), set), "False NoMatchingKey / Unknown")
	message, valid := older.SimpleSigning(t, digest, repository, made), older.Public(t)
	older.Revoke(t, made.Add(time.Hour))
	want(t, verify(t, signatures.TypeAtomic, message, trust(valid, older.Public(t))), "False KeyRevoked / True")
	want(t, verify(t, signatures.TypeAtomic, message, trust(older.Public(t), valid)), "False KeyRevoked / True")
}

// The clocks of a signer and of a server differ by seconds.
func TestGPGNotYetValid(t *testing.T) {
	for _, tc := range []struct {
		name  string
		ahead time.Duration
		want  string
	}{
		{"a minute", time.Minute, trusted},
		{"more", time.Minute + time.Second, "False NotYetValid / True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			at := now.Add(tc.ahead)
			key := signaturestest.NewGPG(t, "Release", at, 0)
			set := trustGPG(t, key.Public(t))
			content := key.SimpleSigning(t, digest, repository, at)
			v := verify(t, signatures.TypeAtomic, content, set)
			want(t, v, tc.want)
			if len(v.Conditions) != 2 {
				t.Errorf("conditions %v: nothing has expired", v.Conditions)
			}
			if tc.want == trusted {
				return
			}
			if !v.NotAfter.Equal(at.Truncate(time.Second)) {
				t.Errorf("is judged again at %v, becomes valid at %v", v.NotAfter, at)
			}
			want(t, signatures.Verify(signatures.Signature{Type: signatures.TypeAtomic, Content: content}, image, set, v.NotAfter), trusted)
		})
	}
}

func TestGPGWeak(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	doc, err := payload.MarshalSimpleSigning(payload.TypeAtomic, digest, repository, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		bits int
		hash crypto.Hash
		want string
	}{
		{"RSA 2048 with SHA-256", 2048, crypto.SHA256, trusted},
		{"SHA-1", 2048, crypto.SHA1, "False InvalidSignature / Unknown"},
		{"RSA 1024", 1024, crypto.SHA256, "False InvalidSignature / Unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			key := newRSA(t, tc.bits, made)
			message := signVersion4(t, key, doc, tc.hash, made)
			want(t, verify(t, signatures.TypeAtomic, message, trustGPG(t, public(t, key))), tc.want)
		})
	}
}

func newRSA(t *testing.T, bits int, made time.Time) *openpgp.Entity {
	t.Helper()
	config := &packet.Config{Time: func() time.Time { return made }, Algorithm: packet.PubKeyAlgoRSA, RSABits: bits}
	key, err := openpgp.NewEntity("Release", "", "release@example.com", config)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(t *testing.T, key *openpgp.Entity) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := key.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// signVersion4 makes a message with a signature of version 4, with any hash. The library refuses to
// make one with SHA-1.
func signVersion4(t *testing.T, key *openpgp.Entity, content []byte, hash crypto.Hash, at time.Time) []byte {
	t.Helper()
	hashed := append([]byte{4, 0, byte(packet.PubKeyAlgoRSA), hashID[hash], 0, 6, 5, 2}, seconds(at)...)
	h := hash.New()
	h.Write(content)
	h.Write(hashed)
	h.Write(binary.BigEndian.AppendUint32([]byte{4, 0xff}, uint32(len(hashed))))
	issuer := binary.BigEndian.AppendUint64([]byte{0, 10, 9, 16}, key.PrimaryKey.KeyId)
	return bytes.Join([][]byte{onePass(t, key, hash), literal(content), signaturePacket(t, key, append(hashed, issuer...), hash, h.Sum(nil))}, nil)
}

var hashID = map[crypto.Hash]byte{crypto.SHA1: 2, crypto.SHA256: 8}

func seconds(at time.Time) []byte { return binary.BigEndian.AppendUint32(nil, uint32(at.Unix())) }

// signaturePacket appends the first bytes of the hash, and the number, to the fields of a
// signature, and wraps it all.
func signaturePacket(t *testing.T, key *openpgp.Entity, fields []byte, hash crypto.Hash, sum []byte) []byte {
	t.Helper()
	private, ok := key.PrivateKey.PrivateKey.(crypto.Signer)
	if !ok {
		t.Fatalf("a private key of type %T", key.PrivateKey.PrivateKey)
	}
	number, err := private.Sign(nil, sum, hash)
	if err != nil {
		t.Fatal(err)
	}
	b := append(fields, sum[0], sum[1])
	b = binary.BigEndian.AppendUint16(b, uint16(8*len(number)))
	b = append(b, number...)
	// old format, tag 2, four bytes of length
	return append(binary.BigEndian.AppendUint32([]byte{0x8a}, uint32(len(b))), b...)
}

func onePass(t *testing.T, key *openpgp.Entity, hash crypto.Hash) []byte {
	t.Helper()
	var b bytes.Buffer
	p := packet.OnePassSignature{Version: 3, SigType: packet.SigTypeBinary, Hash: hash, PubKeyAlgo: key.PrimaryKey.PubKeyAlgo, KeyId: key.PrimaryKey.KeyId, IsLast: true}
	if err := p.Serialize(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func literal(content []byte) []byte {
	body := append([]byte{'b', 0, 0, 0, 0, 0}, content...)
	// old format, tag 11, four bytes of length
	return append(binary.BigEndian.AppendUint32([]byte{0xae}, uint32(len(body))), body...)
}

// signVersion3 makes a signature packet of version 3 (RFC 4880, section 5.2.2).
func signVersion3(t *testing.T, key *openpgp.Entity, content []byte, at time.Time) []byte {
	t.Helper()
	hashed := append([]byte{0}, seconds(at)...)
	h := crypto.SHA256.New()
	h.Write(content)
	h.Write(hashed)
	fields := binary.BigEndian.AppendUint64(append([]byte{3, 5}, hashed...), key.PrimaryKey.KeyId)
	fields = append(fields, byte(packet.PubKeyAlgoRSA), hashID[crypto.SHA256])
	return signaturePacket(t, key, fields, crypto.SHA256, h.Sum(nil))
}

func TestGPGVersion3(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key, stranger := newRSA(t, 2048, made), newRSA(t, 2048, made)
	short := signaturestest.NewGPG(t, "Other", made, 0)
	doc, err := payload.MarshalSimpleSigning(payload.TypeAtomic, digest, repository, map[string]any{"creator": "an old program"})
	if err != nil {
		t.Fatal(err)
	}
	sig, pass := signVersion3(t, key, doc, made), onePass(t, key, crypto.SHA256)
	message := bytes.Join([][]byte{pass, literal(doc), sig}, nil)
	changed := bytes.Replace(doc, []byte("an old"), []byte("no old"), 1)
	for _, tc := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"announced", message, trusted},
		{"compressed", signaturestest.Compressed(t, message), trusted},
		{"the signature first", bytes.Join([][]byte{sig, literal(doc)}, nil), trusted},
		{"tampered", bytes.Join([][]byte{pass, literal(changed), sig}, nil), "False InvalidSignature / Unknown"},
		{"unknown key", append(signVersion3(t, stranger, doc, made), literal(doc)...), "False NoMatchingKey / Unknown"},
		{"cut short", append([]byte{0x88, 5, 3, 5, 0, 0, 0}, literal(doc)...), "False InvalidSignature / Unknown"},
		{"made in the future", bytes.Join([][]byte{pass, literal(doc), signVersion3(t, key, doc, now.Add(time.Hour))}, nil), "False NotYetValid / True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			want(t, verify(t, signatures.TypeAtomic, tc.message, trustGPG(t, public(t, key), short.Public(t))), tc.want)
		})
	}
	t.Run("revoked key", func(t *testing.T) {
		if err := key.RevokeKey(packet.KeyCompromised, "lost", &packet.Config{Time: func() time.Time { return now }}); err != nil {
			t.Fatal(err)
		}
		want(t, verify(t, signatures.TypeAtomic, message, trustGPG(t, public(t, key))), "False KeyRevoked / True")
	})
}

// The content of one part of a file must not count as signed by another part.
func TestAttackGPGMoreThanOneMessage(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key := signaturestest.NewGPG(t, "Release", made, 0)
	good, other := key.SimpleSigning(t, digest, repository, made), key.SimpleSigning(t, otherImage, repository, made)
	unsigned := literal([]byte("hello"))
	for name, message := range map[string][]byte{
		"a second message":              append(bytes.Clone(good), other...),
		"content behind it":             append(bytes.Clone(good), unsigned...),
		"content before it":             append(bytes.Clone(unsigned), good...),
		"compressed twice":              signaturestest.Compressed(t, signaturestest.Compressed(t, good)),
		"a message behind a compressed": append(bytes.Clone(good), signaturestest.Compressed(t, other)...),
		// The length of the compressed packet is indeterminate: what follows is in the packet.
		"a message at the end of a compressed": append(signaturestest.Compressed(t, good), other...),
		"text at the end of a compressed":      append(signaturestest.Compressed(t, good), "hello"...),
		"text at the end of a zlib":            append(zlibbed(t, good), "hello"...),
		"a marker that says something":         append([]byte{0xca, 5, 'h', 'e', 'l', 'l', 'o'}, good...),
	} {
		t.Run(name, func(t *testing.T) {
			want(t, verify(t, signatures.TypeAtomic, message, trustGPG(t, key.Public(t))), "False InvalidSignature / Unknown")
		})
	}
}

// Packets of a few bytes, each of which takes hundreds of bytes of memory once it is parsed.
func TestAttackGPGManyPackets(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	key := signaturestest.NewGPG(t, "Release", made, 0)
	set := trustGPG(t, key.Public(t))
	good := key.SimpleSigning(t, digest, repository, made)
	// of version 4, with nothing in it
	signature := append([]byte{0xc2, 10}, 4, 0, 1, 8, 0, 0, 0, 0, 0, 0)
	bomb := signaturestest.Compressed(t, append(bytes.Clone(good), bytes.Repeat(signature, (1<<20-len(good)-100)/len(signature))...))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	v := verify(t, signatures.TypeAtomic, bomb, set)
	runtime.ReadMemStats(&after)
	want(t, v, "False InvalidSignature / Unknown")
	if cost := after.TotalAlloc - before.TotalAlloc; cost > 64<<20 {
		t.Errorf("a message of %d bytes cost %d MB", len(bomb), cost>>20)
	}

	for name, markers := range map[string][]byte{
		"markers":                   bytes.Repeat([]byte{0xca, 3, 'P', 'G', 'P'}, (1<<20-len(good))/5),
		"markers with nothing":      bytes.Repeat([]byte{0xca, 0}, (1<<20-len(good))/2),
		"a marker":                  append([]byte{0xca, 0xff, 0, 0x0f, 0, 0}, make([]byte, 0x0f0000)...),
		"a marker of many parts":    append(bytes.Repeat([]byte{0xe0, 'x'}, 1), bytes.Repeat([]byte{0xe0, 'x'}, (1<<20-len(good)-10)/2)...),
		"an unending marker":        append([]byte{0xab}, make([]byte, 1<<20-len(good)-1)...),
		"markers in what is packed": signaturestest.Compressed(t, append(bytes.Repeat([]byte{0xca, 0}, (1<<20-len(good))/2), good...)),
	} {
		message := append(markers, good...)
		runtime.ReadMemStats(&before)
		v := verify(t, signatures.TypeAtomic, message, set)
		runtime.ReadMemStats(&after)
		want(t, v, "False InvalidSignature / Unknown")
		if cost := after.TotalAlloc - before.TotalAlloc; cost > 16<<20 {
			t.Errorf("%s, a message of %d bytes, cost %d MB", name, len(message), cost>>20)
		}
	}
	if v := verify(t, signatures.TypeAtomic, append([]byte{0xca, 3, 'P', 'G', 'P'}, good...), set); !v.Trusted() {
		t.Errorf("a message behind a marker: %+v", v)
	}
}

// zlibbed is the message in a compressed packet of indeterminate length, by the algorithm ZLIB.
func zlibbed(t testing.TB, message []byte) []byte {
	t.Helper()
	body := bytes.NewBuffer([]byte{0xa3, 2})
	w := zlib.NewWriter(body)
	if _, err := w.Write(message); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return body.Bytes()
}

func TestGPGArmorWithText(t *testing.T) {
	made := now.AddDate(-1, 0, 0)
	keys := []*signaturestest.GPG{signaturestest.NewGPG(t, "Release", made, 0), signaturestest.NewGPG(t, "Security", made, 0)}
	var text bytes.Buffer
	for _, key := range keys { // a block for each
		text.WriteString("The key of a team:\n\n")
		w, err := armor.Encode(&text, "PGP PUBLIC KEY BLOCK", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(key.Public(t)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		text.WriteString("\n\nAsk release@example.com about it.\n")
	}
	for _, key := range keys {
		want(t, verify(t, signatures.TypeAtomic, key.SimpleSigning(t, digest, repository, made), trustGPG(t, text.Bytes())), trusted)
	}
}
