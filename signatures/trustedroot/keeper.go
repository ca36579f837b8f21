// Package trustedroot downloads sigstore's trusted roots from TUF repositories
// (https://theupdateframework.io) into files, so that a change of a deployment's keys needs no
// change on this machine. Policies name the files.
//
// Because it opens connections, it is separate from the packages that judge: these only read the
// files.
package trustedroot

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tuf"
	"github.com/theupdateframework/go-tuf/v2/metadata/fetcher"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// DefaultTarget is the name of a trusted root in sigstore's repositories.
const DefaultTarget = "trusted_root.json"

// maxSize bounds one download, in bytes. Policies read no larger files.
const maxSize = 1 << 20

// Source is a trusted root in a TUF repository, and the file for it.
type Source struct {
	// File has the last valid trusted root. Beside it, a folder with the same name and ".tuf" has the
	// repository's metadata, so that the repository cannot be rolled back.
	File string
	// Mirror is the repository's URL. Root is its root.json, the initial trust. Without both,
	// sigstore's public repository is used.
	Mirror string
	Root   []byte
	// Target is the trusted root's name in the repository. "" is DefaultTarget.
	Target string
}

// Keeper updates the files of sources. Its fields must not change while it runs.
type Keeper struct {
	Sources  []Source
	Interval time.Duration    // from one refresh to the next; an hour if zero
	Clock    clock.WithTicker // the real one if nil
	Client   *http.Client     // one that gives up after 30 seconds if nil
	// Done is called after every refresh. at is when the repository last confirmed the file, zero if
	// never.
	Done func(s Source, at time.Time, err error)
}

// Missing refreshes the sources that have no file yet, because a policy that names a missing file
// cannot be read. It returns the error of the first source that fails.
func (k *Keeper) Missing() error {
	for _, s := range k.Sources {
		if _, err := os.Stat(s.File); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := k.refresh(s); err != nil {
			return err
		}
	}
	return nil
}

// Run refreshes all sources, at once and then at each interval, until ctx is done. A refresh that
// fails leaves the file as it is.
func (k *Keeper) Run(ctx context.Context) {
	c := cmp.Or[clock.WithTicker](k.Clock, clock.RealClock{})
	ticker := c.NewTicker(cmp.Or(k.Interval, time.Hour))
	defer ticker.Stop()
	for {
		for _, s := range k.Sources {
			if ctx.Err() != nil {
				return
			}
			_ = k.refresh(s) // Done gets the error
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

func (k *Keeper) refresh(s Source) error {
	err := k.bring(s)
	if err != nil {
		err = fmt.Errorf("trusted root %s: %w", s.File, err)
	}
	if k.Done != nil {
		var at time.Time
		if info, statErr := os.Stat(s.File); statErr == nil {
			at = info.ModTime()
		}
		k.Done(s, at, err)
	}
	return err
}

// bring writes the repository's trusted root to the file. The file's modification time records the
// last success, so that it survives a restart.
func (k *Keeper) bring(s Source) error {
	options := &tuf.Options{
		Root:              s.Root,
		RepositoryBaseURL: cmp.Or(s.Mirror, tuf.DefaultMirror),
		CachePath:         s.File + ".tuf",
		Fetcher:           bounded{k.fetcher()},
	}
	if s.Mirror == "" && s.Root == nil {
		options.Root = tuf.DefaultRoot()
	}
	if err := discardDamaged(filepath.Join(options.CachePath, tuf.URLToPath(options.RepositoryBaseURL))); err != nil {
		return err
	}
	client, err := tuf.New(options)
	if err != nil {
		return err
	}
	data, err := client.GetTarget(cmp.Or(s.Target, DefaultTarget))
	if err != nil {
		return err
	}
	if _, err := root.NewTrustedRootFromJSON(data); err != nil {
		return fmt.Errorf("the repository's file is not a trusted root: %w", err)
	}
	if have, err := trusted.ReadFile(s.File, maxSize); err == nil && bytes.Equal(have, data) {
		now := time.Now()
		return os.Chtimes(s.File, now, now)
	}
	return trusted.Replace(s.File, data, 0o600)
}

// discardDamaged removes what a crash may leave in a folder: incomplete files, and metadata that is
// not JSON. The updater would fail on them each time, and can download them again.
func discardDamaged(folder string) error {
	unfinished, err := filepath.Glob(filepath.Join(folder, "tuf_tmp*"))
	if err != nil {
		return err
	}
	for _, file := range unfinished {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.json"))
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := trusted.ReadFile(file, maxSize)
		if err == nil && !json.Valid(data) {
			slog.Warn("what was known of a repository of trusted roots is damaged, and is downloaded again", "file", file)
			err = os.Remove(file)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) fetcher() fetcher.Fetcher {
	f := fetcher.NewDefaultFetcher()
	client := k.Client
	if client == nil {
		client = &http.Client{Timeout: 30 * time.Second}
	}
	f.SetHTTPClient(client)
	return f
}

// bounded is a fetcher that refuses large downloads, even if a repository's metadata allows them.
type bounded struct{ fetcher.Fetcher }

// DownloadFile implements fetcher.Fetcher.
func (b bounded) DownloadFile(url string, limit int64, timeout time.Duration) ([]byte, error) {
	return b.Fetcher.DownloadFile(url, min(limit, maxSize), timeout)
}
