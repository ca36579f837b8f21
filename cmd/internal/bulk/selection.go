package bulk

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Selection chooses among the references that an import finds.
type Selection struct {
	Include, Exclude []string
	newest           int
	changedSince     string

	since time.Time // of changedSince
}

// AddFlags adds the flags that choose.
func (s *Selection) AddFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&s.Include, "include", nil, "import only what this REPOSITORY[:TAG] pattern matches, such as 'team/**' or 'team/app:v1.*' or ':v*'; may be repeated")
	f.StringArrayVar(&s.Exclude, "exclude", nil, "do not import what this pattern matches; takes precedence over --include; may be repeated")
	f.IntVar(&s.newest, "newest", 0, "with --all-tags or --catalog: import only this many tags of each repository, the last created (reads each tag's config)")
	f.StringVar(&s.changedSince, "changed-since", "", "with --all-tags or --catalog: import only images created since a date (2026-01-31, or RFC 3339) or within a period (36h, 14d)")
}

// Validate checks the flags. Periods end now.
func (s *Selection) Validate(now time.Time) (err error) {
	for _, p := range slices.Concat(s.Include, s.Exclude) {
		if err := checkPattern(p); err != nil {
			return cli.Misuse(err, "tidewaiter import --catalog --include 'team/**:v*' registry.example.com/")
		}
	}
	if s.newest < 0 {
		return cli.Misuse(fmt.Errorf("--newest %d is less than one", s.newest), "tidewaiter import --all-tags --newest 5 registry.example.com/team/app")
	}
	if s.since, err = parseSince(s.changedSince, now); err != nil {
		return cli.Misuse(err, "--changed-since 2026-01-31, or --changed-since 14d")
	}
	return nil
}

// ValidateListed refuses the flags that choose among listed tags if no tags are listed.
func (s *Selection) ValidateListed(listed bool) error {
	if (s.newest != 0 || s.changedSince != "") && !listed {
		return cli.Misuse(errors.New("--newest and --changed-since select from listed tags"), "add --all-tags or --catalog")
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
		return time.Time{}, fmt.Errorf("--changed-since %s is neither a date nor a duration", s)
	}
	return now.Add(-d), nil
}

// HasRepository reports whether a reference in a repository may be chosen.
func (s *Selection) HasRepository(path string) bool {
	about := func(p string) bool {
		repository, _, _ := strings.Cut(p, ":")
		return repository == "" || reference.MatchPath(repository, path)
	}
	whole := func(p string) bool { return !strings.Contains(p, ":") && about(p) }
	return (len(s.Include) == 0 || slices.ContainsFunc(s.Include, about)) && !slices.ContainsFunc(s.Exclude, whole)
}

// Has reports whether the patterns choose ref. A reference without a tag matches no pattern with
// one.
func (s *Selection) Has(ref reference.Reference) bool {
	matches := func(p string) bool {
		repository, tag, hasTag := strings.Cut(p, ":")
		if repository != "" && !reference.MatchPath(repository, ref.Repository) {
			return false
		}
		ok, _ := path.Match(tag, ref.Tag) // checkPattern has checked it
		return !hasTag || ok && ref.Tag != ""
	}
	return (len(s.Include) == 0 || slices.ContainsFunc(s.Include, matches)) && !slices.ContainsFunc(s.Exclude, matches)
}

// choice are tags of a repository, in the order of their versions, until --newest
// and --changed-since have chosen among them.
type choice struct {
	tags    []reference.Reference
	created map[reference.Reference]time.Time // by tag, if known
	left    int                               // tags whose dates are not read
	dropped bool                              // not all dates will be read
}

// among returns the jobs for the references of a list: it lists the repositories of a registry, and
// imports the tags of a repository or first reads their dates.
func (s *Selection) among(listed reference.Reference, found []reference.Reference) (jobs []Job) {
	kind, chosen := ImportJob, s.Has
	var of *choice
	switch {
	case listed.Repository == "":
		kind, chosen = ListJob, func(ref reference.Reference) bool { return s.HasRepository(ref.Repository) }
	case s.newest > 0 || !s.since.IsZero():
		kind, of = dateJob, &choice{created: map[reference.Reference]time.Time{}}
	}
	for _, ref := range found {
		if chosen(ref) {
			jobs = append(jobs, Job{kind, ref, of})
		}
	}
	if of != nil {
		for _, j := range jobs {
			of.tags = append(of.tags, j.Ref)
		}
		of.left = len(of.tags)
	}
	return jobs
}

// dated records when a tag was created, if that is known. After the last tag of a choice it returns
// the chosen tags. --newest treats an image without a date as the oldest, and --changed-since
// includes it.
func (s *Selection) dated(c *choice, ref reference.Reference, created time.Time, known bool) (chosen []reference.Reference) {
	if known {
		c.created[ref] = created
	}
	if c.left--; c.left > 0 {
		return nil
	}
	for _, tag := range c.tags {
		if at, known := c.created[tag]; known && (at.IsZero() || !at.Before(s.since)) {
			chosen = append(chosen, tag)
		}
	}
	if s.newest > 0 {
		slices.SortStableFunc(chosen, func(x, y reference.Reference) int { return c.created[y].Compare(c.created[x]) })
		chosen = chosen[:min(s.newest, len(chosen))]
	}
	return chosen
}
