package server

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/checks"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// answererOf returns what an Answerer needs besides the storages of images.
func (s *Server) answererOf(core *coreapi.API) (a answers.Answerer, err error) {
	configured, err := s.Config.OtherNames(s.Options.Isolated)
	if err != nil {
		return a, err
	}
	mirrors := func() *config.OtherNames { return configured }
	if s.pushes != nil {
		s.pushes.mirrors.Store(configured)
		mirrors = s.pushes.mirrors.Load
	}
	immutable := s.Config.Immutable
	if s.pushes != nil {
		s.pushes.config.Store(s.Config)
		immutable = func(ref reference.Reference) string { return s.pushes.config.Load().Immutable(ref) }
	}
	a = answers.Answerer{
		Policies:   answers.InForce{Policies: s.Verification.policiesInForce, Clock: s.Options.Clock},
		Containers: core.Clusters,
		Naming:     core.Usage.Index,
		Authorizer: s.authorizer,
		Mirrored:   func(ref reference.Reference) []reference.Reference { return mirrors().Sources(ref) },
		Mirrors:    func(ref reference.Reference) []reference.Reference { return mirrors().Mirrors(ref) },
		Confirmed:  s.confirmed,
		Immutable:  immutable,
		Clock:      s.Options.Clock,
	}
	if s.pushes != nil {
		a.Jobs = s.pushes.spool
	}
	return a, nil
}

// confirmed is part of [answers.Answerer]. A time that cannot be read is unknown.
func (s *Server) confirmed(ctx context.Context, ref reference.Reference, digest string) (at time.Time) {
	if found, err := s.checks.At(ctx, []checks.Asked{{Reference: ref.String(), Digest: digest}}); err == nil {
		at = found[0]
	}
	return at
}
