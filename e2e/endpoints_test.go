package e2e

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// endpointTable lists every endpoint that must work: resource, verb, path,
// operation, query parameters, body and responses, with a line of headings.
const endpointTable = "testdata/api-endpoints.tsv"

// endpoint is a row of the table.
type endpoint struct {
	resource, verb, path string
	parameters           []string
	codes                []string // of success
	returns              string   // the kind of a success, "string" for text
}

func (e endpoint) String() string { return e.verb + " " + e.path }

// form is what kind of operation an endpoint is; checks differ by it.
type form string

const (
	list             form = "list"
	watchEvents      form = "watch"
	read             form = "read"
	create           form = "create"
	replace          form = "replace"
	patch            form = "patch"
	remove           form = "delete"
	removeCollection form = "delete collection"
	podLog           form = "log"
)

func (e endpoint) form() form {
	switch {
	case strings.Contains(e.path, "/watch/"):
		return watchEvents
	case strings.HasSuffix(e.path, "/log"):
		return podLog
	}
	one := strings.Contains(e.path, "{name}")
	switch e.verb {
	case "GET":
		if one {
			return read
		}
		return list
	case "POST":
		return create
	case "PUT":
		return replace
	case "PATCH":
		return patch
	case "DELETE":
		if one {
			return remove
		}
		return removeCollection
	}
	return form(e.verb)
}

// writes says whether the endpoint takes dryRun.
func (e endpoint) writes() bool { return e.verb != "GET" }

// subresource is what follows the name in the path.
func (e endpoint) subresource() string {
	_, after, _ := strings.Cut(e.path, "{name}")
	return strings.TrimPrefix(after, "/")
}

// success reads "200, 201, 202 Pod; 401".
var success = regexp.MustCompile(`^([0-9, ]+) (\w+); 401$`)

func readEndpoints(t *testing.T) []endpoint {
	t.Helper()
	text, err := os.ReadFile(endpointTable)
	if err != nil {
		t.Fatal(err)
	}
	var table []endpoint
	for _, row := range lines(string(text))[1:] {
		columns := strings.Split(row, "\t")
		if len(columns) != 7 {
			t.Fatalf("%s: %d columns in %q", endpointTable, len(columns), row)
		}
		match := success.FindStringSubmatch(columns[6])
		if match == nil {
			t.Fatalf("%s: unreadable responses %q", endpointTable, columns[6])
		}
		table = append(table, endpoint{
			resource: columns[0], verb: columns[1], path: columns[2],
			parameters: strings.Split(columns[4], ","),
			codes:      strings.Split(match[1], ", "), returns: match[2],
		})
	}
	return table
}

// TestEndpoints walks every endpoint and every query parameter of it with a
// good value and a bad one, and every write with dryRun=All. It prints what was
// answered as a matrix.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	walkEndpoints(t, harness.StartServer(t, "--pod-logs-dir", logs), logs)
}

// walkEndpoints walks every endpoint of a server that has the logs of pods in a directory.
func walkEndpoints(t *testing.T, s *harness.Server, logs string) {
	table := readEndpoints(t)
	if len(table) != 63 {
		t.Fatalf("%s has %d endpoints, want 63", endpointTable, len(table))
	}
	caller := newCaller(t, s.Config(t))

	matrix := make([]string, len(table))
	var walks errgroup.Group
	walks.SetLimit(walkedAtATime)
	for i, e := range table {
		walks.Go(func() error {
			matrix[i] = walkEndpoint(t, caller, e, fmt.Sprintf("row-%d", i+1), logs)
			return nil
		})
	}
	_ = walks.Wait() // they fail tests
	t.Logf("endpoints and what they answered:\n%s", strings.Join(matrix, ""))
}

// walkedAtATime bounds the rows that are walked side by side. They mostly wait, for watches to end.
const walkedAtATime = 8

// walkEndpoint walks one endpoint, whose objects have the scope, and returns its part of the
// matrix.
func walkEndpoint(t *testing.T, caller *caller, e endpoint, scope, logs string) string {
	var matrix strings.Builder
	fmt.Fprintf(&matrix, "%-7s %s\n", e.resource, e)
	t.Run(strings.ReplaceAll(e.String(), "/", "∕"), func(t *testing.T) {
		p := &probe{T: t, caller: caller, endpoint: e, scope: scope, logs: logs}
		if p.kind = kinds[e.resource]; p.kind == nil {
			t.Fatalf("no check for resource %s", e.resource)
		}
		defer p.clear()
		fmt.Fprintf(&matrix, "          %-22s %s\n", "(no parameter)", p.plain())
		for _, parameter := range e.parameters {
			check, ok := checks[parameter]
			if !ok {
				t.Errorf("no check for parameter %s", parameter)
				continue
			}
			t.Run(parameter, func(t *testing.T) {
				p := *p
				p.T = t
				p.fresh()
				good, bad := check(&p)
				if good == "" || bad == "" {
					t.Errorf("no check for parameter %s of this form of operation (%s)", parameter, e.form())
				}
				fmt.Fprintf(&matrix, "          %-22s good: %-44s bad: %s\n", parameter, good, bad)
			})
		}
	})
	return matrix.String()
}
