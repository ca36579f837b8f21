// Package registryplan says what a registry may delete and what it must keep, as a document and as
// commands for the programs with which people delete. It decides nothing and deletes nothing.
package registryplan

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
)

// Max bounds the images of a plan, each of which is held in memory.
const Max = 200_000

// Formats are the formats of a plan that are commands.
var Formats = []string{"crane", "regctl", "harbor"}

// Image is a manifest in a repository, with what was decided about it.
type Image struct {
	Digest string `json:"digest"`
	// Reason is a word, and Message says why in a sentence.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Lists are the manifests that an index lists, those of attestations included.
	Lists []string `json:"lists,omitempty"`
	// Attached are the manifests that hold signatures and attestations of the image.
	Attached []string `json:"attached,omitempty"`
	// Tags are those that lead to it now, as far as they are recorded on it.
	Tags []string `json:"tags,omitempty"`
}

// Repository is the plan for a repository.
type Repository struct {
	Repository string `json:"repository"`
	// Delete is what nothing is known to need, an index before what it lists. Keep is what
	// something needs. Of Unknown it is not known whether something needs it, so it must be kept,
	// too.
	Delete  []Image `json:"delete"`
	Keep    []Image `json:"keep"`
	Unknown []Image `json:"unknown"`
	// Attached are the manifests of signatures and attestations that may be deleted with the images
	// of Delete.
	Attached []string `json:"attached"`
}

// Plan lists the images that a registry may delete. An image of the registry that is in no list is
// not known, and must be kept.
type Plan struct {
	Registry string    `json:"registry"`
	AsOf     time.Time `json:"asOf"`
	// Warnings say what the plan does not know.
	Warnings     []string      `json:"warnings"`
	Repositories []*Repository `json:"repositories"`

	by   map[string]*Repository
	n    int
	more bool // there are more warnings than maxWarnings
}

// New returns an empty plan.
func New(registry string, asOf time.Time) *Plan {
	return &Plan{Registry: registry, AsOf: asOf.UTC().Truncate(time.Second), Warnings: []string{}, Repositories: []*Repository{}, by: map[string]*Repository{}}
}

// Kind says what was decided about an image.
type Kind int

// The kinds of decisions.
const (
	Delete Kind = iota
	Keep
	Unknown
)

// Add adds an image of a repository. It fails if there are more than Max.
func (p *Plan) Add(repository string, kind Kind, image Image) error {
	if p.n++; p.n > Max {
		return cli.WithHint(fmt.Errorf("%s has more than %d images", p.Registry, Max), "name a part of it, as in %s/team", p.Registry)
	}
	r := p.by[repository]
	if r == nil {
		r = &Repository{Repository: repository, Delete: []Image{}, Keep: []Image{}, Unknown: []Image{}, Attached: []string{}}
		p.by[repository], p.Repositories = r, append(p.Repositories, r)
	}
	list := [...]*[]Image{Delete: &r.Delete, Keep: &r.Keep, Unknown: &r.Unknown}[kind]
	*list = append(*list, image)
	return nil
}

// Warn adds a warning, once. Beyond maxWarnings only that there are more is kept.
func (p *Plan) Warn(text string) {
	switch {
	case slices.Contains(p.Warnings, text):
	case len(p.Warnings) < maxWarnings:
		p.Warnings = append(p.Warnings, text)
	default:
		p.more = true
	}
}

// maxWarnings bounds the warnings of a plan.
const maxWarnings = 100

// Finish puts the plan in order: an index before what it lists, and of what is attached to deleted
// images only what nothing that is kept has.
func (p *Plan) Finish() {
	if p.more {
		p.Warnings = append(p.Warnings, fmt.Sprintf("these are the first %d warnings, and there are more", maxWarnings))
	}
	slices.SortFunc(p.Repositories, func(a, b *Repository) int { return cmp.Compare(a.Repository, b.Repository) })
	for _, r := range p.Repositories {
		kept, gone := map[string]bool{}, map[string]bool{}
		for _, list := range [][]Image{r.Keep, r.Unknown} {
			for _, image := range list {
				kept[image.Digest] = true
				for _, digest := range slices.Concat(image.Lists, image.Attached) {
					kept[digest] = true
				}
			}
		}
		// Whatever a kept image lists stays, too, and so on down, whatever was decided about it.
		for more := true; more; {
			more = false
			r.Delete = slices.DeleteFunc(r.Delete, func(image Image) bool {
				if !kept[image.Digest] {
					return false
				}
				for _, digest := range slices.Concat(image.Lists, image.Attached) {
					kept[digest] = true
				}
				image.Reason, image.Message = "listed", "an index that is kept lists it, or it is attached to an image that is kept"
				r.Keep, more = append(r.Keep, image), true
				return true
			})
		}
		for _, list := range [][]Image{r.Delete, r.Keep, r.Unknown} {
			slices.SortFunc(list, func(a, b Image) int { return cmp.Compare(a.Digest, b.Digest) })
		}
		r.Delete = indexesFirst(r.Delete)
		for _, image := range r.Delete {
			gone[image.Digest] = true
		}
		for _, image := range r.Delete {
			for _, digest := range slices.Concat(image.Attached, image.Lists) {
				if !kept[digest] && !gone[digest] {
					gone[digest] = true
					if slices.Contains(image.Attached, digest) {
						r.Attached = append(r.Attached, digest)
					}
				}
			}
		}
		slices.Sort(r.Attached)
	}
}

// indexesFirst puts each index before what it lists.
func indexesFirst(all []Image) []Image {
	sorted := make([]Image, 0, len(all))
	listed := map[string]int{} // by how many of those that are left
	for _, image := range all {
		for _, digest := range image.Lists {
			listed[digest]++
		}
	}
	for len(all) > 0 {
		var left []Image
		for _, image := range all {
			if listed[image.Digest] > 0 {
				left = append(left, image)
				continue
			}
			sorted = append(sorted, image)
		}
		if len(left) == len(all) { // they list each other, which digests do not allow
			return append(sorted, left...)
		}
		for _, image := range sorted[len(sorted)-(len(all)-len(left)):] {
			for _, digest := range image.Lists {
				listed[digest]--
			}
		}
		all = left
	}
	return sorted
}

// Commands writes the plan as commands for a shell, in one of Formats.
func (p *Plan) Commands(w io.Writer, format string) error {
	out := bufio.NewWriter(w) // it keeps its first error for Flush
	fmt.Fprintf(out, "#!/bin/sh\n# What %s may delete, as of %s. Read it before you run it.\nset -eu\n", p.Registry, p.AsOf.Format(time.RFC3339))
	for _, text := range p.Warnings {
		fmt.Fprintf(out, "# Warning: %s\n", text)
	}
	for _, r := range p.Repositories {
		fmt.Fprintf(out, "# %s: %d to delete, %d to keep, %d unknown\n", r.Repository, len(r.Delete), len(r.Keep), len(r.Unknown))
		for _, image := range r.Delete {
			fmt.Fprintln(out, command(format, r.Repository, image.Digest))
		}
		if format == "harbor" {
			continue // it deletes what is attached with the image
		}
		for _, digest := range r.Attached {
			fmt.Fprintln(out, command(format, r.Repository, digest))
		}
	}
	return out.Flush()
}

// Print writes how much of each repository may be deleted, for people.
func (p *Plan) Print(w io.Writer) error {
	for _, text := range p.Warnings {
		if _, err := fmt.Fprintf(w, "Warning: %s\n", text); err != nil {
			return err
		}
	}
	t := cli.Table{Columns: []string{"REPOSITORY", "DELETE", "WITH THEM", "KEEP", "UNKNOWN"}}
	for _, r := range p.Repositories {
		t.Rows = append(t.Rows, []string{r.Repository, fmt.Sprint(len(r.Delete)), fmt.Sprint(len(r.Attached)), fmt.Sprint(len(r.Keep)), fmt.Sprint(len(r.Unknown))})
	}
	if len(t.Rows) == 0 {
		_, err := fmt.Fprintf(w, "no image of %s is known\n", p.Registry)
		return err
	}
	return t.Print(w)
}

// command is the command that deletes a manifest.
func command(format, repository, digest string) string {
	switch format {
	case "regctl":
		return "regctl manifest delete " + cli.Quote(repository+"@"+digest)
	case "harbor":
		host, path, _ := strings.Cut(repository, "/")
		project, name, _ := strings.Cut(path, "/")
		// Harbor wants the slashes in a repository's name encoded twice.
		at := "https://" + host + "/api/v2.0/projects/" + url.PathEscape(project) + "/repositories/" + url.PathEscape(url.PathEscape(name)) + "/artifacts/" + digest
		return "curl --fail --silent --show-error --netrc --request DELETE " + cli.Quote(at)
	}
	return "crane delete " + cli.Quote(repository+"@"+digest)
}
