package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// forbidden says what each package, with everything below it, must not know,
// however indirectly.
var forbidden = []struct {
	room    string
	alone   bool // the package itself, without those below it
	direct  bool // what it imports itself: what others import is their affair
	why     string
	except  []string // packages of the room that have a rule of their own
	imports []string
}{
	{room: "github.com/tidewaiter/tidewaiter/db", alone: true, why: "the engine is SQL, revisions and nothing of Kubernetes", imports: []string{"k8s.io"}},
	{room: "github.com/tidewaiter/tidewaiter/db", why: "the engine knows nothing of Kubernetes or of who uses it",
		imports: []string{"k8s.io/kubernetes", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/db/internal/sqlite", why: "a connection knows nothing of what is stored", imports: []string{"k8s.io", "github.com/tidewaiter/tidewaiter/db/datafile"}},
	{room: "github.com/tidewaiter/tidewaiter/db/datafile", why: "the file knows nothing of the engine that has it open", imports: []string{"k8s.io", "github.com/prometheus"}},
	{room: "github.com/tidewaiter/tidewaiter/db/backup", alone: true, why: "a backup is made of files, whoever has them open", imports: []string{"k8s.io"}},
	{room: "github.com/tidewaiter/tidewaiter/db/internal/changelog", why: "the feed knows no SQL: a Reader has what it dropped", imports: []string{"github.com/mattn/go-sqlite3", "k8s.io", "github.com/tidewaiter/tidewaiter/db/datafile"}},
	{room: "github.com/tidewaiter/tidewaiter/db/truth", why: "what several databases are copies of knows no database", imports: []string{"github.com/mattn/go-sqlite3", "k8s.io", "go.etcd.io"}},
	{room: "github.com/tidewaiter/tidewaiter/db/etcd", why: "keys in etcd know no SQL and nothing of what is stored", imports: []string{"github.com/mattn/go-sqlite3", "k8s.io"}},
	{room: "github.com/tidewaiter/tidewaiter", direct: true, why: "only the store in etcd knows etcd's client", except: []string{"github.com/tidewaiter/tidewaiter/db/etcd"}, imports: []string{"go.etcd.io"}},
	{room: "github.com/tidewaiter/tidewaiter/db/kubestore", direct: true, why: "it is storage.Interface: requests and answers are of web/storedjson",
		imports: []string{"net/http", "compress/gzip", "k8s.io/apiserver/pkg/endpoints/handlers", "k8s.io/apiserver/pkg/endpoints/metrics", "github.com/klauspost/compress"}},
	{room: "github.com/tidewaiter/tidewaiter/imageapi", why: "the image group knows no SQL, no registries and no server",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/google/go-containerregistry/pkg/v1/remote", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/coreapi", why: "the core kinds know no images and no SQL",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/openshift/api/image", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/importer", why: "the importer knows no SQL and no handlers", except: []string{"github.com/tidewaiter/tidewaiter/importer/spool", "github.com/tidewaiter/tidewaiter/importer/checks"},
		imports: []string{"github.com/mattn/go-sqlite3", "k8s.io/apiserver", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/importer/pull", why: "reading from registries knows nothing of Images and of who imports", imports: []string{"k8s.io/apiserver", "github.com/tidewaiter/tidewaiter/importer/queue", "github.com/tidewaiter/tidewaiter/importer/spool", "github.com/tidewaiter/tidewaiter/importer/hostlimit"}},
	{room: "github.com/tidewaiter/tidewaiter/importer/spool", why: "pushes are kept in the database, whatever is made of them",
		imports: []string{"k8s.io/apiserver", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter/db/kubestore", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/importer/queue", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web/hooks"}},
	{room: "github.com/tidewaiter/tidewaiter/importer/checks", why: "checks are kept in a table of the database, whoever asks registries", imports: []string{"k8s.io/apiserver", "github.com/tidewaiter/tidewaiter/db/kubestore", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/coreapi"}},
	{room: "github.com/tidewaiter/tidewaiter/signatures", why: "verification knows no SQL and no handlers", except: []string{"github.com/tidewaiter/tidewaiter/signatures/policyapi"},
		imports: []string{"github.com/mattn/go-sqlite3", "k8s.io/apiserver", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/signatures/policyapi", why: "policies as API objects know no SQL and no server",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/imageapi/registry/image", why: "images ask streams through an interface",
		imports: []string{"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamtag", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimage", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreammapping"}},
	{room: "github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag", why: "tags of registries know no images and no streams",
		imports: []string{"github.com/tidewaiter/tidewaiter/imageapi/registry/image", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamtag", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimage", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreammapping"}},
	{room: "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream", why: "streams know images and tags of registries, and nothing that is made of streams",
		imports: []string{"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamtag", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimage", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreamimport", "github.com/tidewaiter/tidewaiter/imageapi/registry/imagestreammapping"}},
	{room: "github.com/tidewaiter/tidewaiter/imageapi/registry", why: "the resources know nothing of how they are put together", imports: []string{"github.com/tidewaiter/tidewaiter/imageapi/answers"}},
	{room: "github.com/tidewaiter/tidewaiter/cmd/internal/config", why: "clients read the configuration, too, so it knows no server", imports: []string{"github.com/mattn/go-sqlite3", "k8s.io/kubernetes", "github.com/tidewaiter/tidewaiter/cmd/internal/server", "github.com/tidewaiter/tidewaiter/db/datafile", "github.com/tidewaiter/tidewaiter/db/kubestore"}},
	{room: "github.com/tidewaiter/tidewaiter/cmd/internal/bulk", why: "an import asks an API, wherever that is", imports: []string{"github.com/mattn/go-sqlite3", "github.com/tidewaiter/tidewaiter/cmd/internal/server", "github.com/tidewaiter/tidewaiter/db/kubestore", "github.com/tidewaiter/tidewaiter/web/hooks"}},
	{room: leaves[0], why: "references are known to all, so they know nobody", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[1], why: "everybody reads files, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[2], why: "everybody warns, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[3], why: "it is what receivers, queue and worker tell each other, so it knows none of them", imports: []string{"net/http", "k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[4], why: "images and signatures are read with it, so it knows neither", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[5], why: "everybody shows text of strangers, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[7], why: "watches of all kinds are passed on with it, so it knows none", imports: []string{"github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[8], why: "objects of all kinds are shown with it, so it knows none", imports: []string{"github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[6], why: "definitions of all kinds are named with it, so it knows none", imports: []string{"github.com/openshift/api", "github.com/tidewaiter/tidewaiter"}},
	{room: leaves[9], why: "lists of all kinds are read with it, so it knows none", imports: []string{"github.com/openshift/api", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/web/console", why: "pages are made of answers of the API, by its JSON: they know no server and nothing behind the API",
		imports: []string{"github.com/tidewaiter/tidewaiter/cmd", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web/hooks", "github.com/tidewaiter/tidewaiter/web/limits", "k8s.io/apiserver", "k8s.io/client-go", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/web", why: "the server knows no SQL and no rules of any kind it serves",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/coreapi"}},
}

// leaves are the packages that every room may know. References are what the rooms tell each other
// of; whom a file belongs to is asked by all that read one; whatever strangers cause is warned of
// in one way; a push is passed on from the receiver to the queue to the worker; registries are read
// in one way; text of strangers is made printable in one way; OpenAPI definitions get their names
// in one way; what a watch tells is changed in one way, objects become tables in one way, and lists
// are read in one way. They may know nothing but each other, so nothing can be reached through
// them.
var leaves = []string{
	"github.com/tidewaiter/tidewaiter/imageapi/reference",
	"github.com/tidewaiter/tidewaiter/db/trusted",
	"github.com/tidewaiter/tidewaiter/web/warn",
	"github.com/tidewaiter/tidewaiter/importer/push",
	"github.com/tidewaiter/tidewaiter/importer/oci",
	"github.com/tidewaiter/tidewaiter/imageapi/printable",
	"github.com/tidewaiter/tidewaiter/imageapi/openapi/modelname",
	"github.com/tidewaiter/tidewaiter/imageapi/relay",
	"github.com/tidewaiter/tidewaiter/imageapi/table",
	"github.com/tidewaiter/tidewaiter/coreapi/pages",
	"github.com/tidewaiter/tidewaiter/coreapi/pages/pagestest", // of tests
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func TestRoomsKnowOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	packages := listPackages(t, "github.com/tidewaiter/tidewaiter/...")
	for _, rule := range forbidden {
		t.Run(strings.TrimPrefix(rule.room, "github.com/tidewaiter/tidewaiter/"), func(t *testing.T) {
			seen := 0
			for path := range packages {
				if !within(path, rule.room) || rule.alone && path != rule.room || slices.ContainsFunc(rule.except, func(e string) bool { return within(path, e) }) {
					continue
				}
				seen++
				for _, f := range rule.imports {
					if rule.direct {
						if slices.ContainsFunc(packages[path].Imports, func(i string) bool { return within(i, f) }) {
							t.Errorf("%s: %s imports %s", rule.why, path, f)
						}
						continue
					}
					if chain := findImport(packages, path, f); chain != nil {
						t.Errorf("%s:\n  %s", rule.why, strings.Join(chain, "\n  imports "))
					}
				}
			}
			if seen == 0 {
				t.Errorf("%s has no packages: the rule checks nothing", rule.room)
			}
		})
	}
}

func TestNobodyImportsCommands(t *testing.T) {
	t.Parallel()
	for path, p := range listPackages(t, "github.com/tidewaiter/tidewaiter/...") {
		for _, i := range p.Imports {
			if within(i, "github.com/tidewaiter/tidewaiter/cmd") && !within(path, "github.com/tidewaiter/tidewaiter/cmd") {
				t.Errorf("%s imports %s: wiring is not to be imported", path, i)
			}
		}
	}
}

// The picture of docs/design/rooms.md has an arrow for each folder that knows another, but by a
// leaf, and no other arrow.
func TestPictureOfRooms(t *testing.T) {
	t.Parallel()
	const module = "github.com/tidewaiter/tidewaiter/"
	room := func(path string) string {
		name, _, _ := strings.Cut(strings.TrimPrefix(path, module), "/")
		return name
	}
	var have []string
	for path, p := range listPackages(t, module+"...") {
		for _, i := range p.Imports {
			if !strings.HasPrefix(path, module) || !strings.HasPrefix(i, module) || slices.Contains(leaves, i) || room(i) == room(path) {
				continue
			}
			have = append(have, room(path)+" --> "+room(i))
		}
	}
	page, err := os.ReadFile("../../docs/design/rooms.md")
	if err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for line := range strings.Lines(string(page)) {
		if line = strings.TrimSpace(line); strings.Contains(line, " --> ") {
			drawn = append(drawn, line)
		}
	}
	slices.Sort(have)
	slices.Sort(drawn)
	if have = slices.Compact(have); !slices.Equal(have, drawn) {
		t.Errorf("the folders know each other so:\n  %s\nand the picture has:\n  %s", strings.Join(have, "\n  "), strings.Join(drawn, "\n  "))
	}
}

func within(path, root string) bool { return path == root || strings.HasPrefix(path, root+"/") }

// listPackages asks go list for the packages of pattern and everything they
// need to be built. Test files do not count.
func listPackages(t *testing.T, pattern string) map[string]goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports", pattern).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := map[string]goPackage{}
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p goPackage
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
	if len(packages) == 0 {
		t.Fatal("go list found no packages")
	}
	return packages
}

// findImport is the shortest chain of imports from one package to a package
// within root that is not a leaf, or nil.
func findImport(packages map[string]goPackage, from, root string) []string {
	cameFrom := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from && !slices.Contains(leaves, at) && within(at, root) {
			var chain []string
			for p := at; p != ""; p = cameFrom[p] {
				chain = append([]string{p}, chain...)
			}
			return chain
		}
		for _, next := range packages[at].Imports {
			if _, seen := cameFrom[next]; !seen {
				cameFrom[next] = at
				queue = append(queue, next)
			}
		}
	}
	return nil
}

func TestFindImportPrintsTheWay(t *testing.T) {
	packages := map[string]goPackage{
		"a": {Imports: append([]string{"b", "c"}, leaves...)}, "b": {Imports: []string{"d"}}, "c": {Imports: []string{"b"}}, "d": {Imports: []string{"x/y"}},
	}
	if got := fmt.Sprint(findImport(packages, "a", "x")); got != "[a b d x/y]" {
		t.Errorf("chain %s", got)
	}
	if got := findImport(packages, "a", "z"); got != nil {
		t.Errorf("chain %v to a package that is not there", got)
	}
	if got := findImport(packages, "a", "github.com/tidewaiter/tidewaiter/imageapi"); got != nil {
		t.Errorf("chain %v to a leaf", got)
	}
}
