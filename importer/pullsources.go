package importer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// PullSource is where a reference is read: the registry that it names, or a mirror.
type PullSource struct {
	// Reference is the reference by which the source is asked.
	Reference reference.Reference
	// Insecure allows plain HTTP and unverified TLS, also where Registry does not.
	Insecure bool
}

func (p PullSource) key() string {
	if p.Insecure {
		return p.Reference.Name() + " insecure"
	}
	return p.Reference.Name()
}

// pullSources returns the sources of ref, in order. There is at least one.
func (im *Importer) pullSources(ref reference.Reference) ([]PullSource, error) {
	if im.registries.files == nil {
		return []PullSource{{Reference: ref}}, nil
	}
	sources, err := im.registries.files.PullSources(ref)
	if err == nil && len(sources) == 0 {
		err = &Error{Reason: Denied, Message: "it may not be asked itself, and no mirror is for such a reference: look at mirrorSourcePolicy in the configuration, and at blocked in registries.conf"}
	}
	return sources, err
}

// reach calls try with a session for each source of ref, until it succeeds. After any failure of a source it goes to
// the next, as podman and CRI-O do. The error is about ref.
func (im *Importer) reach(ctx context.Context, ref reference.Reference, try func(*session) error) error {
	sources, err := im.pullSources(ref)
	if err != nil {
		return describe(ref, err)
	}
	return im.reachAny(ctx, ref, sources, nil, try)
}

// reachOn is reach after source at has failed with err. If there is no other source, it returns err.
func (im *Importer) reachOn(ctx context.Context, ref reference.Reference, at PullSource, err error, try func(*session) error) error {
	sources, sourcesErr := im.pullSources(ref)
	sources = slices.DeleteFunc(sources, func(p PullSource) bool { return p.key() == at.key() })
	if sourcesErr != nil || len(sources) == 0 || ctx.Err() != nil {
		return err
	}
	first := at.Reference
	first.Tag, first.Digest = "", ref.Digest
	return im.reachAny(ctx, ref, sources, []*Error{describe(first, err)}, try)
}

// reachAny calls try with a session for each source until it succeeds. failed are the errors of sources that failed
// before.
func (im *Importer) reachAny(ctx context.Context, ref reference.Reference, sources []PullSource, failed []*Error, try func(*session) error) error {
	for _, at := range sources {
		s, err := im.session(ctx, at)
		if err == nil {
			err = try(s)
		}
		if err == nil {
			return nil
		}
		late := overdue(ctx, err)
		e := describe(at.Reference, late)
		if e.Reason == Unauthorized {
			im.forget(at)
		}
		failed = append(failed, e)
		if late != err || ctx.Err() != nil {
			break
		}
	}
	return unreached(ref, failed)
}

// unreached is the error of a reference that no source had. The error of the last source counts, which is the
// registry itself if it may be asked. But while a mirror is away, what the others lack is not known to be missing.
func unreached(ref reference.Reference, failed []*Error) *Error {
	last := failed[len(failed)-1]
	if last.Reference != ref.String() {
		for _, e := range failed {
			if e.Temporary() && !last.Temporary() {
				last = e
			}
		}
	}
	if len(failed) == 1 && last.Reference == ref.String() {
		return last
	}
	out := *last
	out.Host, out.Repository, out.Reference = ref.Host, ref.Repository, ref.String()
	var also []string
	for _, e := range failed {
		if e == last && e.Reference == ref.String() {
			continue
		}
		text := *e
		text.RetryAfter = 0
		also = append(also, text.Error())
	}
	if last.Reference == ref.String() {
		out.Message = fmt.Sprintf("%s; its mirrors failed, too: %s", last.Message, strings.Join(also, "; "))
	} else {
		out.Message = "its mirrors failed: " + strings.Join(also, "; ")
	}
	out.cause = errors.Join(last)
	return &out
}
