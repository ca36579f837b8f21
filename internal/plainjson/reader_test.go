package plainjson_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/plainjson"
)

// value reads a value of any kind: whole numbers as int64, others not at all.
func value(r *plainjson.Reader) any {
	if r.Null() {
		return nil
	}
	before := *r
	kind, _, _ := strings.Cut(string(bytes.TrimLeft(r.Raw(), " ")), " ")
	if kind == "" {
		r.Fail()
		return nil
	}
	*r = before
	switch kind[0] {
	case '"':
		return r.String()
	case '{':
		return plainjson.Map(r, value)
	case '[':
		return plainjson.List(r, value)
	case 't', 'f':
		return r.Bool()
	}
	return r.Int()
}

// wholeNumbers has numbers of a value as value reads them.
func wholeNumbers(t *testing.T, v any) any {
	switch v := v.(type) {
	case json.Number:
		n, err := v.Int64()
		if err != nil {
			t.Fatalf("read %v", v)
		}
		return n
	case []any:
		for i := range v {
			v[i] = wholeNumbers(t, v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = wholeNumbers(t, v[k])
		}
	}
	return v
}

// FuzzReader: what is plain is valid JSON, and says what encoding/json reads.
func FuzzReader(f *testing.F) {
	for _, seed := range []string{
		``, ` `, `null`, `nul`, `true`, `tru`, ` false `, `0`, `-0`, `00`, `01`, `-`, `1.`, `1.5`, `1e3`, `1E+3`, `1e`, `.5`,
		`9223372036854775807`, `9223372036854775808`, `-9223372036854775808`, `99999999999999999999`,
		`""`, `"`, `"a`, `"\"`, `"\\"`, `"\/\b\f\n\r\t\"\\"`, `"\u00e9\u0000\uFFFF"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\u12"`, `"\u12g4"`, `"\x"`, "\"\x01\"", "\"\x7f\xc3\xa9\"", "\"\xff\"", "\"\xc3\\n\xa9\"",
		`[]`, `[ ]`, `[1,]`, `[,1]`, `[1 2]`, `[1}`, `[1,2 , "a" ]`, `[`, `[1`, `[[[]]]`,
		`{}`, `{ }`, `{"a":1}`, `{"a" : 1 , "b":{"c":[]}}`, `{"a":1,}`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,"a":2}`, `{"\u0061":1}`, `{"a":1]`, `{}x`,
		strings.Repeat("[", 99) + strings.Repeat("]", 99), strings.Repeat("[", 200) + strings.Repeat("]", 200),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		skip := plainjson.New(data)
		if skip.Skip(); skip.Done() && !json.Valid(data) {
			t.Fatal("not valid, and plain")
		}
		r := plainjson.New(data)
		got := value(r)
		if !r.Done() {
			return
		}
		if !skip.Done() {
			t.Error("read, but not skipped")
		}
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		var want any
		if err := dec.Decode(&want); err != nil {
			t.Fatalf("read %v: %v", got, err)
		}
		if want = wholeNumbers(t, want); !reflect.DeepEqual(got, want) {
			t.Errorf("read %#v, want %#v", got, want)
		}
	})
}

// What is written every day is plain.
func TestPlain(t *testing.T) {
	for _, document := range []string{
		`{"a":[1,-2,0,"é\n\u00e9",true,false,null,{}],"b":{"c":[]}}`, " [ ] ", `"<\u003c&>"`, `-1.5`,
	} {
		r := plainjson.New([]byte(document))
		if r.Skip(); !r.Done() {
			t.Errorf("%s is not plain", document)
		}
	}
}

// A known key that comes twice, or in another case, is not plain; an unknown one may be anything.
func TestFields(t *testing.T) {
	known := plainjson.Fields{"a", "kind"}
	for document, plain := range map[string]bool{
		`{"a":1,"kind":2,"b":3,"b":4}`: true,
		`{"a":1,"a":2}`:                false,
		`{"A":1}`:                      false,
		`{"\u212aind":1}`:              false,
		"{\"\u212aind\":1}":            false,
		`{"a":1`:                       false,
	} {
		r := plainjson.New([]byte(document))
		for range known.Of(r) {
			r.Skip()
		}
		if r.Done() != plain {
			t.Errorf("%s: %v", document, r.Done())
		}
	}
}
