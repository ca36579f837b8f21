package wholelist

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	goyaml "go.yaml.in/yaml/v2"
	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// parts are the parts of a page.
type parts struct {
	meta  metav1.ListMeta
	head  []byte // text before the items; it stays valid when the next page is read
	key   string // of the items: "items", or "rows" of a table
	null  bool   // the page has null instead of items
	items []byte // the items without the text around them
}

// complete returns the metadata of the whole list, given its first page.
func (p *parts) complete() *metav1.ListMeta {
	meta := p.meta
	meta.Continue, meta.RemainingItemCount = "", nil
	return &meta
}

// frame is the text around the items of a list. empty replaces open and end if there are no items.
type frame struct{ before, open, end, empty, after []byte }

// form converts pages to a list.
type form struct {
	split func(body []byte) (*parts, error)
	// around returns the frame of a list, given its first page and the size of all its items in bytes.
	around func(first *parts, size int64) (*frame, error)
	// items converts the items of a page. begun is true if other items precede them.
	items func(items []byte, begun bool) ([]byte, error)
	// measured is true if around needs the size.
	measured bool
}

var (
	plain      = form{split: splitJSON, around: aroundPlain, items: plainItems}
	indented   = form{split: splitJSON, around: aroundIndented, items: indentedItems}
	inYAML     = form{split: splitJSON, around: aroundYAML, items: yamlItems}
	inProtobuf = form{split: splitProtobuf, around: aroundProtobuf, items: func(items []byte, _ bool) ([]byte, error) { return items, nil }, measured: true}
)

var errNoList = errors.New("the answer does not have the form of the API server's lists")

// splitJSON reads a page that the API server has written on one line. Its items come last. Quotes
// within a text are escaped, so no text looks like the key of the items.
func splitJSON(body []byte) (*parts, error) {
	p, at := &parts{}, -1
	for _, key := range []string{"items", "rows"} {
		if i := bytes.Index(body, []byte(`,"`+key+`":`)); i >= 0 && (at < 0 || i < at) {
			p.key, at = key, i
		}
	}
	if at < 0 {
		return nil, errNoList
	}
	p.head = bytes.Clone(body[:at])
	rest, ok := bytes.CutSuffix(bytes.TrimSuffix(body[at+len(`,"":`)+len(p.key):], []byte("\n")), []byte("}"))
	if !ok || json.Unmarshal(append(bytes.Clone(p.head), '}'), &struct {
		Meta *metav1.ListMeta `json:"metadata"`
	}{&p.meta}) != nil {
		return nil, errNoList
	}
	if string(rest) == "null" {
		p.null = true
		return p, nil
	}
	if len(rest) < 2 || rest[0] != '[' || rest[len(rest)-1] != ']' {
		return nil, errNoList
	}
	p.items = rest[1 : len(rest)-1]
	return p, nil
}

// headOf returns the beginning of a list, given its first page.
func headOf(p *parts) ([]byte, error) {
	if p.meta.Continue == "" {
		return p.head, nil
	}
	before, after, ok := bytes.Cut(p.head, []byte(`"metadata":`))
	if !ok {
		return nil, errNoList
	}
	var old json.RawMessage
	rest := json.NewDecoder(bytes.NewReader(after))
	if err := rest.Decode(&old); err != nil {
		return nil, err
	}
	meta, err := json.Marshal(p.complete())
	if err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{before, []byte(`"metadata":`), meta, after[rest.InputOffset():]}, nil), nil
}

func aroundPlain(p *parts, _ int64) (*frame, error) {
	head, err := headOf(p)
	key := `,"` + p.key + `":`
	f := &frame{before: head, open: []byte(key + "["), end: []byte("]"), empty: []byte(key + "[]"), after: []byte("}\n")}
	if p.null {
		f.empty = []byte(key + "null")
	}
	return f, err
}

func plainItems(items []byte, begun bool) ([]byte, error) {
	if begun {
		items = append([]byte(","), items...)
	}
	return items, nil
}

func aroundIndented(p *parts, _ int64) (*frame, error) {
	head, err := headOf(p)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, append(head, '}'), "", "  "); err != nil {
		return nil, err
	}
	key := ",\n  \"" + p.key + "\": "
	f := &frame{before: bytes.TrimSuffix(out.Bytes(), []byte("\n}")), open: []byte(key + "["), end: []byte("\n  ]"), empty: []byte(key + "[]"), after: []byte("\n}")}
	if p.null {
		f.empty = []byte(key + "null")
	}
	return f, nil
}

// each calls use with each of the items of a page.
func each(items []byte, use func(item json.RawMessage) error) error {
	all := json.NewDecoder(bytes.NewReader(bytes.Join([][]byte{{'['}, items, {']'}}, nil)))
	if _, err := all.Token(); err != nil {
		return err
	}
	for all.More() {
		var item json.RawMessage
		if err := all.Decode(&item); err != nil {
			return err
		}
		if err := use(item); err != nil {
			return err
		}
	}
	return nil
}

func indentedItems(items []byte, begun bool) ([]byte, error) {
	var out bytes.Buffer
	err := each(items, func(item json.RawMessage) error {
		if begun {
			out.WriteByte(',')
		}
		begun = true
		out.WriteString("\n    ")
		return json.Indent(&out, item, "    ", "  ")
	})
	return out.Bytes(), err
}

// aroundYAML finds the place of the items among the keys, which are sorted in YAML. Only keys of
// the list itself begin a line.
func aroundYAML(p *parts, _ int64) (*frame, error) {
	head, err := headOf(p)
	if err != nil {
		return nil, err
	}
	none := "[]"
	if p.null {
		none = "null"
	}
	text, err := yaml.JSONToYAML(append(head, `,"`+p.key+`":`+none+"}"...))
	if err != nil {
		return nil, err
	}
	empty := []byte("\n" + p.key + ": " + none + "\n")
	before, after, ok := bytes.Cut(text, empty)
	if !ok {
		return nil, errNoList
	}
	return &frame{before: before, open: []byte("\n" + p.key + ":\n"), empty: empty, after: after}, nil
}

func yamlItems(items []byte, _ bool) ([]byte, error) {
	var out bytes.Buffer
	err := each(items, func(item json.RawMessage) error {
		text, err := yamlItem(item)
		out.Write(text)
		return err
	})
	return out.Bytes(), err
}

// yamlItem writes an item as yaml.JSONToYAML does, but reads it with the parser of JSON. JSONToYAML
// uses the parser of YAML, which would double the time.
func yamlItem(item json.RawMessage) ([]byte, error) {
	from := json.NewDecoder(bytes.NewReader(item))
	from.UseNumber()
	var object any
	if err := from.Decode(&object); err != nil {
		return nil, err
	}
	return goyaml.Marshal([]any{yamlNumbers(object)})
}

// yamlNumbers replaces the numbers in an object with the values that YAML's parser would return.
func yamlNumbers(object any) any {
	switch object := object.(type) {
	case map[string]any:
		for key, value := range object {
			object[key] = yamlNumbers(value)
		}
	case []any:
		for i, value := range object {
			object[i] = yamlNumbers(value)
		}
	case json.Number:
		if n, err := strconv.ParseInt(object.String(), 10, 64); err == nil {
			return n
		}
		if n, err := strconv.ParseUint(object.String(), 10, 64); err == nil {
			return n
		}
		if n, err := object.Float64(); err == nil {
			return n
		}
		return object.String()
	}
	return object
}

// protobufPrefix begins each message of Kubernetes in protobuf
// (k8s.io/apimachinery/pkg/runtime/serializer/protobuf).
var protobufPrefix = []byte("k8s\x00")

// The fields of a list in protobuf.
const (
	metaField  protowire.Number = 1
	itemsField protowire.Number = 2
)

// splitProtobuf reads a page of a list whose first field is the metadata.
func splitProtobuf(body []byte) (*parts, error) {
	rest, ok := bytes.CutPrefix(body, protobufPrefix)
	message := runtime.Unknown{}
	if !ok || message.Unmarshal(rest) != nil || len(message.Raw) == 0 {
		return nil, errNoList
	}
	number, kind, n := protowire.ConsumeTag(message.Raw)
	if n < 0 || number != metaField || kind != protowire.BytesType {
		return nil, errNoList
	}
	meta, m := protowire.ConsumeBytes(message.Raw[n:])
	p := &parts{}
	if m < 0 || p.meta.Unmarshal(meta) != nil {
		return nil, errNoList
	}
	p.items = message.Raw[n+m:]
	for rest := p.items; len(rest) > 0; {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 || number != itemsField {
			return nil, errNoList
		}
		rest = rest[n:]
	}
	message.Raw = nil
	head, err := message.Marshal() // the kind of the list, and how it is encoded
	p.head = head
	return p, err
}

func aroundProtobuf(p *parts, size int64) (*frame, error) {
	message := runtime.Unknown{}
	if err := message.Unmarshal(p.head); err != nil {
		return nil, err
	}
	meta, err := p.complete().Marshal()
	if err != nil {
		return nil, err
	}
	list := protowire.AppendBytes(protowire.AppendTag(nil, metaField, protowire.BytesType), meta)
	var out bytes.Buffer
	out.Write(protobufPrefix)
	length, at := len(list)+int(size), 0
	_, err = message.MarshalToWriter(&out, length, func(w io.Writer) (int, error) {
		_, err := w.Write(list)
		at = out.Len()
		return length, err
	})
	return &frame{before: out.Bytes()[:at], after: out.Bytes()[at:]}, err
}
