package server

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// CheckConfig reads a configuration file and the files that it names, as a server does when it
// starts, and opens nothing. found lists the mistakes that would stop a server; err is set if the
// file could not be read. CheckConfig contacts no registry, cluster or TUF repository.
func CheckConfig(path string) (found []error, err error) {
	c, err := config.Load(path)
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, err
	}
	if err != nil {
		return []error{err}, nil
	}
	_, importing := NewPushImporter(c, nil, Options{}, nil)
	_, receiving := newReceivers(c, unusedSpool{}, nil)
	_, following := clusterSources(c)
	_, trusting := trustedRoots(c)
	_, notifying := c.Notifier("", nil)
	found = []error{importing, receiving, notifying, following, trusting}
	if err := (podlogs.Options{Kubelet: kubeletOptions(c.Kubelet)}).Check(); err != nil {
		found = append(found, c.Fault("kubelet", err))
	}
	found = append(found, c.CheckSweep())
	return slices.DeleteFunc(found, func(err error) bool { return err == nil }), nil
}

// unusedSpool is the spool of receivers that receive nothing.
type unusedSpool struct{}

func (unusedSpool) Enqueue(context.Context, []push.Event) error { return errors.ErrUnsupported }
