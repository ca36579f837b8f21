package payload_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

const (
	signedStatement = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` + hex64 + `"}}],"predicateType":"https://spdx.dev/Document","predicate":{"spdxVersion":"SPDX-2.3"}}`
	forgedStatement = `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":"` + hex64 + `"}}],"predicateType":"https://spdx.dev/Document","predicate":{"spdxVersion":"SPDX-2.2"}}`
)

func in64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// envelopeOf is an envelope with more keys.
func envelopeOf(statement, more string) string {
	return `{"payloadType":"` + payload.MediaTypeInToto + `","payload":"` + in64(statement) + `","signatures":[{"keyid":"","sig":"AAEC"}]` + more + `}`
}

func bundleOf(envelope, more string) string {
	return `{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","verificationMaterial":{"publicKey":{"hint":"x"}},"dsseEnvelope":` + envelope + more + `}`
}

func blobOf(t testing.TB, envelope string) string {
	t.Helper()
	b, err := (&payload.Blob{MediaType: payload.MediaTypeEnvelope, Payload: []byte(envelope), Annotations: map[string]string{}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParseAttestation(t *testing.T) {
	want, err := payload.ParseStatement([]byte(signedStatement))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"envelope":                         envelopeOf(signedStatement, ""),
		"bundle":                           bundleOf(envelopeOf(signedStatement, ""), ""),
		"blob":                             blobOf(t, envelopeOf(signedStatement, "")),
		"certificate beside the signature": strings.Replace(envelopeOf(signedStatement, ""), `"sig"`, `"certificate":"x","sig"`, 1),
	} {
		s, err := payload.ParseAttestation([]byte(content))
		if err != nil || s.Sum != want.Sum {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

// An attestation in which another reader may find another statement is refused, wherever that is
// hidden.
func TestAttackTwoPayloads(t *testing.T) {
	forged, forgedPayload := envelopeOf(forgedStatement, ""), `"`+in64(forgedStatement)+`"`
	envelopes := map[string]string{
		"a bundle's key in an envelope": envelopeOf(signedStatement, `,"dsseEnvelope":{"payload":`+forgedPayload+`}`),
		"its other spelling":            envelopeOf(signedStatement, `,"dsse_envelope":{"payload":`+forgedPayload+`}`),
		"a second payload":              envelopeOf(signedStatement, `,"payload":`+forgedPayload),
		"a first payload":               `{"payload":` + forgedPayload + `,` + envelopeOf(signedStatement, "")[1:],
		"another case":                  envelopeOf(signedStatement, `,"Payload":`+forgedPayload),
		"a letter that folds":           envelopeOf(signedStatement, `,"\u017fignatures":[]`),
		"an escaped key":                envelopeOf(signedStatement, `,"p\u0061yload":`+forgedPayload),
		"another type":                  envelopeOf(signedStatement, `,"payload_type":"x"`),
		"a document of its own":         envelopeOf(signedStatement, `,"spdxVersion":"SPDX-2.2"`),
		"a statement of its own":        envelopeOf(signedStatement, `,"_type":"https://in-toto.io/Statement/v1","predicate":{}`),
		"cosign's object":               envelopeOf(signedStatement, `,"Data":{}`),
		"two signatures":                strings.Replace(envelopeOf(signedStatement, ""), `[{`, `[{"sig":"AA=="},{`, 1),
		"a signature with two":          strings.Replace(envelopeOf(signedStatement, ""), `"sig"`, `"Sig":"AA==","sig"`, 1),
		"no payload":                    `{"payloadType":"` + payload.MediaTypeInToto + `","signatures":[{"sig":"AAEC"}]}`,
		"a null payload":                strings.Replace(envelopeOf("", ""), `""`, "null", 1),
		"something after it":            envelopeOf(signedStatement, "") + forged,
		"an array around it":            "[" + envelopeOf(signedStatement, "") + "]",
		"a predicate with two values":   envelopeOf(strings.Replace(signedStatement, `{"spdx`, `{"spdxVersion":"SPDX-2.2","spdx`, 1), ""),
		"two predicates":                envelopeOf(strings.Replace(signedStatement, `"predicate"`, `"predicate":{},"predicate"`, 1), ""),
		"a predicate of another case":   envelopeOf(strings.Replace(signedStatement, `"predicate"`, `"Predicate":{},"predicate"`, 1), ""),
		"not UTF-8":                     envelopeOf(strings.Replace(signedStatement, "SPDX-2.3", "SPDX-2.3\xff", 1), ""),
	}
	bundles := map[string]string{
		"the other spelling beside it": bundleOf(envelopeOf(signedStatement, ""), `,"dsse_envelope":`+forged),
		"the other spelling alone":     strings.Replace(bundleOf(envelopeOf(signedStatement, ""), ""), "dsseEnvelope", "dsse_envelope", 1),
		"another case":                 bundleOf(envelopeOf(signedStatement, ""), `,"DSSEENVELOPE":`+forged),
		"two":                          bundleOf(envelopeOf(signedStatement, ""), `,"dsseEnvelope":`+forged),
		"an envelope's keys":           bundleOf(envelopeOf(signedStatement, ""), `,"payload":`+forgedPayload),
		"a key of its material twice":  bundleOf(envelopeOf(signedStatement, ""), `,"verificationMaterial":{"publicKey":{"hint":"x","Hint":"y"}}`),
		"a null envelope":              bundleOf("null", ""),
	}
	for name, envelope := range envelopes {
		bundles["in a bundle: "+name] = bundleOf(envelope, "")
	}
	for name, content := range envelopes {
		for form, content := range map[string]string{"bare": content, "as a blob": blobOf(t, content)} {
			if s, err := payload.ParseAttestation([]byte(content)); err == nil || !errors.Is(err, payload.ErrMalformed) || s != nil {
				t.Errorf("%s, %s: %+v, %v", name, form, s, err)
			}
		}
	}
	for name, content := range bundles {
		if s, err := payload.ParseAttestation([]byte(content)); err == nil || !errors.Is(err, payload.ErrMalformed) || s != nil {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	body := strings.Replace(blobOf(t, envelopeOf(signedStatement, "")), `"payload"`, `"Payload":"`+in64(forged)+`","payload"`, 1)
	if s, err := payload.ParseAttestation([]byte(body)); err == nil {
		t.Errorf("a blob with two payloads: %+v", s)
	}
}

func TestUnambiguous(t *testing.T) {
	many := `{` + strings.Repeat(`"a":1,`, 0)
	for i := range 100 {
		many += `"k` + strings.Repeat("x", i) + `":1,`
	}
	for _, good := range []string{`{}`, `1`, `"a"`, `[{"a":1},{"a":1}]`, `{"a":{"a":{"a":"a"}},"b":["a","a",{"a":1}]}`, `{"a\"":1,"a":2}`, many + `"z":"k"}`} {
		if err := payload.Unambiguous([]byte(good), true); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{``, `{`, `{}{}`, `{"a":1,"a":2}`, `[{"b":{"a":1,"\u0061":1}}]`, `{"a":[],"a":{}}`, `{"":1,"":1}`, many + `"kxxx":1}`, "\"\xff\""} {
		if err := payload.Unambiguous([]byte(bad), false); err == nil || !errors.Is(err, payload.ErrMalformed) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	for _, folded := range []string{`{"a":1,"A":1}`, `{"a_b":1,"aB":1}`, `{"k":1,"\u212a":1}`} {
		if err, strict := payload.Unambiguous([]byte(folded), false), payload.Unambiguous([]byte(folded), true); err != nil || strict == nil {
			t.Errorf("%s: %v, %v", folded, err, strict)
		}
	}
}

// laxStatements are what readers that are not strict find in an attestation: of its keys in any
// spelling, in a bundle, an envelope, or both.
func laxStatements(content []byte) (found [][]byte) {
	var outer map[string]json.RawMessage
	if json.Unmarshal(content, &outer) != nil {
		return nil
	}
	for key, value := range outer {
		switch strings.ToLower(strings.ReplaceAll(key, "_", "")) {
		case "dsseenvelope":
			found = append(found, laxStatements(value)...)
		case "payload":
			var text string
			if json.Unmarshal(value, &text) != nil {
				continue
			}
			for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding} {
				if b, err := encoding.DecodeString(text); err == nil {
					found = append(found, b)
				}
			}
		}
	}
	return found
}

// Whatever the bytes are, they are refused, or every reader finds the one statement in them.
func FuzzParseAttestation(f *testing.F) {
	for _, more := range []string{"", `,"dsseEnvelope":{"payload":"` + in64(forgedStatement) + `"}`, `,"Payload":"` + in64(forgedStatement) + `"`, `,"payload":"` + in64(forgedStatement) + `"`, `,"x":1`} {
		f.Add([]byte(envelopeOf(signedStatement, more)))
		f.Add([]byte(bundleOf(envelopeOf(signedStatement, ""), more)))
		f.Add([]byte(bundleOf(envelopeOf(signedStatement, more), "")))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s, err := payload.ParseAttestation(content)
		if err != nil {
			if s != nil || !errors.Is(err, payload.ErrMalformed) {
				t.Fatalf("%v with %v", s, err)
			}
			return
		}
		if b, err := payload.ParseBlob(content); err == nil {
			content = b.Payload
		}
		found := laxStatements(content)
		if len(found) == 0 {
			t.Fatalf("accepted, and no other reader finds a statement: %q", content)
		}
		for _, other := range found {
			got, err := payload.ParseStatement(other)
			if err != nil || got.Sum != s.Sum || !bytes.Equal(got.Predicate, s.Predicate) {
				t.Fatalf("read as %s, and by others as %s: %q", s.Predicate, other, content)
			}
		}
	})
}

// What is called unambiguous is the same for a parser that takes the last of two keys and one that
// takes the first.
func FuzzUnambiguous(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,{"c":"d\""}]},"e":"\u0061"}`))
	f.Add([]byte(`{"a":1,"\u0061":2}`))
	f.Add([]byte(`[{"a":1},{"a":1}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if payload.Unambiguous(data, false) != nil {
			return
		}
		d := json.NewDecoder(bytes.NewReader(data))
		d.UseNumber()
		if again := repeats(t, d); again != "" {
			t.Fatalf("key %q is there twice: %q", again, data)
		}
	})
}

// repeats reads a value and returns a key that one of its objects has twice.
func repeats(t *testing.T, d *json.Decoder) (again string) {
	token, err := d.Token()
	if err != nil {
		t.Fatalf("called JSON, but %v", err)
	}
	seen := map[string]bool{}
	switch token {
	case json.Delim('{'):
		for d.More() {
			key, _ := d.Token()
			if seen[key.(string)] {
				again = key.(string)
			}
			seen[key.(string)] = true
			if in := repeats(t, d); in != "" {
				again = in
			}
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			if in := repeats(t, d); in != "" {
				again = in
			}
		}
		_, _ = d.Token()
	}
	return again
}
