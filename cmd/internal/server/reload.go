package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
	"github.com/tidewaiter/tidewaiter/importer/queue"
)

// configInterval is how often the configuration file is read again. It is small, and reading it
// works on every file system.
const configInterval = 10 * time.Second

// followConfig takes over what it can of the configuration file when it changes, until ctx is done.
// What else changed is logged, as it needs a restart. A file with mistakes changes nothing.
func (s *Server) followConfig(ctx context.Context) error {
	current, reported := s.Config, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Options.Clock.After(configInterval):
		}
		next, err := s.pushes.reload(current, s.Options.Isolated)
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			slog.Error("The changed configuration has mistakes; the previous one stays in force", "err", err)
		case err == nil && (next != current || reported != ""):
			current, reported = next, ""
			s.notices.Wake()
			restart := strings.Join(config.Changed(s.Config, current)[""], " ")
			slog.Warn("The configuration was read again", "file", current.Path(), "receivers", len(current.Receivers), "waitsForRestart", restart)
		}
	}
}

// reload reads the file of a configuration again, and takes over the keys that are marked so. It
// returns the configuration that is in the file now, or current if that says the same. An import
// that has begun is not changed.
func (p *pushes) reload(current *config.Config, isolated bool) (*config.Config, error) {
	next, err := config.Load(current.Path())
	if err != nil {
		return nil, err
	}
	changed := config.Changed(current, next)
	if len(changed) == 0 {
		return current, nil
	}
	// Nothing is taken over before all is found to be right.
	im, err := p.newImporter(next)
	if err != nil {
		return nil, err
	}
	mirrorOf, err := next.MirrorOf(isolated)
	if err != nil {
		return nil, err
	}
	if err := queue.SweepOptions(next.Sweep).Validate(); err != nil {
		return nil, next.Fault("sweep", err)
	}
	if err := validateReceivers(next); err != nil {
		return nil, err
	}
	told, err := next.Notifier("", nil)
	if err != nil {
		return nil, err
	}
	if err := p.handler.Replace(next.Receivers); err != nil {
		return nil, next.Fault("receivers", err)
	}
	if err := p.notifier.Replace(next.Notify, told.Networks); err != nil {
		return nil, next.NotifyFault(err)
	}
	if changed["sweep"] != nil {
		if err := p.sweep(queue.SweepOptions(next.Sweep)); err != nil {
			return nil, next.Fault("sweep", err)
		}
	}
	if changed["importer"] != nil {
		im.KeepPackages(p.packages)
		p.mirrorOf.Store(&mirrorOf)
		p.importer.Swap(im).Close()
	}
	return next, nil
}
