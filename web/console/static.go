package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

//go:embed static
var staticFiles embed.FS

// static serves the files that pages load. The address of a file contains a part of its hash, so
// browsers may cache it for ever.
type static struct {
	byPath map[string]staticFile
	paths  map[string]string // by name
}

// kinds are the media types of files by their extension; a licence has none.
var kinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml", "": "text/plain; charset=utf-8", ".sse": "text/plain; charset=utf-8",
}

type staticFile struct {
	kind        string
	plain, gzip []byte
}

func newStatic() *static {
	s := &static{map[string]staticFile{}, map[string]string{}}
	err := fs.WalkDir(staticFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := staticFiles.ReadFile(name)
		if err != nil {
			return err
		}
		var zipped bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&zipped, gzip.BestCompression) // a level that exists
		_, _ = zip.Write(b)                                          // a buffer takes everything
		_ = zip.Close()
		sum := sha256.Sum256(b)
		name = strings.TrimPrefix(name, "static/")
		s.paths[name] = Root + "static/" + hex.EncodeToString(sum[:6]) + "/" + name
		s.byPath[s.paths[name]] = staticFile{kinds[path.Ext(name)], b, zipped.Bytes()}
		return nil
	})
	if err != nil {
		panic(err) // the program holds the files
	}
	return s
}

// path is the address of a file.
func (s *static) path(name string) string { return s.paths[name] }

// ServeHTTP implements http.Handler.
func (s *static) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, ok := s.byPath[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := f.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = f.gzip
	}
	_, _ = w.Write(body) // an error means that the browser is gone
}
