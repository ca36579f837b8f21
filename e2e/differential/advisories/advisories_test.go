//go:build nightly

package advisories

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/package-url/packageurl-go"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/advisories"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/sbom"
)

// ecosystem has packages of which there are documents here.
type ecosystem struct {
	name string // in documents, with the release
	// purl is a package URL of a package, without its version, and document its name in documents,
	// each with %s for the number of the document
	purl, document, qualifiers string
	kind                       string   // of its ranges
	versions                   []string // in their order
	other                      string   // what sets it apart from another one of the same name
}

var ecosystems = []ecosystem{
	{"npm", "pkg:npm/left-%s", "left-%s", "", "SEMVER", strings.Fields("0.9.9 1.0.0-alpha.1 1.0.0-beta.2 1.0.0-beta.11 1.0.0 1.0.1 1.2.0 1.9.0 1.10.0 2.0.0-rc.1 2.0.0 2.0.1"), ""},
	{"npm", "pkg:npm/%40scope/core-%s", "@scope/core-%s", "", "SEMVER", strings.Fields("6.9.0 7.0.0-beta.4 7.0.0 7.1.0 7.2.0 7.9.0 7.10.0 7.11.0 8.0.0-alpha.0 8.0.0 8.0.1 8.1.0"), " with a scope"},
	{"PyPI", "pkg:pypi/flask-%s", "flask-%s", "", "ECOSYSTEM", strings.Fields("0.12 1.0.dev1 1.0a1 1.0b2 1.0rc1 1.0 1.0.post1 1.0.1 1.1 1.10 2.0 1!0.5"), ""},
	{"Go", "pkg:golang/github.com/Azure/%s", "github.com/Azure/%s", "", "SEMVER", strings.Fields("v0.0.0-20190108225652-1e06a53dbb7e v0.0.0-20220722155237-a158d28d115b v0.1.0 v0.2.0 v0.7.0 v0.10.0 v0.17.0 v0.23.0 v1.0.0 v1.0.1 v1.1.0 v2.0.0+incompatible"), ""},
	{"Maven", "pkg:maven/org.example.logging/log-%s", "org.example.logging:log-%s", "", "ECOSYSTEM", strings.Fields("2.0-alpha1 2.0-beta9 2.0-rc1 2.0 2.0.1 2.3.2 2.12.1 2.12.2 2.14.1 2.15.0-SNAPSHOT 2.15.0 2.16.0"), ""},
	{"crates.io", "pkg:cargo/tokio-%s", "tokio-%s", "", "SEMVER", strings.Fields("0.1.22 0.2.0-alpha.6 0.2.0 0.2.22 0.2.23 1.0.0 1.0.1 1.8.1 1.8.4 1.18.0 1.20.0 2.0.0"), ""},
	{"NuGet", "pkg:nuget/Example.Json-%s", "Example.Json-%s", "", "ECOSYSTEM", strings.Fields("9.0.1 10.0.1 11.0.1-beta1 11.0.1-beta3 11.0.1 11.0.2 12.0.1 12.0.3 13.0.1-beta1 13.0.1 13.0.1.1 13.0.2"), ""},
	{"RubyGems", "pkg:gem/rails-%s", "rails-%s", "", "ECOSYSTEM", strings.Fields("4.2.11 5.0.0.beta1 5.0.0.rc1 5.0.0 5.2.4.2 5.2.4.3 6.0.3 6.0.3.1 6.1.0 6.1.7.10 7.0.0.alpha2 7.0.0"), ""},
	{"Packagist", "pkg:composer/vendor/shop-%s", "vendor/shop-%s", "", "ECOSYSTEM", strings.Fields("2.3.7 2.4.3-beta1 2.4.3-beta10 2.4.3-RC1 2.4.3 2.4.3-p1 2.4.3-p2 2.4.4 2.4.4-p1 2.4.4-p10 2.4.5 2.4.6"), ""},
	{"Hex", "pkg:hex/plug_%s", "plug_%s", "", "ECOSYSTEM", strings.Fields("1.0.3 1.1.0-rc.1 1.1.0 1.1.6 1.1.7 1.2.0 1.2.2 1.2.3 1.3.0 1.3.2 1.10.0 2.0.0"), ""},
	{"Pub", "pkg:pub/http_%s", "http_%s", "", "ECOSYSTEM", strings.Fields("0.12.2 0.13.0-dev.1 0.13.0-nullsafety.0 0.13.0 0.13.1 0.13.2 0.13.2+1 0.13.2+2 0.13.3 1.0.0 1.0.1 1.10.0"), ""},
	{"CRAN", "pkg:cran/readr%s", "readr%s", "", "ECOSYSTEM", strings.Fields("0.1 0.1-1 0.1-4 0.1.5 0.2 0.2.1 0.10 1.0 1.0.0 1.0.1 1.1-2 2.0"), ""},
	{"Hackage", "pkg:hackage/aeson-%s", "aeson-%s", "", "ECOSYSTEM", strings.Fields("0.11.3.0 1 1.0 1.0.0 1.0.0.0 1.0.1.0 1.2 1.10 2.0 2.0.0.0 2.0.1 3.0"), ""},
	{"Debian:12", "pkg:deb/debian/src%s", "src%s", "distro=debian-12&arch=amd64", "ECOSYSTEM", strings.Fields("0.9-1 1.0~rc1-1 1.0-1 1.0-1+b1 1.0-1+deb12u1 1.0-1+deb12u2 1.0-2 1.0.1-1 1.0.1+dfsg-1 1.10-1 1:0.5-1 1:1.0-1"), ""},
	{"Ubuntu:24.04:LTS", "pkg:deb/ubuntu/src%s", "src%s", "distro=ubuntu-24.04&arch=amd64", "ECOSYSTEM", strings.Fields("0.9-1 1.0~rc1-1ubuntu1 1.0-1 1.0-1build1 1.0-1ubuntu0.1 1.0-1ubuntu0.10 1.0-2 1.0.1-1 1.0.1+dfsg-1 1.10-1 1:0.5-1 1:1.0-1"), ""},
	{"Debian:12", "pkg:deb/debian/lib%s1", "lib%s", "distro=debian-12&upstream=lib%s", "ECOSYSTEM", strings.Fields("0.9-1 1.0~rc1-1 1.0-1 1.0-1+b1 1.0-1+deb12u1 1.0-1+deb12u2 1.0-2 1.0.1-1 1.0.1+dfsg-1 1.10-1 1:0.5-1 1:1.0-1"), " built from a source package of another name"},
	{"Rocky Linux:9", "pkg:rpm/rocky/bin%s", "bin%s", "distro=rocky-9.4&arch=x86_64", "ECOSYSTEM", strings.Fields("0.9-1.el9 1.0~rc1-1.el9 1.0-1.el9 1.0-1.el9_2 1.0-1.el9_2.1 1.0-6.el9 1.0-27.el9 1.0.1-1.el9 1.0.1^git1-1.el9 1.10-1.el9 1:0.5-1.el9 1:1.0-1.el9"), ""},
	{"Red Hat:enterprise_linux:9::baseos", "pkg:rpm/redhat/rh%s", "rh%s", "distro=rhel-9.4&arch=x86_64", "ECOSYSTEM", strings.Fields("0.9-1.el9 1.0~rc1-1.el9 1.0-1.el9 1.0-1.el9_2 1.0-1.el9_2.1 1.0-6.el9 1.0-27.el9 1.0.1-1.el9 1.0.2-1.el9 1.10-1.el9 1:0.5-1.el9 1:1.0-1.el9"), ""},
	{"Alpine:v3.20", "pkg:apk/alpine/src%s", "src%s", "distro=alpine-3.20.3&arch=x86_64", "ECOSYSTEM", strings.Fields("1.0_alpha1-r0 1.0_beta2-r0 1.0_rc1-r0 1.0-r0 1.0-r1 1.0-r10 1.0_p1-r0 1.0.1-r0 1.0.1a-r0 1.2-r0 1.10-r0 3.1.4-r5"), ""},
}

// shape is a form of a document about versions in their order.
type shape struct {
	name     string
	affected func(e ecosystem, name string) []any
	// withdrawn documents are about nothing.
	withdrawn bool
}

type object = map[string]any

func (e ecosystem) about(name string, ranges []any, versions ...string) object {
	o := object{"package": object{"ecosystem": e.name, "name": name}}
	if ranges != nil {
		o["ranges"] = ranges
	}
	if versions != nil {
		o["versions"] = versions
	}
	return o
}

// in is a range. Its events are introduced=2: the version with the number 2; or 0.
func (e ecosystem) in(kind, events string) object {
	var all []any
	for event := range strings.FieldsSeq(events) {
		what, number, _ := strings.Cut(event, "=")
		version := number
		var n int
		if _, err := fmt.Sscanf(number, "#%d", &n); err == nil {
			version = e.written(n)
		}
		all = append(all, object{what: version})
	}
	return object{"type": kind, "events": all}
}

// written is a version as documents of the ecosystem have it.
func (e ecosystem) written(n int) string {
	if e.name == "Go" {
		return strings.TrimPrefix(e.versions[n], "v")
	}
	return e.versions[n]
}

func one(events string) func(e ecosystem, name string) []any {
	return func(e ecosystem, name string) []any { return []any{e.about(name, []any{e.in(e.kind, events)})} }
}

var shapes = []shape{
	{"before a fix", one("introduced=0 fixed=#6"), false},
	{"before a fix that is a prerelease", one("introduced=0 fixed=#2"), false},
	{"from a version to a fix", one("introduced=#3 fixed=#8"), false},
	{"every version", one("introduced=0"), false},
	{"from a version on", one("introduced=#5"), false},
	{"to the last affected one", one("introduced=0 last_affected=#6"), false},
	{"one version", one("introduced=#7 last_affected=#7"), false},
	{"two branches in one range", one("introduced=#1 fixed=#3 introduced=#6 fixed=#9"), false},
	{"events in another order", one("fixed=#9 introduced=#6 fixed=#3 introduced=#1"), false},
	{"fixed, and broken again at once", one("introduced=0 fixed=#4 introduced=#4 fixed=#7"), false},
	{"last affected, then a fix", one("introduced=0 last_affected=#3 introduced=#6 fixed=#8"), false},
	{"two ranges", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in(e.kind, "introduced=#1 fixed=#4"), e.in(e.kind, "introduced=#8 last_affected=#9")})}
	}, false},
	{"ranges that overlap", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in(e.kind, "introduced=#1 fixed=#6"), e.in(e.kind, "introduced=#4 fixed=#9")})}
	}, false},
	{"twice the same package", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in(e.kind, "introduced=0 fixed=#3")}), e.about(name, []any{e.in(e.kind, "introduced=#7 fixed=#10")})}
	}, false},
	{"other packages beside", func(e ecosystem, name string) []any {
		return []any{e.about(name+"-other", []any{e.in(e.kind, "introduced=0")}), e.about(name, []any{e.in(e.kind, "introduced=#2 fixed=#5")})}
	}, false},
	{"a list of versions", func(e ecosystem, name string) []any {
		return []any{e.about(name, nil, e.written(2), e.written(5), e.written(8))}
	}, false},
	{"a list and a range", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in(e.kind, "introduced=#8 fixed=#10")}, e.written(0), e.written(3))}
	}, false},
	{"a limit", one("introduced=#2 limit=#6"), false},
	{"a fix and a limit", one("introduced=#2 fixed=#9 limit=#6"), false},
	{"commits beside a range", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in(e.kind, "introduced=#2 fixed=#6"), e.in("GIT", "introduced=0 fixed=4fd3f4d3a3b0f1a4a7b2b5b3f0b1d1e0c6a7a3f2")})}
	}, false},
	{"commits before a range", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in("GIT", "introduced=0 fixed=4fd3f4d3a3b0f1a4a7b2b5b3f0b1d1e0c6a7a3f2"), e.in(e.kind, "introduced=#2 fixed=#6")})}
	}, false},
	{"commits and a list", func(e ecosystem, name string) []any {
		return []any{e.about(name, []any{e.in("GIT", "introduced=0 fixed=4fd3f4d3a3b0f1a4a7b2b5b3f0b1d1e0c6a7a3f2")}, e.written(4), e.written(6))}
	}, false},
	{"withdrawn", one("introduced=0"), true},
	{"another release", func(e ecosystem, name string) []any {
		e.name = map[string]string{"Debian:12": "Debian:11", "Ubuntu:24.04:LTS": "Ubuntu:22.04:LTS", "Alpine:v3.20": "Alpine:v3.2"}[e.name]
		if e.name == "" {
			return nil
		}
		return []any{e.about(name, []any{e.in(e.kind, "introduced=0")})}
	}, false},
	{"every release", func(e ecosystem, name string) []any {
		e.name, _, _ = strings.Cut(e.name, ":")
		return []any{e.about(name, []any{e.in(e.kind, "introduced=#2 fixed=#7")})}
	}, false},
	{"another ecosystem", func(e ecosystem, name string) []any {
		if e.name = "RubyGems"; strings.HasPrefix(name, "rails") {
			e.name = "npm"
		}
		return []any{e.about(name, []any{e.in(e.kind, "introduced=0")})}
	}, false},
}

// document is an advisory, and about what it is.
type document struct {
	id, ecosystem, shape string
	content              []byte
}

// documents are those of all shapes of all ecosystems, each about a package of its own.
func documents(t *testing.T) (all []document) {
	t.Helper()
	for i, e := range ecosystems {
		for j, s := range shapes {
			affected := s.affected(e, fmt.Sprintf(e.document, fmt.Sprint(j)))
			if affected == nil {
				continue
			}
			o := object{
				"schema_version": "1.7.3", "id": fmt.Sprintf("OSV-%d-%d", i, j), "modified": "2026-01-01T00:00:00Z", "published": "2025-12-01T00:00:00Z",
				"aliases": []string{fmt.Sprintf("CVE-2026-%d%03d", i, j)}, "summary": s.name, "affected": affected,
			}
			if s.withdrawn {
				o["withdrawn"] = "2026-01-02T00:00:00Z"
			}
			content, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, document{o["id"].(string), e.name + e.other, s.name, content})
		}
	}
	return all
}

// list is the packages of all ecosystems in the versions with a number, as CycloneDX or SPDX.
func list(t *testing.T, n int, isSPDX bool) []byte {
	t.Helper()
	var all []object
	add := func(text, name string) {
		purl, err := packageurl.FromString(text)
		if err != nil {
			t.Fatal(text, err)
		}
		if isSPDX {
			all = append(all, object{
				"SPDXID": fmt.Sprintf("SPDXRef-%d", len(all)), "name": name, "versionInfo": purl.Version, "downloadLocation": "NOASSERTION",
				"externalRefs": []object{{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": text}},
			})
			return
		}
		all = append(all, object{"type": "library", "bom-ref": fmt.Sprint(len(all)), "name": name, "version": purl.Version, "purl": text})
	}
	for _, e := range ecosystems {
		for j := range shapes {
			version := strings.NewReplacer("+", "%2B", ":", "%3A", "!", "%21", "^", "%5E").Replace(e.versions[n])
			name := fmt.Sprintf(e.document, fmt.Sprint(j))
			if e.other != "" && e.name == "Debian:12" {
				name += "1"
			}
			add(strings.ReplaceAll(e.purl+"@"+version+"?"+e.qualifiers, "%s", fmt.Sprint(j)), name)
		}
	}
	add("pkg:deb/ubuntu/libc6@2.39-0ubuntu8?distro=ubuntu-24.04&upstream=glibc", "libc6")
	add("pkg:apk/alpine/musl-utils@1.2.5-r0?distro=alpine-3.20.3&upstream=musl", "musl-utils")
	bom := object{"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": all}
	if isSPDX {
		bom = object{
			"spdxVersion": "SPDX-2.3", "SPDXID": "SPDXRef-DOCUMENT", "dataLicense": "CC0-1.0", "name": "image", "documentNamespace": "https://example.com/image",
			"creationInfo": object{"created": "2026-01-01T00:00:00Z", "creators": []string{"Tool: test"}}, "packages": all,
		}
	}
	content, err := json.Marshal(bom)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// Answers about a list of packages by the id of the document; one that is not there is not about
// the list.
const (
	affected = "affected"
	unknown  = "unknown"
)

// ours is what Tidewaiter says of a list of packages.
func ours(t *testing.T, all []document, content []byte) map[string]string {
	t.Helper()
	read, err := sbom.Read(content, "")
	if err != nil || read.Incomplete != "" {
		t.Fatal(err, read)
	}
	set := advisories.NewSet()
	for _, d := range all {
		if err := advisories.Read(bytes.NewReader(d.content), func(a *advisories.Advisory, err error) error {
			if err == nil {
				err = set.Add(a)
			}
			return err
		}); err != nil {
			t.Fatalf("%s of %s: %v", d.shape, d.ecosystem, err)
		}
	}
	var source packages.Source
	if err := read.Fill(&source); err != nil {
		t.Fatal(err)
	}
	found, err := set.Find(&packages.ImagePackages{Sources: []packages.Source{source}})
	if err != nil {
		t.Fatal(err)
	}
	answers := map[string]string{}
	for _, f := range found {
		if f.Unknown == "" {
			answers[f.ID] = affected
		} else if answers[f.ID] == "" {
			answers[f.ID] = unknown
		}
	}
	return answers
}

// scanner is the program osv-scanner.
func scanner(t *testing.T) string {
	t.Helper()
	program, err := filepath.Abs(filepath.Join("..", "..", ".tools", "bin", "osv-scanner"))
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: build it with  go run -C e2e ./tools osv-scanner", err)
	}
	return program
}

// theirs is what osv-scanner says of lists of packages, which are files of a folder.
func theirs(t *testing.T, all []document, dir string, names []string) map[string]map[string]string {
	t.Helper()
	archives := map[string][]document{"GIT": nil}
	for _, d := range all { // as osv.dev serves them, with what is about several ecosystems in each
		var read advisories.Advisory
		if err := json.Unmarshal(d.content, &read); err != nil {
			t.Fatal(err)
		}
		for _, a := range read.Affected {
			name, _, _ := strings.Cut(a.Package.Ecosystem, ":")
			archives[name] = append(archives[name], d)
		}
	}
	for name, documents := range archives {
		folder := filepath.Join(dir, "db", "osv-scalibr", name)
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(filepath.Join(folder, "all.zip"))
		if err != nil {
			t.Fatal(err)
		}
		z := zip.NewWriter(f)
		for _, d := range documents {
			w, err := z.Create(d.id + ".json")
			if err == nil {
				_, err = w.Write(d.content)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"scan", "source", "--offline", "--local-db-path", filepath.Join(dir, "db"), "--all-packages", "--format", "json"}
	for _, name := range names {
		args = append(args, "--lockfile", filepath.Join(dir, name))
	}
	cmd := exec.CommandContext(t.Context(), scanner(t), args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != 1 { // vulnerabilities were found
		t.Fatalf("osv-scanner: %v\n%s", err, &stderr)
	}
	var out struct {
		Results []struct {
			Source   struct{ Path string }
			Packages []struct {
				Package         struct{ Name, Version, Ecosystem string }
				Vulnerabilities []struct{ ID string }
			}
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &out); err != nil {
		t.Fatal(err)
	}
	answers := map[string]map[string]string{}
	for _, r := range out.Results {
		of := map[string]string{}
		for _, p := range r.Packages {
			for _, v := range p.Vulnerabilities {
				of[v.ID] = affected
			}
		}
		answers[filepath.Base(r.Source.Path)] = of
	}
	return answers
}

// difference is an answer that is not the same. In an explanation, "" is any
// ecosystem, shape or format.
type difference struct{ ecosystem, shape, format, ours, theirs string }

func (d difference) is(of difference) bool {
	same := func(a, b string) bool { return a == "" || a == b }
	return same(d.ecosystem, of.ecosystem) && same(d.shape, of.shape) && same(d.format, of.format) && d.ours == of.ours && d.theirs == of.theirs
}

// explained are the differences from osv-scanner that are right, or that we accept.
var explained = []explanation{
	{difference{"Debian:12 built from a source package of another name", "", "", affected, ""}, "it does not read the source package in a package URL, and advisories name source packages"},
	{difference{"Rocky Linux:9", "", "", affected, ""}, "it finds no ecosystem for a package URL of RPM"},
	{difference{"Red Hat:enterprise_linux:9::baseos", "", "", affected, ""}, "it finds no ecosystem for a package URL of RPM"},
	{difference{"Hackage", "", "", affected, ""}, "it finds no ecosystem for a package URL of Hackage"},
	{difference{"npm with a scope", "", "SPDX", affected, ""}, "it takes the name without the scope from SPDX"},
	{difference{"Packagist", "", "SPDX", affected, ""}, "it takes the name without the vendor from SPDX"},
	{difference{"Go", "", "SPDX", affected, ""}, "it takes the name without its first parts from SPDX"},
	{difference{"Maven", "", "SPDX", affected, ""}, "it takes the name without the group from SPDX"},
	{difference{"Go", "a list of versions", "CycloneDX", affected, ""}, "it compares v1.0.0 with 1.0.0, which documents list"},
	{difference{"Go", "a list and a range", "CycloneDX", affected, ""}, "it compares v1.0.0 with 1.0.0, which documents list"},
	{difference{"Go", "commits and a list", "CycloneDX", affected, ""}, "it compares v1.0.0 with 1.0.0, which documents list"},
	{difference{"", "commits before a range", "", affected, ""}, "it does not look further than a range of commits"},
	{difference{"", "a limit", "", "", affected}, "it does not read limits"},
	{difference{"", "a fix and a limit", "", "", affected}, "it does not read limits"},
}

type explanation struct {
	difference
	why string
}

// TestLikeOSVScanner: what advisories touch is what osv-scanner says of the same lists of packages,
// but for what is explained.
func TestLikeOSVScanner(t *testing.T) {
	all := documents(t)
	dir := t.TempDir()
	lists := map[string][]byte{}
	for n := range ecosystems[0].versions {
		lists[fmt.Sprintf("%02d.cdx.json", n)] = list(t, n, false)
		lists[fmt.Sprintf("%02d.spdx.json", n)] = list(t, n, true)
	}
	names := slices.Sorted(maps.Keys(lists))
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), lists[name], 0o600); err != nil {
			t.Fatal(err)
		}
	}
	compared, same, touched := 0, 0, 0
	counts := make([]int, len(explained))
	unexplained := map[difference][]string{}
	scanned := theirs(t, all, dir, names)
	for _, name := range names {
		mine := ours(t, all, lists[name])
		format := "CycloneDX"
		if strings.HasSuffix(name, ".spdx.json") {
			format = "SPDX"
		}
		for _, d := range all {
			compared++
			got := difference{d.ecosystem, d.shape, format, mine[d.id], scanned[name][d.id]}
			if got.ours == affected {
				touched++
			}
			if got.ours == got.theirs {
				same++
				continue
			}
			i := slices.IndexFunc(explained, func(e explanation) bool { return e.is(got) })
			if i < 0 {
				unexplained[got] = append(unexplained[got], name)
				continue
			}
			counts[i]++
		}
	}
	t.Logf("%d documents × %d lists of %d packages: %d answers, %d the same, %d of them affected", len(all), len(names), len(ecosystems)*len(shapes)+2, compared, same, touched)
	for i, e := range explained {
		t.Logf("%6d %q %q %q: we say %q, osv-scanner says %q: %s", counts[i], e.ecosystem, e.shape, e.format, e.ours, e.theirs, e.why)
		if counts[i] == 0 {
			t.Errorf("nothing differs any more because %s", e.why)
		}
	}
	for got, where := range unexplained {
		t.Errorf("%s, %s: we say %q, and osv-scanner says %q of %v", got.ecosystem, got.shape, got.ours, got.theirs, where)
	}
}
