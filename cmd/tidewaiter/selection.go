package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// selection chooses among the references that an import finds.
type selection struct {
	include, exclude []string
	newest           int
	changedSince     string

	since time.Time // of changedSince
}

func (s *selection) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&s.include, "include", nil, "import only what this REPOSITORY[:TAG] pattern matches, such as 'team/**' or 'team/app:v1.*' or ':v*'; may be repeated")
	f.StringArrayVar(&s.exclude, "exclude", nil, "do not import what this pattern matches; goes before --include; may be repeated")
	f.IntVar(&s.newest, "newest", 0, "with --all-tags or --catalog: only this many tags of each repository, those created last (reads each tag's config)")
	f.StringVar(&s.changedSince, "changed-since", "", "with --all-tags or --catalog: only images created since a date (2026-01-31, or RFC 3339) or for a time (36h, 14d)")
}

func (s *selection) validate(listed bool, now time.Time) (err error) {
	for _, p := range slices.Concat(s.include, s.exclude) {
		if err := checkPattern(p); err != nil {
			return misuse(err, "tidewaiter import --catalog --include 'team/**:v*' registry.example.com/")
		}
	}
	if (s.newest != 0 || s.changedSince != "") && !listed {
		return misuse(errors.New("--newest and --changed-since choose among tags that are listed"), "give --all-tags or --catalog, too")
	}
	if s.newest < 0 {
		return misuse(fmt.Errorf("--newest %d is less than one", s.newest), "tidewaiter import --all-tags --newest 5 registry.example.com/team/app")
	}
	if s.since, err = parseSince(s.changedSince, now); err != nil {
		return misuse(err, "--changed-since 2026-01-31, or --changed-since 14d")
	}
	return nil
}

// checkPattern returns an error unless p is REPOSITORY, REPOSITORY:TAG or :TAG.
func checkPattern(p string) error {
	repository, tag, hasTag := strings.Cut(p, ":")
	if repository != "" || !hasTag {
		if err := reference.CheckPathPattern(repository); err != nil {
			return err
		}
	}
	if hasTag {
		if _, err := path.Match(tag, ""); err != nil || tag == "" {
			return fmt.Errorf("tag pattern %q in %q: %w", tag, p, cmp.Or(err, errors.New("it is empty")))
		}
	}
	return nil
}

func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if at, err := time.Parse(layout, s); err == nil {
			return at, nil
		}
	}
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return time.Time{}, fmt.Errorf("--changed-since %s is neither a date nor a time", s)
	}
	return now.Add(-d), nil
}

// hasRepository reports whether a reference in a repository may be chosen.
func (s *selection) hasRepository(path string) bool {
	about := func(p string) bool {
		repository, _, _ := strings.Cut(p, ":")
		return repository == "" || reference.MatchPath(repository, path)
	}
	whole := func(p string) bool { return !strings.Contains(p, ":") && about(p) }
	return (len(s.include) == 0 || slices.ContainsFunc(s.include, about)) && !slices.ContainsFunc(s.exclude, whole)
}

// has reports whether the patterns choose ref. A reference without a tag matches no pattern with one.
func (s *selection) has(ref reference.Reference) bool {
	matches := func(p string) bool {
		repository, tag, hasTag := strings.Cut(p, ":")
		if repository != "" && !reference.MatchPath(repository, ref.Repository) {
			return false
		}
		ok, _ := path.Match(tag, ref.Tag) // checkPattern has checked it
		return !hasTag || ok && ref.Tag != ""
	}
	return (len(s.include) == 0 || slices.ContainsFunc(s.include, matches)) && !slices.ContainsFunc(s.exclude, matches)
}

// byDate selects the tags of a repository, which are in the order of their versions, by --newest and --changed-since.
// Tags without a known date are older than all others, and do not count as unchanged. It reports tags that cannot be
// read, and artifacts as such.
func (b *batch) byDate(ctx context.Context, s *selection, tags []reference.Reference) []reference.Reference {
	if s.newest == 0 && s.since.IsZero() {
		return tags
	}
	dates := make([]time.Time, len(tags))
	errs := make([]error, len(tags))
	var group errgroup.Group
	group.SetLimit(b.jobs)
	for i, ref := range tags {
		group.Go(func() error {
			errs[i] = b.patiently(ctx, ref.Host, func() (err error) {
				dates[i], err = b.importer.Created(ctx, ref, b.images())
				return err
			})
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	var chosen []int
	for i, ref := range tags {
		switch {
		case errs[i] != nil:
			b.report.add(ref.String(), nil, errs[i])
		case dates[i].IsZero() || !dates[i].Before(s.since):
			chosen = append(chosen, i)
		}
	}
	if s.newest > 0 {
		slices.SortStableFunc(chosen, func(x, y int) int { return dates[y].Compare(dates[x]) })
		chosen = chosen[:min(s.newest, len(chosen))]
	}
	out := make([]reference.Reference, 0, len(chosen))
	for _, i := range chosen {
		out = append(out, tags[i])
	}
	return out
}
