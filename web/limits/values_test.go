package limits

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const protobuf = "application/vnd.kubernetes.protobuf"

// counted reads a body and returns how many values it has.
func counted(t *testing.T, media, body string, most int) (int, error) {
	t.Helper()
	v := newValues(media, io.NopCloser(strings.NewReader(body)), most)
	read, err := io.ReadAll(v)
	return v.count(read), err
}

// TestValuesOfABody: a decoder never makes more values than were counted. Text counts as one value
// if it can be distinguished from other values.
func TestValuesOfABody(t *testing.T) {
	t.Parallel()
	message := "\x12\x04\x12\x00\x12\x00" // two empty messages in one
	for name, c := range map[string]struct {
		media, body string
		least, most int
	}{
		"an object":                        {"application/json", `{"a":1,"b":[2,3,{}]}`, 5, 6},
		"text":                             {"application/json", `{"a":"{[,,,]}\",,,\\","b":"\\\",,"}`, 2, 2},
		"empty elements":                   {"application/json", "[" + strings.Repeat("{},", 999) + "{}]", 1000, 2001},
		"with a parameter":                 {"Application/YAML; charset=utf-8", strings.Repeat("- {}\n", 1000), 1000, 2001},
		"keys of YAML":                     {"application/yaml", strings.Repeat("k: 0\n", 1000), 1000, 1001},
		"a key at the end":                 {"application/yaml", "k:", 1, 2},
		"nested sequences":                 {"application/yaml", strings.Repeat("- ", 1000), 1000, 1001},
		"complex keys":                     {"application/yaml", strings.Repeat("? a\n: b\n", 1000), 2000, 2001},
		"JSON as YAML":                     {"application/apply-patch+yaml", "\n" + `{"a":"` + strings.Repeat("{,:", 1000) + `"}`, 1, 1},
		"what a quote hides from JSON":     {"application/yaml", `{a: x", ` + strings.Repeat("k: 0, ", 1000) + `b: y"}`, 1000, 2100},
		"an alias":                         {"application/yaml", "a: &a [1]\nb: [*a,*a]\n", 2 * ofAlias, 2*ofAlias + 10},
		"a verb that is a star":            {"application/yaml", "verbs: ['*', \"*\"]\n", 2, 5},
		"a message":                        {protobuf, "k8s\x00" + message, 3, 3},
		"messages":                         {protobuf, "k8s\x00" + strings.Repeat("\x12\x00", 1000), 1000, 1000},
		"text that is no message":          {protobuf, "k8s\x00\x0a\x05hello", 1, 1},
		"messages below all that there is": {protobuf, nested(100, strings.Repeat("\x12\x00", 20)), 20, 200},
	} {
		got, err := counted(t, c.media, c.body, 1<<20)
		if got < c.least || got > c.most || err != nil {
			t.Errorf("%s: %d values, want %d to %d; %v", name, got, c.least, c.most, err)
		}
	}
}

// nested puts a message into depth other messages.
func nested(depth int, message string) string {
	for range depth {
		n := len(message)
		message = "\x12" + string([]byte{byte(n&0x7f | 0x80), byte(n >> 7)}) + message
	}
	return message
}

// TestBodyWithManyValuesIsNotRead: a body with too many values is not read to its end.
func TestBodyWithManyValuesIsNotRead(t *testing.T) {
	t.Parallel()
	for _, media := range []string{"application/json", "application/yaml", ""} {
		rest := strings.NewReader(strings.Repeat("[{},", 1<<20))
		if _, err := io.Copy(io.Discard, newValues(media, io.NopCloser(rest), 1000)); err != errManyValues {
			t.Errorf("%q: %v", media, err)
		}
		if rest.Len() < 3<<20 {
			t.Errorf("%q: only %d bytes were left unread", media, rest.Len())
		}
	}
}

// TestTextOfValuesIsPassedOver: plain finds the first quote or backslash at any position, like
// strings.IndexAny.
func TestTextOfValuesIsPassedOver(t *testing.T) {
	t.Parallel()
	for _, sign := range []string{`"`, `\`, "#", "]", "\xa2", ""} {
		for at := range 20 {
			for after := range 20 {
				text := strings.Repeat("a", at) + sign + strings.Repeat("!", after)
				want := strings.IndexAny(text, `"\`)
				if want < 0 {
					want = len(text)
				}
				if got := plain([]byte(text)); got != want {
					t.Fatalf("%q: %d, want %d", text, got, want)
				}
			}
		}
	}
}

// FuzzValues compares the count with the values that decoders make of a body.
func FuzzValues(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"\\\"",{}]}`, "a: b\nc: [d, {e: f}]\n", "? a\n- b\n", "- - - -", `{a: x", b: c}`, "a: &a [1]\nb: *a\n", "a:\tb", "{a:b, \"c\":d}", "--- a\n...", "!!set {a, b}", `["01234567\"0123456\\", "#[",{}]`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		for media, decode := range map[string]func([]byte, any) error{
			"application/json": json.Unmarshal,
			"application/yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
		} {
			var v any
			if decode([]byte(body), &v) != nil {
				continue
			}
			got, _ := counted(t, media, body, 1<<20)
			if has := size(v); has > got+1 {
				t.Errorf("%s: %d values, and %d were counted in %q", media, has, got, body)
			}
		}
	})
}

// size is the number of fields and elements below a value.
func size(v any) (n int) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			n += 1 + size(e)
		}
	case []any:
		for _, e := range v {
			n += 1 + size(e)
		}
	}
	return n
}
