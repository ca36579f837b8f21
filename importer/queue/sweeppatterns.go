package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// sweepPattern names repositories of a registry by a pattern for [reference.MatchPath].
type sweepPattern struct{ host, path string }

func (p sweepPattern) matches(path string) bool { return reference.MatchPath(p.path, path) }

// isSweepPattern reports whether a repository is written as a pattern.
func isSweepPattern(text string) bool { return strings.ContainsAny(text, "*?") }

// parseSweepPattern parses a pattern as it is written.
func parseSweepPattern(text string) (sweepPattern, error) {
	name, path, _ := strings.Cut(text, "/")
	host, err := reference.ParseHost(name)
	if err == nil {
		err = reference.CheckPathPattern(path)
	}
	if err == nil && (strings.ContainsAny(path, ":@") || path != strings.ToLower(path)) {
		err = errors.New("no repository can match")
	}
	if err != nil {
		return sweepPattern{}, fmt.Errorf("%.128q is not a registry host and a pattern, such as registry.example.com/team/**: %w", text, err)
	}
	return sweepPattern{host, path}, nil
}

// find adds the repositories that the registry's patterns name: those that it lists now,
// and those that vanished from its list, so that the sweep asks for their images once more.
func (h *hostSweep) find(ctx context.Context) {
	var listed []reference.Reference
	var warnings, paths []string
	for _, p := range h.patterns {
		paths = append(paths, p.path)
	}
	err := h.ask(ctx, func() (err error) {
		listed, warnings, err = h.Importer().ListRepositories(ctx, h.name, h.entry.listing, paths)
		return err
	})
	for _, text := range warnings {
		h.failing.Warn(h.name, "a sweep may not find all repositories", "registry", h.name, "warning", text)
	}
	before := h.before(ctx)
	if err != nil {
		if ctx.Err() == nil {
			says := "a sweep finds no new repositories: the registry does not list them"
			if isSilent(err) {
				says = "a sweep leaves a registry that does not answer: what is known of its tags gets older"
			}
			h.failing.Warn(h.name, says, "registry", h.name, "err", err)
		}
		h.found = before
		h.repositories = append(h.repositories, before...)
		return
	}
	for _, repository := range listed {
		if h.matches(repository) && !slices.Contains(h.repositories, repository) {
			h.found = append(h.found, repository)
		}
	}
	if most := h.entry.most; len(h.found) > most {
		h.failing.Warn(h.name, "a sweep leaves out repositories: a registry has more that match than sweep.entries.most allows", "registry", h.name, "matching", len(h.found), "most", most, "last", h.found[most-1].Repository)
		h.found = h.found[:most]
	}
	h.vanished = slices.DeleteFunc(slices.Clone(before), func(r reference.Reference) bool {
		return has(h.found, r) || slices.Contains(h.repositories, r)
	})
	h.report(before)
	h.repositories = slices.Concat(h.repositories, h.found, h.vanished)
}

// before returns the repositories of the registry that the patterns named at the last sweep, in the
// order of byName. For the first sweep of a process these are those of stored tags.
func (h *hostSweep) before(ctx context.Context) []reference.Reference {
	key := sweepKey{h.entry, h.name}
	h.Worker.mu.Lock()
	before, recalled := slices.Clone(h.Worker.found[h.name]), h.recalled[key]
	h.Worker.mu.Unlock()
	before = slices.DeleteFunc(before, func(r reference.Reference) bool { return !h.matches(r) })
	if recalled {
		return before
	}
	known := map[reference.Reference]bool{}
	err := importer.EachOfRegistry(ctx, h.Images, h.name, func(tag reference.Reference, _ string) error {
		if repository := tag.Bare(); h.matches(repository) {
			known[repository] = true
		}
		return nil
	})
	if err != nil {
		if ctx.Err() == nil {
			h.failing.Warn(h.name, "a sweep does not know which repositories a registry had: stored tags cannot be read", "registry", h.name, "err", err)
		}
		return before
	}
	for _, r := range before {
		known[r] = true
	}
	h.Worker.mu.Lock()
	h.recalled[key] = true
	h.Worker.mu.Unlock()
	return slices.SortedFunc(maps.Keys(known), byName)
}

// matches reports whether the patterns name a repository of the registry.
func (h *hostSweep) matches(r reference.Reference) bool {
	return slices.ContainsFunc(h.patterns, func(p sweepPattern) bool { return p.matches(r.Repository) })
}

// has reports whether repositories of a registry, in the order of byName, include one.
func has(repositories []reference.Reference, r reference.Reference) bool {
	_, is := slices.BinarySearchFunc(repositories, r, byName)
	return is
}

// byName is the order in which a registry's repositories are listed.
func byName(a, b reference.Reference) int { return strings.Compare(a.Repository, b.Repository) }

// maxNamed bounds the repositories that one message names.
const maxNamed = 10

// report says which repositories have appeared or vanished since the last sweep.
func (h *hostSweep) report(before []reference.Reference) {
	if len(before) == 0 {
		return
	}
	appeared := slices.DeleteFunc(slices.Clone(h.found), func(r reference.Reference) bool { return has(before, r) })
	if len(appeared) > 0 {
		h.Logger.Info("A registry has new repositories", "registry", h.name, "count", len(appeared), "repositories", named(appeared))
	}
	switch {
	case len(h.vanished) > 0 && len(h.found) == 0:
		h.Logger.Error("A registry lists none of the repositories that it had: it may have lost its storage, or no longer shows them to these credentials", "registry", h.name, "count", len(h.vanished))
	case len(h.vanished) > 0:
		h.Logger.Warn("Repositories have vanished from a registry", "registry", h.name, "count", len(h.vanished), "repositories", named(h.vanished))
	}
}

func named(repositories []reference.Reference) string {
	var names []string
	for _, r := range repositories[:min(len(repositories), maxNamed)] {
		names = append(names, r.Repository)
	}
	if more := len(repositories) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// remember keeps the repositories that a sweep has found by patterns for the next sweep, those that
// vanished and could not be swept, and what other entries have found. It forgets registries for
// which the plan has no pattern now.
func (h *hostSweep) remember() {
	h.Worker.mu.Lock()
	defer h.Worker.mu.Unlock()
	if h.Worker.found == nil {
		h.Worker.found = map[string][]reference.Reference{}
	}
	found := slices.DeleteFunc(slices.Clone(h.Worker.found[h.name]), h.matches)
	found = slices.Concat(found, h.found, h.vanished)
	slices.SortFunc(found, byName)
	h.Worker.found[h.name] = slices.Compact(found)
	patterns := map[string]bool{}
	for _, e := range h.Worker.plan.Load().entries {
		for _, p := range e.patterns {
			patterns[p.host] = true
		}
	}
	maps.DeleteFunc(h.Worker.found, func(host string, _ []reference.Reference) bool { return !patterns[host] })
}
