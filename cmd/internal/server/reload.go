package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
)

// configInterval is how often the configuration file is read again. It is small, and reading it works on every file system.
const configInterval = 10 * time.Second

// reloaded are the keys of the configuration file that followConfig takes over.
var reloaded = []string{"receivers", "notify"}

// followConfig takes over the receivers of the configuration file when it changes, until ctx is done. What else changed is
// logged, as it needs a restart. A file with mistakes changes nothing.
func (s *Server) followConfig(ctx context.Context) error {
	current, reported := s.Config, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Options.Clock.After(configInterval):
		}
		next, err := s.pushes.reloadReceivers(current)
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			slog.Error("The changed configuration has mistakes; the one of before stays in force", "err", err)
		case err == nil && (next != current || reported != ""):
			current, reported = next, ""
			s.notices.Wake()
			slog.Warn("The configuration was read again", "file", current.Path(), "receivers", len(current.Receivers), "waitsForRestart", strings.Join(config.Changed(s.Config, current, reloaded...), " "))
		}
	}
}

// reloadReceivers reads the file of a configuration again, and takes over its receivers of webhooks and of notifications. It
// returns the configuration that is in the file now, or current if that says the same.
func (p *pushes) reloadReceivers(current *config.Config) (*config.Config, error) {
	next, err := config.Load(current.Path())
	if err != nil {
		return nil, err
	}
	if len(config.Changed(current, next)) == 0 {
		return current, nil
	}
	if err := validateReceivers(next); err != nil {
		return nil, err
	}
	if _, err := next.Notifier("", nil); err != nil {
		return nil, err
	}
	if err := p.handler.Replace(next.Receivers); err != nil {
		return nil, next.Fault("receivers", err)
	}
	return next, next.NotifyFault(p.notifier.Replace(next.Notify))
}
