// Package rooms tests which packages import each other, and that each thing is done in one way. It
// compiles none of them.
package rooms

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/google/go-containerregistry/pkg/v1/remote", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/web"}},
	{room: "github.com/tidewaiter/tidewaiter/coreapi", why: "the core kinds know the words of verdicts, no storage of images and no SQL",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/web"}},
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
	{room: "github.com/tidewaiter/tidewaiter/internal/config", why: "clients read the configuration, too, so it knows no server", imports: []string{"github.com/mattn/go-sqlite3", "k8s.io/kubernetes", "github.com/tidewaiter/tidewaiter/internal/server", "github.com/tidewaiter/tidewaiter/db/datafile", "github.com/tidewaiter/tidewaiter/db/kubestore"}},
	{room: "github.com/tidewaiter/tidewaiter/cmd/internal/bulk", why: "an import asks an API, wherever that is", imports: []string{"github.com/mattn/go-sqlite3", "github.com/tidewaiter/tidewaiter/internal/server", "github.com/tidewaiter/tidewaiter/db/kubestore", "github.com/tidewaiter/tidewaiter/web/hooks"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/reference", why: "references are known to all, so they know nobody", imports: []string{"k8s.io", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/trusted", why: "everybody reads files, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/printable", why: "everybody shows text of strangers, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/push", why: "it is what receivers, queue and worker tell each other, so it knows none of them", imports: []string{"k8s.io", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/oci", why: "images and signatures are read with it, so it knows neither", imports: []string{"k8s.io", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/internal/payload", why: "signed bytes are read in one way, by those who verify them and by those who use them, so it knows nobody", imports: []string{"k8s.io", "github.com/openshift/api", "github.com/sigstore"}},
	{room: "github.com/tidewaiter/tidewaiter", direct: true, why: "signed envelopes are read by package payload, and verified beside it: what another parser finds there, nobody has verified",
		except:  []string{"github.com/tidewaiter/tidewaiter/signatures/internal", "github.com/tidewaiter/tidewaiter/signatures/signaturestest", "github.com/tidewaiter/tidewaiter/signatures/policy", "github.com/tidewaiter/tidewaiter/signatures/trustedroot", "github.com/tidewaiter/tidewaiter/cmd/internal/demo", "github.com/tidewaiter/tidewaiter/e2e"},
		imports: []string{"github.com/sigstore", "github.com/in-toto", "github.com/secure-systems-lab", "github.com/notaryproject", "github.com/veraison/go-cose", "github.com/ProtonMail/go-crypto"}},
	{room: "github.com/tidewaiter/tidewaiter/web/console", why: "pages are made of answers of the API, by its JSON: they know no server and nothing behind the API",
		imports: []string{"github.com/tidewaiter/tidewaiter/cmd", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/coreapi", "github.com/tidewaiter/tidewaiter/web/hooks", "github.com/tidewaiter/tidewaiter/web/limits", "k8s.io/apiserver", "k8s.io/client-go", "github.com/openshift/api"}},
	{room: "github.com/tidewaiter/tidewaiter/web", why: "the server knows no SQL and no rules of any kind it serves",
		imports: []string{"github.com/mattn/go-sqlite3", "github.com/openshift/api", "github.com/tidewaiter/tidewaiter/db", "github.com/tidewaiter/tidewaiter/imageapi", "github.com/tidewaiter/tidewaiter/importer", "github.com/tidewaiter/tidewaiter/signatures", "github.com/tidewaiter/tidewaiter/coreapi"}},
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

// room is the room that a package belongs to: its first folder, or the one below internal/ that has
// a room of its own. What is left below internal/ is one room, the leaves.
func room(path string) string {
	folders := strings.Split(strings.TrimPrefix(path, module), "/")
	if folders[0] == "internal" && slices.Contains([]string{"cli", "config", "controllers", "image", "server"}, folders[1]) {
		return folders[0] + "/" + folders[1]
	}
	return folders[0]
}

// The picture of docs/design/rooms.md has every arrow that the imports have and no other, and the
// arrows form no circle.
func TestPictureOfRooms(t *testing.T) {
	t.Parallel()
	var have []string
	knows := map[string][]string{}
	for path, p := range listPackages(t, module+"...") {
		for _, i := range p.Imports {
			if strings.HasPrefix(path, module) && strings.HasPrefix(i, module) && room(i) != room(path) {
				have = append(have, room(path)+" --> "+room(i))
				knows[room(path)] = append(knows[room(path)], room(i))
			}
		}
	}
	page, err := os.ReadFile("../../docs/design/rooms.md")
	if err != nil {
		t.Fatal(err)
	}
	var drawn []string
	for line := range strings.Lines(string(page)) {
		from, to, arrow := strings.Cut(strings.TrimSpace(line), " --> ")
		for _, one := range strings.Split(to, " & ") {
			if arrow {
				drawn = append(drawn, from+" --> "+one)
			}
		}
	}
	slices.Sort(have)
	slices.Sort(drawn)
	if have = slices.Compact(have); !slices.Equal(have, drawn) {
		t.Errorf("the imports are:\n  %s\nand the picture has:\n  %s", strings.Join(have, "\n  "), strings.Join(drawn, "\n  "))
	}
	if circle := findCircle(knows); circle != nil {
		t.Errorf("rooms know each other in a circle: %s", strings.Join(circle, " --> "))
	}
}

// findCircle returns rooms that lead back to the first of them, or nil.
func findCircle(knows map[string][]string) []string {
	done := map[string]bool{}
	var visit func(way []string) []string
	visit = func(way []string) []string {
		at := way[len(way)-1]
		if i := slices.Index(way, at); i < len(way)-1 {
			return way[i:]
		}
		for _, next := range knows[at] {
			if !done[next] {
				if circle := visit(append(slices.Clip(way), next)); circle != nil {
					return circle
				}
			}
		}
		done[at] = true
		return nil
	}
	for from := range knows {
		if circle := visit([]string{from}); circle != nil {
			return circle
		}
	}
	return nil
}

func TestFindCircle(t *testing.T) {
	t.Parallel()
	if circle := findCircle(map[string][]string{"a": {"b", "c"}, "b": {"d"}, "c": {"d"}}); circle != nil {
		t.Errorf("circle %v", circle)
	}
	if circle := findCircle(map[string][]string{"a": {"b"}, "b": {"c"}, "c": {"b"}}); len(circle) != 3 {
		t.Errorf("circle %v", circle)
	}
}

// Signed envelopes are parsed by package payload alone. A second parser would read what nobody has
// verified: one of BuildKit's and cosign's SBOMs once took another key of the same JSON.
func TestNobodyElseParsesEnvelopes(t *testing.T) {
	t.Parallel()
	mentions := regexp.MustCompile(`(?i)dsse_?envelope|json:"(payloadType|keyid|predicate|targetArtifact)[",]`)
	allowed := []string{"internal/payload/", "signatures/internal/", "signatures/signaturestest/", "e2e/"}
	read := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file := strings.TrimPrefix(filepath.ToSlash(path), "../../")
		if slices.ContainsFunc(allowed, func(folder string) bool { return strings.HasPrefix(file, folder) }) {
			return nil
		}
		read++
		content, err := os.ReadFile(path)
		for n, line := range strings.Split(string(content), "\n") {
			if mentions.MatchString(line) {
				t.Errorf("%s:%d: %s: signed bytes are read by payload.ParseAttestation", file, n+1, strings.TrimSpace(line))
			}
		}
		return err
	})
	if err != nil || read < 100 {
		t.Errorf("%d files were read: %v", read, err)
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
// within root, or nil.
func findImport(packages map[string]goPackage, from, root string) []string {
	cameFrom := map[string]string{from: ""}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at != from && within(at, root) {
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
		"a": {Imports: []string{"b", "c"}}, "b": {Imports: []string{"d"}}, "c": {Imports: []string{"b"}}, "d": {Imports: []string{"x/y"}},
	}
	if got := fmt.Sprint(findImport(packages, "a", "x")); got != "[a b d x/y]" {
		t.Errorf("chain %s", got)
	}
	if got := findImport(packages, "a", "z"); got != nil {
		t.Errorf("chain %v to a package that is not there", got)
	}
}
