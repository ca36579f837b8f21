// Package registryplan prints which manifests may be deleted from registries: as text for people,
// and as commands of common tools.
package registryplan

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// Formats are the formats with commands.
var Formats = []string{"crane", "regctl", "harbor"}

// Commands writes the plan as shell commands, in one of Formats.
func Commands(p *prune.Plan, w io.Writer, format string) error {
	out := bufio.NewWriter(w) // it keeps its first error for Flush
	fmt.Fprintf(out, "#!/bin/sh\n# What %s may delete, as of %s. Read it before you run it.\nset -eu\n", p.Registry, p.AsOf.Format(time.RFC3339))
	if format == "crane" {
		out.WriteString(tolerant)
	}
	for _, text := range p.Warnings {
		fmt.Fprintf(out, "# Warning: %s\n", text)
	}
	for _, r := range p.Repositories {
		fmt.Fprintf(out, "# %s: %d to delete, %d to keep, %d unknown\n", r.Repository, len(r.Delete), len(r.Keep), len(r.Unknown))
		for _, image := range r.Delete {
			fmt.Fprintln(out, command(format, r.Repository, image.Digest))
		}
		if format == "harbor" {
			continue // Harbor deletes attached artifacts with the image
		}
		for _, digest := range r.Attached {
			fmt.Fprintln(out, command(format, r.Repository, digest))
		}
	}
	return out.Flush()
}

// tolerant has crane go on after a manifest that is gone already, as after the first run of a
// script that runs twice. After any other error the script ends: what an index lists must not go
// before it.
const tolerant = `crane() {
	out=$(command crane "$@" 2>&1) && return
	printf '%s\n' "$out" >&2
	case $out in *MANIFEST_UNKNOWN*) ;; *) return 1 ;; esac
}
`

// Print writes for people how much of each repository may be deleted.
func Print(p *prune.Plan, w io.Writer) error {
	for _, text := range p.Warnings {
		if _, err := fmt.Fprintf(w, "Warning: %s\n", text); err != nil {
			return err
		}
	}
	t := cli.Table{Columns: []string{"REPOSITORY", "DELETE", "WITH THEM", "KEEP", "UNKNOWN", "TAGS CHECKED"}}
	for _, r := range p.Repositories {
		checked := "never"
		if r.TagsChecked != nil {
			checked = duration.HumanDuration(p.AsOf.Sub(*r.TagsChecked)) + " ago"
		}
		t.Rows = append(t.Rows, []string{r.Repository, fmt.Sprint(len(r.Delete)), fmt.Sprint(len(r.Attached)), fmt.Sprint(len(r.Keep)), fmt.Sprint(len(r.Unknown)), checked})
	}
	if len(t.Rows) == 0 {
		return nil
	}
	return t.Print(w)
}

// command returns the command that deletes a manifest.
func command(format, repository, digest string) string {
	switch format {
	case "regctl":
		return "regctl manifest delete " + cli.Quote(repository+"@"+digest)
	case "harbor":
		host, path, _ := strings.Cut(repository, "/")
		project, name, _ := strings.Cut(path, "/")
		// Harbor requires the slashes in a repository's name to be encoded twice.
		at := "https://" + host + "/api/v2.0/projects/" + url.PathEscape(project) + "/repositories/" + url.PathEscape(url.PathEscape(name)) + "/artifacts/" + digest
		return "curl --fail --silent --show-error --netrc --request DELETE " + cli.Quote(at)
	}
	return "crane delete " + cli.Quote(repository+"@"+digest)
}
