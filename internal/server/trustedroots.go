package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/signatures/trustedroot"
)

// maxRootFile bounds a root.json, in bytes: as much as TUF clients download.
const maxRootFile = 512 << 10

// trustedRoots returns the keeper of the files that the configuration names; nil if it
// names none.
func trustedRoots(c *config.Config) (*trustedroot.Keeper, error) {
	if len(c.TrustedRoots) == 0 {
		return nil, nil
	}
	k := &trustedroot.Keeper{Done: logTrustedRoot()}
	files := map[string]bool{}
	for i, r := range c.TrustedRoots {
		fail := func(format string, args ...any) error {
			return c.Fault(fmt.Sprintf("trustedRoots[%d]", i), fmt.Errorf(format, args...))
		}
		mirror, err := url.Parse(r.Mirror)
		switch {
		case r.File == "":
			return nil, fail("file is required: the trusted root is kept there, and policies name it")
		case files[r.File]:
			return nil, fail("another entry already keeps %s", r.File)
		case (r.Mirror == "") != (r.RootFile == ""):
			return nil, fail("mirror and rootFile belong together; leave both out for sigstore's public repository")
		case r.Mirror != "" && (err != nil || mirror.Host == "" || mirror.User != nil || mirror.Scheme != "https" && mirror.Scheme != "http"):
			return nil, fail("mirror must be an http or https URL without a password")
		}
		files[r.File] = true
		s := trustedroot.Source{File: r.File, Mirror: r.Mirror, Target: r.Target}
		if r.RootFile != "" {
			if s.Root, err = trusted.ReadFile(r.RootFile, maxRootFile); err != nil {
				return nil, fail("rootFile: %w", err)
			}
		}
		k.Sources = append(k.Sources, s)
	}
	return k, nil
}

// openTrustedRoots gets the trusted roots that do not exist yet: without one, policies
// that name it could not be read.
func (s *Server) openTrustedRoots(context.Context) error {
	keeper, err := trustedRoots(s.Config)
	if err != nil || keeper == nil {
		return err
	}
	meter.Register(meter.Process, trustedRootTime)
	if err := keeper.Missing(); err != nil {
		return cli.WithHint(err, "check that the mirror can be reached and that rootFile is its root.json, or put a trusted root there by hand")
	}
	s.Tasks = append(s.Tasks, Task{Name: "trusted-roots", Run: func(ctx context.Context) error {
		keeper.Run(ctx)
		return nil
	}})
	return nil
}

// logTrustedRoot returns a function that logs changes: once why a file is not brought
// up to date, and once that it is again.
func logTrustedRoot() func(trustedroot.Source, time.Time, error) {
	reported := map[string]string{}
	return func(s trustedroot.Source, at time.Time, err error) {
		if !at.IsZero() {
			trustedRootTime.WithLabelValues(s.File).Set(float64(at.Unix()))
		}
		switch {
		case err != nil && reported[s.File] != err.Error():
			reported[s.File] = err.Error()
			slog.Error("A trusted root cannot be updated; the existing one stays in use", "err", err, "file", s.File, "from", at)
		case err == nil && reported[s.File] != "":
			delete(reported, s.File)
			slog.Info("A trusted root is up to date again", "file", s.File)
		}
	}
}

var trustedRootTime = meter.GaugeVec("trusted_root", "last_success_timestamp_seconds",
	"When a trusted root was last confirmed by its TUF repository, by file; its age is the time since.", "file")
