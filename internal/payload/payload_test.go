package payload_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

const hex64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func simple(critical, optional string) string {
	return `{"critical":{` + critical + `},"optional":` + optional + `}`
}

const critical = `"type":"cosign container image signature","image":{"docker-manifest-digest":"sha256:` + hex64 + `"},"identity":{"docker-reference":"a.example.com/x"}`

func TestParseSimpleSigning(t *testing.T) {
	got, err := payload.ParseSimpleSigning([]byte(simple(critical, `{"creator":"c","n":1.5,"timestamp":1700000000,"nested":{"a":[]}}`)), payload.TypeCosign)
	if err != nil {
		t.Fatal(err)
	}
	want := &payload.SimpleSigning{
		Type: payload.TypeCosign, Digest: "sha256:" + hex64, Reference: "a.example.com/x", Timestamp: time.Unix(1700000000, 0).UTC(),
		Optional: map[string]string{"creator": "c", "n": "1.5", "timestamp": "1700000000", "nested": `{"a":[]}`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, good := range []string{
		simple(critical, "null"), simple(critical, "{}"), simple(critical, `{"timestamp":1e9,"creator":null}`), " \n" + simple(critical, "null") + "\n ",
	} {
		if _, err := payload.ParseSimpleSigning([]byte(good), payload.TypeCosign); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{
		"", "null", "[]", "{}", "{", `"x"`, simple(critical, "null") + "x", simple(critical, "[]"), simple(critical, `{"a":1,"a":1}`),
		simple(critical+`,"extra":1`, "null"), simple(critical+`,"type":"cosign container image signature"`, "null"), simple(critical+`,"Type":""`, "null"),
		simple(strings.Replace(critical, "cosign", "atomic", 1), "null"), simple(strings.Replace(critical, "0123", "xxxx", 1), "null"),
		simple(strings.Replace(critical, "0123", "ABCD", 1), "null"), simple(strings.Replace(critical, `"a.example.com/x"`, "1", 1), "null"),
		simple(strings.Replace(critical, `"docker-reference":"a.example.com/x"`, "", 1), "null"), simple(strings.Replace(critical, `"type"`, `"typ"`, 1), "null"),
		simple(strings.Replace(critical, `"identity":`, `"Identity":`, 1), "null"), strings.Replace(simple(critical, "null"), "optional", "OPTIONAL", 1),
		simple(critical, `{"a":1`),
		// as containers/image decides:
		`{"critical":{` + critical + `}}`, simple(critical, `{"timestamp":"yesterday"}`), simple(critical, `{"timestamp":1.5}`),
		simple(critical, `{"timestamp":1e300}`), simple(critical, `{"creator":1}`),
	} {
		if got, err := payload.ParseSimpleSigning([]byte(bad), payload.TypeCosign); err == nil || got != nil || !errors.Is(err, payload.ErrMalformed) {
			t.Errorf("%s: %+v, %v", bad, got, err)
		}
	}
}

func TestStatement(t *testing.T) {
	s, err := payload.ParseStatement([]byte(`{"_type":"https://in-toto.io/Statement/v0.1","predicateType":"p","predicate":{"a":1,"A":2},"more":1,
		"subject":[{"name":"n","digest":{"sha512":"x"}},{"digest":{"sha256":"` + hex64 + `"},"uri":"u"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	if !s.Covers("sha256:"+hex64) || !s.Covers("sha512:x") || s.Covers("sha512:"+hex64) || s.Covers("sha256:") || s.Covers("") || s.Covers(hex64) {
		t.Errorf("covers the wrong digests: %+v", s)
	}
	if s.Digest() != "sha256:"+hex64 || s.PredicateType != "p" {
		t.Errorf("%+v", s)
	}
	for _, bad := range []string{
		`{"_type":"https://in-toto.io/Statement/v2"}`, `{"_type":"https://in-toto.io/Statement/v1","predicate":{"a":1,"a":2}}`,
		`{"_type":"https://in-toto.io/Statement/v1","predicateType":"p","predicate_type":"q"}`, `{"subject":{}}`, `{"_type":"https://in-toto.io/Statement/v1","subject":[1]}`,
		`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":1}}]}`, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"a","sha256":"b"}}]}`,
		`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{},"Digest":{}}]}`,
		`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{` + strings.TrimSuffix(strings.Repeat(`"x":"",`, 1), ",") + manyDigests(33) + `}}]}`,
	} {
		if s, err := payload.ParseStatement([]byte(bad)); err == nil || !errors.Is(err, payload.ErrMalformed) {
			t.Errorf("%s: %+v, %v", bad, s, err)
		}
	}
}

func manyDigests(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"` + strings.Repeat("y", i+1) + `":""`)
	}
	return b.String()
}

func TestBlob(t *testing.T) {
	b := &payload.Blob{MediaType: payload.MediaTypeSimpleSigning, Payload: []byte{0, 1, 2}, Annotations: map[string]string{"b": "1", "a": "2"}}
	content, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	// What containers/image writes to lookaside storage.
	if want := "\x00sigstore-json\n" + `{"mimeType":"application/vnd.dev.cosign.simplesigning.v1+json","payload":"AAEC","annotations":{"a":"2","b":"1"}}`; string(content) != want {
		t.Errorf("%q", content)
	}
	got, err := payload.ParseBlob(content)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b, got); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "{}", "\x00sigstore-json\n", "\x00sigstore-json\n[]", "\x00sigstore-json\n{\"payload\":\"*\"}", "\x00sigstore-json\n{\"annotations\":{\"a\":1}}", "\x00sigstore-json\n{\"mimetype\":\"\"}"} {
		if _, err := payload.ParseBlob([]byte(bad)); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// A parser that is not strict reads the same in whatever is accepted: one digest and one reference.
func FuzzParseSimpleSigning(f *testing.F) {
	f.Add([]byte(simple(critical, "null")))
	f.Add([]byte(simple(critical, `{"creator":"x","timestamp":1}`)))
	f.Add([]byte(simple(critical+`,"type":"cosign container image signature"`, "null")))
	f.Add([]byte(simple(strings.Replace(critical, `"identity"`, `"Identity":{},"identity"`, 1), "null")))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := payload.ParseSimpleSigning(data, payload.TypeCosign)
		if err != nil {
			if s != nil || !errors.Is(err, payload.ErrMalformed) {
				t.Fatalf("%v with %v", s, err)
			}
			return
		}
		var lax struct {
			Critical struct {
				Type  string
				Image struct {
					Digest string `json:"docker-manifest-digest"`
				}
				Identity struct {
					Reference string `json:"docker-reference"`
				}
			}
		}
		if err := json.Unmarshal(data, &lax); err != nil {
			t.Fatalf("accepted, but %v: %q", err, data)
		}
		if lax.Critical.Type != s.Type || lax.Critical.Image.Digest != s.Digest || lax.Critical.Identity.Reference != s.Reference {
			t.Fatalf("read as %+v and as %+v: %q", s, lax, data)
		}
	})
}

func FuzzParseStatement(f *testing.F) {
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` + hex64 + `"}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`))
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v0.1","subject":[],"predicateType":"p","predicateType":"q"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := payload.ParseStatement(data)
		if err != nil {
			if s != nil {
				t.Fatalf("%v with %v", s, err)
			}
			return
		}
		var lax struct {
			PredicateType string
			Subject       []struct{ Digest map[string]string }
		}
		if err := json.Unmarshal(data, &lax); err != nil {
			t.Fatalf("accepted, but %v: %q", err, data)
		}
		if lax.PredicateType != s.PredicateType || len(lax.Subject) != len(s.Subjects) {
			t.Fatalf("read as %+v and as %+v: %q", s, lax, data)
		}
		for i := range lax.Subject {
			if len(lax.Subject[i].Digest)+len(s.Subjects[i]) > 0 && !cmp.Equal(lax.Subject[i].Digest, s.Subjects[i]) {
				t.Fatalf("read as %+v and as %+v: %q", s, lax, data)
			}
		}
	})
}

// A blob that is accepted and written again is accepted again, and is the same.
func FuzzParseBlob(f *testing.F) {
	good, err := (&payload.Blob{MediaType: payload.MediaTypeSimpleSigning, Payload: []byte("x"), Annotations: map[string]string{payload.AnnotationSignature: "MEUC"}}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.Replace(good, []byte("payload"), []byte("Payload"), 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := payload.ParseBlob(data)
		if err != nil {
			return
		}
		again, err := b.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c, err := payload.ParseBlob(again)
		if err != nil && b.Annotations != nil && b.Payload != nil {
			t.Fatal(err)
		}
		if err == nil && (!bytes.Equal(b.Payload, c.Payload) || b.MediaType != c.MediaType || !cmp.Equal(b.Annotations, c.Annotations)) {
			t.Fatalf("%+v became %+v", b, c)
		}
	})
}
