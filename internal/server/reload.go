package server

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// configInterval is how often the configuration file is read again. It is small, and reading it
// works on every file system.
const configInterval = 10 * time.Second

// followConfig applies changes of the configuration file until ctx is done. It logs changes in
// sections that need a restart. A file with mistakes, or without its end, changes nothing.
func (s *Server) followConfig(ctx context.Context, worker *queue.Worker) error {
	current, reported := s.Config, ""
	poll := trusted.Poll{InForce: trusted.Contents{current.Path(): current.Content()}}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.Options.Clock.After(configInterval):
		}
		next, settled, err := s.pushes.look(&poll, current, s.Options.Isolated, reloaded{worker, s})
		if !settled {
			continue
		}
		switch {
		case err != nil && err.Error() != reported:
			reported = err.Error()
			slog.Error("The changed configuration has mistakes; the previous one stays in force", "err", err)
		case err == nil && (next != current || reported != ""):
			current, reported = next, ""
			s.notices.Wake()
			s.Verification.rules.Send()
			restart := strings.Join(config.Changed(s.Config, current)[""], " ")
			slog.Warn("The configuration was read again", "file", current.Path(), "receivers", len(current.Receivers), "waitsForRestart", restart)
		}
	}
}

// reloadable takes over sections of the configuration beside [pushes].
type reloadable interface {
	ReplaceSweep(o queue.SweepOptions) error
	keepRecords(c config.Records)
}

// reloaded is what a server has of them.
type reloaded struct {
	*queue.Worker
	server *Server
}

func (r reloaded) keepRecords(c config.Records) { r.server.keepRecords(c) }

// look reads the file of a configuration again, and reloads it if it has settled and is not cut.
func (p *pushes) look(poll *trusted.Poll, current *config.Config, isolated bool, others reloadable) (next *config.Config, settled bool, err error) {
	data, err := config.Read(current.Path())
	if err != nil {
		return nil, poll.Settled(nil, err.Error()), err
	}
	now := trusted.Contents{current.Path(): data}
	if !poll.Settled(now, "") {
		return nil, false, nil
	}
	if err := poll.Cut(now); err != nil {
		return nil, true, err
	}
	if next, err = p.reload(current, data, isolated, others); err == nil {
		poll.InForce = now
	}
	return next, true, err
}

// reload applies the reloadable keys of data, the changed content of the configuration file. It
// returns the configuration in data, or current if they are equal. Running imports keep the
// configuration with which they began.
func (p *pushes) reload(current *config.Config, data []byte, isolated bool, others reloadable) (*config.Config, error) {
	next, err := config.Parse(current.Path(), data)
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
	mirrors, err := next.OtherNames(isolated)
	if err != nil {
		return nil, err
	}
	if err := next.CheckSweep(); err != nil {
		return nil, err
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
		if err := others.ReplaceSweep(queue.SweepOptions(next.Sweep)); err != nil {
			return nil, next.Fault("sweep", err)
		}
	}
	if changed["records"] != nil {
		others.keepRecords(next.Records)
	}
	p.config.Store(next)
	if changed["importer"] != nil {
		im.KeepPackages(p.packages)
		p.mirrors.Store(mirrors)
		p.importer.Swap(im).Close()
	}
	return next, nil
}
