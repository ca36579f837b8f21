package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// answererOf returns what an Answerer needs besides the storages of images.
func (s *Server) answererOf(core *coreapi.API) (a answers.Answerer, err error) {
	names, err := s.Config.OtherNames(s.Options.Isolated)
	if err != nil {
		return a, err
	}
	known := registries{s.checks, new(atomic.Pointer[config.OtherNames]), new(atomic.Pointer[config.Config])}
	if s.pushes != nil { // which replaces them when the configuration changes
		known.names, known.config = &s.pushes.mirrors, &s.pushes.config
	}
	known.names.Store(names)
	known.config.Store(s.Config)
	a = answers.Answerer{
		Policies:   answers.InForce{Policies: s.Verification.policiesInForce, Clock: s.Options.Clock},
		Containers: core.Clusters,
		Naming:     core.Usage.Index,
		Authorizer: s.authorizer,
		Registries: known,
		Clock:      s.Options.Clock,
	}
	if s.pushes != nil {
		a.Jobs = imports{s.pushes}
	}
	return a, nil
}

// registries answers by the configuration in force: it is an [answers.Registries].
type registries struct {
	checks *checks.Checks
	names  *atomic.Pointer[config.OtherNames]
	config *atomic.Pointer[config.Config]
}

func (r registries) Sources(ref reference.Reference) []reference.Reference {
	return r.names.Load().Sources(ref)
}

func (r registries) Mirrors(ref reference.Reference) []reference.Reference {
	return r.names.Load().Mirrors(ref)
}

func (r registries) Immutable(ref reference.Reference) string { return r.config.Load().Immutable(ref) }

// Confirmed returns zero, which is unknown, for a time that cannot be read.
func (r registries) Confirmed(ctx context.Context, ref reference.Reference, digest string) (at time.Time) {
	if found, err := r.checks.At(ctx, []checks.Asked{{Reference: ref.String(), Digest: digest}}); err == nil {
		at = found[0]
	}
	return at
}

// imports are the queued imports, for admission.
type imports struct{ *pushes }

// Find is part of [answers.Jobs]. That an import failed because its registry could not be read
// counts until the registry answers this server again. If the next attempt takes long, that is due
// to what there is to import.
func (i imports) Find(ctx context.Context, source push.Source, key string) (*push.Job, error) {
	j, err := i.spool.Find(ctx, source, key)
	if j != nil && j.Unread && i.importer.Load().Answered(j.Host()).After(j.Failed) {
		j.Unread = false
	}
	return j, err
}
