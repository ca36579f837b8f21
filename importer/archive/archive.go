// Package archive reads images from files, by the names that containers/image has for them
// (containers-transports(5)):
//
//   - oci:DIR[:NAME] and oci-archive:FILE[:NAME], an OCI image layout and one in a tar file;
//   - docker-archive:FILE[:NAME], what docker save writes;
//   - dir:DIR, what skopeo copy writes.
//
// A [Source] answers as the registry of its images would, so they are imported like all others:
// each byte is checked against its digest, and signatures that were copied along are found.
// Manifests are the files' own bytes. Nothing is unpacked to disk. go.podman.io/image's transports
// are not used: they unpack archives into temporary files, and do not use the manifests that docker
// save writes today.
package archive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// opened are the transports that this package reads.
var opened = map[string]func(*Source, string) error{
	"oci":            func(s *Source, path string) error { return s.open(path, openDir, (*Source).readLayout) },
	"oci-archive":    func(s *Source, path string) error { return s.open(path, openTar, (*Source).readLayout) },
	"docker-archive": func(s *Source, path string) error { return s.open(path, openTar, (*Source).readDocker) },
	"dir":            func(s *Source, path string) error { return s.open(path, openDir, (*Source).readDir) },
}

// others are containers/image's other transports, and what to do instead.
var others = map[string]string{
	"docker-daemon":      "docker save -o image.tar NAME, and tidewaiter import docker-archive:image.tar",
	"containers-storage": "podman save --format oci-archive -o image.tar NAME, and tidewaiter import oci-archive:image.tar",
	"ostree":             "skopeo copy ostree:… oci:DIR, and tidewaiter import oci:DIR",
	"sif":                "skopeo copy sif:… oci:DIR, and tidewaiter import oci:DIR",
	"tarball":            "skopeo copy tarball:… oci:DIR, and tidewaiter import oci:DIR",
	"atomic":             "name the image as docker://HOST/NAME:TAG",
}

// Is reports whether s begins with a transport of containers/image other than docker://.
func Is(s string) bool {
	transport, _, ok := strings.Cut(s, ":")
	return ok && (opened[transport] != nil || others[transport] != "")
}

// UnsupportedError is the error for a transport that is not supported.
type UnsupportedError struct {
	Transport string
	// Instead is the command to type.
	Instead string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: is not supported; docker://, oci:, oci-archive:, docker-archive: and dir: are", e.Transport)
}

// Image is one image of a Source.
type Image struct {
	// Reference is the name under which the Source returns the image.
	Reference reference.Reference
	// Made is set when the file had no manifest, and one was made.
	Made bool

	name   string // in the file; may be empty
	digest string
}

// Source is the file or folder that a name with a transport leads to. It is an http.RoundTripper
// that answers as the registry of the images would.
type Source struct {
	name     string
	names    map[string]string // name in the file → digest
	fsys     fs.FS
	close    func() error
	images   []Image
	types    map[string]string // digest → media type, if the file has it
	made     map[string][]byte // digest → manifest, if it was made
	blobs    map[string]string // digest → path, if it is not as in a layout
	manifest string            // path of manifests, with %s for the hex digits

	subjects sync.Once
	// digest → manifests of a layout whose subject it is, once subjects is done
	about map[string][]v1.Descriptor
}

const (
	maxNames   = 10_000  // images of one file
	maxEntries = 100_000 // files in a tar file
)

// Open opens a source. as is the name that a single image is given. If it is zero, the image has
// the name in the file if that begins with a registry's host, and else one on localhost, as podman
// load does.
//
// Errors name the file, and are an *[UnsupportedError] for a transport that is not read.
func Open(name string, as reference.Reference) (*Source, error) {
	transport, rest, _ := strings.Cut(name, ":")
	if instead := others[transport]; instead != "" {
		return nil, &UnsupportedError{transport, instead}
	}
	open := opened[transport]
	if open == nil {
		return nil, &UnsupportedError{transport, ""}
	}
	path, wanted := rest, ""
	if transport != "dir" { // the path may have colons
		path, wanted, _ = strings.Cut(rest, ":")
	}
	if path == "" {
		return nil, fmt.Errorf("%s does not name a file", name)
	}
	s := &Source{name: name, names: map[string]string{}, types: map[string]string{}, made: map[string][]byte{}, blobs: map[string]string{}}
	err := open(s, path)
	if err == nil {
		err = s.choose(path, wanted, as)
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// String is the name that was opened.
func (s *Source) String() string { return s.name }

// Close closes the file.
func (s *Source) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

// Images returns the images of the source, or the one that was named.
func (s *Source) Images() []Image { return s.images }

func (s *Source) open(path string, open func(string) (fs.FS, func() error, error), read func(*Source) error) (err error) {
	if s.fsys, s.close, err = open(path); err != nil {
		return err
	}
	return read(s)
}

func openDir(path string) (fs.FS, func() error, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, err
	}
	return folder{root}, root.Close, nil
}

// folder is a folder whose links lead to nothing outside. It opens files and folders, and never
// waits for the writer of a named pipe.
type folder struct{ root *os.Root }

// Open implements fs.FS.
func (d folder) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: name, Err: errors.New("not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// choose keeps the image that is wanted, or everything that can be an image, and sets the
// references.
func (s *Source) choose(path, wanted string, as reference.Reference) error {
	if len(s.images) > maxNames {
		return fmt.Errorf("it has more than %d images", maxNames)
	}
	var names []string
	all := s.images
	s.images = nil
	for _, i := range all {
		i.Reference = named(i, path)
		names = append(names, i.name)
		switch {
		case wanted == "":
		case i.name == wanted || i.Reference.String() == wanted || i.digest == wanted:
		default:
			if ref, err := reference.Parse(wanted); err != nil || ref.Pulled() != i.Reference {
				continue
			}
		}
		s.images = append(s.images, i)
	}
	slices.Sort(names)
	switch {
	case len(s.images) == 0 && wanted != "":
		return fmt.Errorf("there is no image %q; there are %.300q", wanted, names)
	case len(s.images) == 0:
		return errors.New("there is no image")
	case as == reference.Reference{}:
	case len(s.images) > 1:
		return fmt.Errorf("there are %d images but only one name; choose one of %.300q", len(s.images), names)
	default:
		s.images[0].Reference = as
		if as.Tag == "" {
			s.images[0].Reference = as.WithDigest(s.images[0].digest)
		}
	}
	return nil
}

// named returns the reference of an image: the name in the file if that names a registry, or
// localhost and the name of the file.
func named(i Image, path string) reference.Reference {
	host, _, _ := strings.Cut(i.name, "/")
	if _, err := reference.ParseHost(host); err == nil && host != i.name || i.Made {
		// docker save leaves docker.io/library out
		if ref, err := reference.Parse(i.name); err == nil {
			return ref.Pulled()
		}
	}
	base := filepath.Base(filepath.Clean(path))
	if base, _, _ = strings.Cut(base, ".tar"); base == "" {
		base = "image"
	}
	repository, err := reference.ParseRepository("localhost/" + strings.ToLower(base))
	if err != nil {
		repository = reference.Reference{Host: "localhost", Repository: "image"}
	}
	if reference.IsTag(i.name) {
		return repository.WithTag(i.name)
	}
	return repository.WithDigest(i.digest)
}

// read reads a small file.
func (s *Source) read(path string) ([]byte, error) {
	f, err := s.fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, manifest.MaxConfigSize+1))
	if err == nil && len(raw) > manifest.MaxConfigSize {
		err = fmt.Errorf("%s has more than %d bytes", path, manifest.MaxConfigSize)
	}
	return raw, err
}

// add adds a possible image.
func (s *Source) add(i Image) {
	if i.name != "" {
		s.names[i.name] = i.digest
	}
	if _, about := importer.SubjectOfTag(i.name); !about {
		s.images = append(s.images, i)
	}
}
