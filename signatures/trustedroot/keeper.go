// Package trustedroot keeps files with sigstore's trusted roots as they are in TUF repositories
// (https://theupdateframework.io), so that the keys of a deployment can change without anybody
// writing to this machine. Policies name the files.
//
// It opens connections, so it is apart from the packages that judge: they only read the file.
package trustedroot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tuf"
	"github.com/theupdateframework/go-tuf/v2/metadata/fetcher"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// DefaultTarget is the name of a trusted root in sigstore's repositories.
const DefaultTarget = "trusted_root.json"

// maxSize bounds one download, in bytes. Policies read no larger files.
const maxSize = 1 << 20

// Source is a trusted root in a TUF repository, and where it is kept.
type Source struct {
	// File holds the last trusted root that was good. Beside it, a folder of the same name with
	// ".tuf" added holds what is known of the repository, so that the repository cannot go back to
	// an older state.
	File string
	// Mirror is the repository's URL. Root is its root.json, with which trust begins. Without both,
	// sigstore's public repository is used.
	Mirror string
	Root   []byte
	// Target is the trusted root's name in the repository. "" is DefaultTarget.
	Target string
}

// Keeper brings the files of sources up to date. Its fields must not change while it works.
type Keeper struct {
	Sources  []Source
	Interval time.Duration    // from one refresh to the next; an hour if zero
	Clock    clock.WithTicker // the real one if nil
	Client   *http.Client     // one that gives up after 30 seconds if nil
	// Done gets every refresh. at is when the repository last confirmed the file, zero if never.
	Done func(s Source, at time.Time, err error)
}

// Missing refreshes the sources that have no file yet: a policy that names a missing file could not
// be read. The error is that of the first source that cannot be had.
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
			_ = k.refresh(s) // Done is told
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

// bring writes the repository's trusted root to the file. The file's time is that of the last
// success, so it outlives a restart.
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

func (k *Keeper) fetcher() fetcher.Fetcher {
	f := fetcher.NewDefaultFetcher()
	client := k.Client
	if client == nil {
		client = &http.Client{Timeout: 30 * time.Second}
	}
	f.SetHTTPClient(client)
	return f
}

// bounded is a fetcher that downloads nothing large, whatever a repository's metadata say.
type bounded struct{ fetcher.Fetcher }

// DownloadFile implements fetcher.Fetcher.
func (b bounded) DownloadFile(url string, limit int64, timeout time.Duration) ([]byte, error) {
	return b.Fetcher.DownloadFile(url, min(limit, maxSize), timeout)
}
