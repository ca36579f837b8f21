package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Bounds on what Load reads.
const (
	MaxFileSize  = 1 << 20 // bytes of one policy file or of a file that one names
	maxFiles     = 256
	maxDocuments = 1024
	maxScopes    = 256 // per document, OpenShift's limit
)

// Load reads the policy documents of a file, or of every *.yaml, *.yml and *.json file directly in
// a folder. If any document is wrong, there is no Set, and the error joins an *Error for every such
// document.
func Load(path string) (*Set, error) {
	set, _, err := loadSet(path)
	return set, err
}

// loadSet is Load, and also returns the contents of the files that could be read.
func loadSet(path string) (*Set, trusted.Contents, error) {
	policies, contents, err := load(path, Parse)
	if err != nil {
		return nil, contents, err
	}
	set, err := NewSet(policies)
	if err == nil {
		set.contents = contents
	}
	return set, contents, err
}

// LoadObjects is Load for documents that will be objects of the API. They may include
// ImagePolicies.
func LoadObjects(path string) ([]*Policy, error) {
	policies, _, err := load(path, ParseObjects)
	return policies, err
}

func load(path string, parse func(data []byte, file string) ([]*Policy, error)) ([]*Policy, trusted.Contents, error) {
	files, err := policyFiles(path)
	if err != nil {
		return nil, nil, err
	}
	contents := trusted.Contents{}
	var policies []*Policy
	var errs []error
	for _, file := range files {
		data, err := readBounded(file)
		if err != nil {
			errs = append(errs, &Error{File: file, Err: err})
			continue
		}
		contents[file] = data
		more, err := parse(data, file)
		policies = append(policies, more...)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, contents, err
	}
	if len(policies) == 0 {
		return nil, contents, &Error{File: path, Err: errors.New("holds no ClusterImagePolicy document")}
	}
	return policies, contents, nil
}

func policyFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, &Error{File: path, Err: bare(err)}
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	if err := trusted.CheckDir(path); err != nil {
		return nil, &Error{File: path, Err: bare(err)}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, &Error{File: path, Err: bare(err)}
	}
	var files []string
	for _, e := range entries {
		// Files that begin with a dot belong to editors and to Kubernetes.
		if e.IsDir() || e.Name()[0] == '.' || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(e.Name())) {
			continue
		}
		files = append(files, filepath.Join(path, e.Name()))
	}
	if len(files) > maxFiles {
		return nil, &Error{File: path, Err: fmt.Errorf("holds %d policy files, at most %d are read", len(files), maxFiles)}
	}
	return files, nil
}

// readBounded reads a regular file of at most MaxFileSize bytes.
func readBounded(path string) ([]byte, error) {
	data, err := trusted.ReadFile(path, MaxFileSize)
	if err != nil {
		return nil, bare(err)
	}
	return data, nil
}

// bare removes the path from a file error, because Error has it already.
func bare(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}

// Parse reads the YAML documents in data. file is for messages; …Path fields are relative to its
// folder. Parse returns the valid documents even if others are invalid.
func Parse(data []byte, file string) ([]*Policy, error) { return parse(data, file, parseDocument) }

// ParseObjects is Parse for documents that will be objects of the API. They may include
// ImagePolicies.
func ParseObjects(data []byte, file string) ([]*Policy, error) {
	return parse(data, file, parseObject)
}

func parse(data []byte, file string, parse func(node *yaml.Node, file string) (*Policy, error)) ([]*Policy, error) {
	var policies []*Policy
	var errs []error
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var root yaml.Node
		err := decodeNode(dec, &root)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && n > maxDocuments {
			err = fmt.Errorf("more than %d documents in one file", maxDocuments)
		}
		if err != nil { // the decoder cannot continue after a syntax error
			errs = append(errs, &Error{File: file, Document: n, Err: err})
			break
		}
		if len(root.Content) == 0 || root.Content[0].Tag == "!!null" {
			continue // nothing between two "---"
		}
		p, err := parse(root.Content[0], file)
		if err != nil {
			errs = append(errs, at(err, file, n))
			continue
		}
		p.File, p.Document = file, n
		policies = append(policies, p)
	}
	return policies, errors.Join(errs...)
}

// decodeNode reads one document. yaml.v3 has panicked on hostile input before; decodeNode turns
// that into an error.
func decodeNode(dec *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the YAML parser gave up: %v", r)
		}
	}()
	return dec.Decode(into)
}

func at(err error, file string, document int) error {
	var e *Error
	if !errors.As(err, &e) {
		return &Error{File: file, Document: document, Err: err}
	}
	e.File, e.Document = file, document
	return e
}
