package pull

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Source is a place to read a reference from: the registry that it names, or a mirror.
type Source struct {
	// Reference is the reference within the source.
	Reference reference.Reference
	// Insecure allows plain HTTP and unverified TLS, also where Registry does not.
	Insecure bool
}

func (p Source) key() string {
	if p.Insecure {
		return p.Reference.Name() + " insecure"
	}
	return p.Reference.Name()
}

// PullSources returns the sources of ref, in order. There is at least one.
func (c *Client) PullSources(ref reference.Reference) ([]Source, error) {
	if c.registries.files == nil {
		return []Source{{Reference: ref}}, nil
	}
	sources, err := c.registries.files.PullSources(ref)
	if err == nil && len(sources) == 0 {
		err = &Error{Reason: Denied, Message: "the registry itself may not be used, and no mirror covers such a reference: check mirrorSourcePolicy in the configuration, and blocked in registries.conf"}
	}
	return sources, err
}

// Reach calls try with a session for each source of ref, until it succeeds. After any failure it
// tries the next source, as podman and CRI-O do. The error is about ref. It says NotFound only if
// the last source is to be believed, which then has something else of the repository, or hides
// nothing.
func (c *Client) Reach(ctx context.Context, ref reference.Reference, try func(*Session) error) error {
	sources, err := c.PullSources(ref)
	if err != nil {
		return Describe(ref, err)
	}
	return c.reachAny(ctx, ref, sources, nil, try)
}

// ReachOn is Reach for the sources other than at, which failed with err. If there is no other
// source, it returns err.
func (c *Client) ReachOn(ctx context.Context, ref reference.Reference, at Source, err error, try func(*Session) error) error {
	sources, sourcesErr := c.PullSources(ref)
	sources = slices.DeleteFunc(sources, func(p Source) bool { return p.key() == at.key() })
	if sourcesErr != nil || len(sources) == 0 || ctx.Err() != nil {
		return err
	}
	first := at.Reference
	first.Tag, first.Digest = "", ref.Digest
	return c.reachAny(ctx, ref, sources, []*Error{Describe(first, err)}, try)
}

// reachAny calls try with a session for each source until it succeeds. failed are the errors of
// sources that failed before.
func (c *Client) reachAny(ctx context.Context, ref reference.Reference, sources []Source, failed []*Error, try func(*Session) error) error {
	for i, at := range sources {
		s, err := c.session(ctx, at)
		if err == nil {
			err = try(s)
		}
		if err != nil && s != nil && i == len(sources)-1 { // an absence elsewhere decides nothing
			err = s.believed(ctx, at.Reference.Identifier(), err)
		}
		if err == nil {
			return nil
		}
		late := Overdue(ctx, err)
		e := Describe(at.Reference, late)
		if e.Reason == Unauthorized {
			c.Forget(at)
		}
		failed = append(failed, e)
		if late != err || ctx.Err() != nil {
			break
		}
	}
	return unreached(ref, failed)
}

// unreached is the error for a reference that could be read from no source. The error of the last
// source counts, which is the registry itself unless that is blocked. But if a mirror cannot be
// reached, an image that the others lack does not count as missing.
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
		out.Message = fmt.Sprintf("%s; its mirrors also failed: %s", last.Message, strings.Join(also, "; "))
	} else {
		out.Message = "its mirrors failed: " + strings.Join(also, "; ")
	}
	out.cause = errors.Join(last)
	return &out
}
