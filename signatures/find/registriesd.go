package find

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// lookasides has the settings of registries.d files: where the signatures of images are stored.
type lookasides struct {
	fallback string            // of default-docker, or the folder for images that no file mentions
	byScope  map[string]string // base URL by scope
	// Whether sigstore signatures are read from registries, by scope; "" is default-docker.
	attached map[string]bool
}

const (
	maxRegistriesFiles = 256
	maxRegistriesSize  = 1 << 20
)

// defaultRegistriesDirs are the folders that containers/image reads (containers-registries.d(5)),
// most specific first: the user's own, the administrator's, the vendor's. For the latter two, the
// folder for rootful or rootless use comes before the one for both.
func defaultRegistriesDirs() []string {
	return registriesDirs(os.Getuid())
}

func registriesDirs(uid int) []string {
	var dirs []string
	if config, ok := os.LookupEnv("XDG_CONFIG_HOME"); ok {
		dirs = append(dirs, filepath.Join(config, "containers/registries.d"))
	} else if home, err := os.UserHomeDir(); err == nil {
		dirs = append(dirs, filepath.Join(home, ".config/containers/registries.d"))
	}
	for _, dir := range []string{"/etc/containers", "/usr/share/containers"} {
		if uid == 0 {
			dirs = append(dirs, filepath.Join(dir, "registries.rootful.d"))
		} else if uid > 0 {
			dirs = append(dirs, filepath.Join(dir, "registries.rootless.d", strconv.Itoa(uid)), filepath.Join(dir, "registries.rootless.d"))
		}
		dirs = append(dirs, filepath.Join(dir, "registries.d"))
	}
	return dirs
}

// defaultStorage is the folder of signatures that containers/image uses for images that no
// registries.d file mentions; "" if the user has no home.
func defaultStorage() string {
	if os.Geteuid() == 0 {
		return "/var/lib/containers/sigstore"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".local/share/containers/sigstore")
}

// namespace is an entry of a registries.d file (containers-registries.d(5)). Keys for writing are
// ignored.
type namespace struct {
	Lookaside string `json:"lookaside"`
	Sigstore  string `json:"sigstore"` // the older name
	// UseSigstoreAttachments reports whether sigstore signatures are read from the registry.
	UseSigstoreAttachments *bool `json:"use-sigstore-attachments"`
}

func newLookasides() *lookasides {
	return &lookasides{byScope: map[string]string{}, attached: map[string]bool{}}
}

// loadLookasides reads the *.yaml files of the folders. If several folders have a file of the same
// name, it reads the first folder's. storage is for images that no file mentions.
func loadLookasides(dirs []string, storage string) (*lookasides, error) {
	l := newLookasides()
	files := map[string]string{}
	for _, dir := range slices.Backward(dirs) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && strings.HasSuffix(e.Name(), ".yaml") {
				files[e.Name()] = filepath.Join(dir, e.Name())
			}
		}
		if len(files) > maxRegistriesFiles {
			return nil, fmt.Errorf("%s: %d files, at most %d are read", dir, len(files), maxRegistriesFiles)
		}
	}
	origin := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := l.load(files[name], origin); err != nil {
			return nil, fmt.Errorf("%s: %w", files[name], err)
		}
	}
	if l.fallback == "" && storage != "" {
		l.fallback = (&url.URL{Scheme: "file", Path: storage}).String()
	}
	return l, nil
}

func (l *lookasides) load(file string, origin map[string]string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRegistriesSize+1))
	if err != nil {
		return err
	}
	if len(data) > maxRegistriesSize {
		return fmt.Errorf("larger than %d bytes", maxRegistriesSize)
	}
	return l.parse(data, file, origin)
}

// parse adds the settings of a file. origin has the file of each entry, because only one file may
// have it.
func (l *lookasides) parse(data []byte, file string, origin map[string]string) error {
	var content struct {
		Default *namespace           `json:"default-docker"`
		Docker  map[string]namespace `json:"docker"`
	}
	if err := yaml.Unmarshal(data, &content); err != nil {
		return err
	}
	claim := func(key, scope string, n namespace) (string, error) {
		if other, ok := origin[key]; ok {
			return "", fmt.Errorf("%s is configured in %s already", key, other)
		}
		origin[key] = file
		if _, ok := l.attached[scope]; n.UseSigstoreAttachments != nil && (!ok || key == scope) {
			l.attached[scope] = *n.UseSigstoreAttachments
		}
		base := cmp.Or(n.Lookaside, n.Sigstore)
		if base == "" {
			return "", nil
		}
		u, err := url.Parse(base)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file" {
			return "", fmt.Errorf("%s: lookaside %q is not an http, https or file URL", key, base)
		}
		return base, nil
	}
	var err error
	if content.Default != nil {
		if l.fallback, err = claim("default-docker", "", *content.Default); err != nil {
			return err
		}
	}
	for _, written := range slices.Sorted(maps.Keys(content.Docker)) {
		scope := policy.CanonicalScope(written)
		base, err := claim(written, scope, content.Docker[written])
		if err != nil {
			return err
		}
		// containers/image treats a host with port 443 as another host; here, both are the same.
		if base != "" && (l.byScope[scope] == "" || written == scope) {
			l.byScope[scope] = base
		}
	}
	return nil
}

// base returns the base URL for an image, "" if there is none. The most specific scope with a URL
// wins.
func (l *lookasides) base(r reference.Reference) string {
	for _, scope := range policy.Scopes(r) {
		if b := l.byScope[scope]; b != "" {
			return b
		}
	}
	return l.fallback
}

// sigstore reports whether the sigstore signatures of an image are read from its registry. The most
// specific scope with a setting wins. Without a setting they are read, unlike in containers/image,
// because an inventory should be complete.
func (l *lookasides) sigstore(r reference.Reference) bool {
	for _, scope := range append(policy.Scopes(r), "") {
		if read, ok := l.attached[scope]; ok {
			return read
		}
	}
	return true
}
