package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// tarFS are the files of a tar file, which are read in place.
type tarFS struct {
	file  *os.File
	files map[string]section
	links map[string]string
}

type section struct{ offset, size int64 }

// maxLinks bounds how many links lead to a file: docker save once wrote a link for a layer that it
// had written before.
const maxLinks = 8

func openTar(name string) (fs.FS, func() error, error) {
	// else a named pipe would have us wait for its writer
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	t, err := readTar(f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return t, f.Close, nil
}

// readTar notes where each file begins.
func readTar(f *os.File) (*tarFS, error) {
	if info, err := f.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a file; oci: and dir: are for folders")
	}
	begin := make([]byte, 4)
	if n, err := f.ReadAt(begin, 0); err != nil && err != io.EOF {
		return nil, err
	} else if packed := compression(begin[:n]); packed != "" {
		return nil, fmt.Errorf("it is compressed with %s: unpack it first", packed)
	}
	t := &tarFS{file: f, files: map[string]section{}, links: map[string]string{}}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("it is not a tar file: %w", err)
		}
		if len(t.files)+len(t.links) == maxEntries {
			return nil, fmt.Errorf("it has more than %d files", maxEntries)
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "/"))
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader has read the header and nothing of what follows.
			at, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			t.files[name] = section{at, h.Size}
		case tar.TypeSymlink:
			t.links[name] = path.Join(path.Dir(name), h.Linkname)
		case tar.TypeLink:
			t.links[name] = path.Clean(h.Linkname)
		}
	}
}

// Open implements fs.FS.
func (t *tarFS) Open(name string) (fs.File, error) {
	at := name
	for range maxLinks {
		if s, ok := t.files[at]; ok {
			return &tarFile{io.NewSectionReader(t.file, s.offset, s.size), path.Base(name)}, nil
		}
		at = t.links[at]
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// tarFile is one file of a tar file, and its fs.FileInfo.
type tarFile struct {
	*io.SectionReader
	name string
}

func (f *tarFile) Stat() (fs.FileInfo, error) { return fileInfo{f}, nil }
func (f *tarFile) Close() error               { return nil }

type fileInfo struct{ f *tarFile }

func (i fileInfo) Name() string       { return i.f.name }
func (i fileInfo) Size() int64        { return i.f.SectionReader.Size() }
func (i fileInfo) Mode() fs.FileMode  { return 0o444 }
func (i fileInfo) ModTime() time.Time { return time.Time{} }
func (i fileInfo) IsDir() bool        { return false }
func (i fileInfo) Sys() any           { return nil }
