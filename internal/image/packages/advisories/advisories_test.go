package advisories

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
)

// events reads introduced:1 fixed:2.
func events(text string) (all []Event) {
	for field := range strings.FieldsSeq(text) {
		kind, version, _ := strings.Cut(field, ":")
		all = append(all, map[string]Event{
			"introduced": {Introduced: version}, "fixed": {Fixed: version}, "last_affected": {LastAffected: version}, "limit": {Limit: version},
		}[kind])
	}
	return all
}

// The cases are those of the format's evaluation algorithm,
// https://ossf.github.io/osv-schema/#evaluation, and of its examples.
func TestRanges(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		typ, kind, events string
		versions          string
		version           string
		is                bool
		fixed             string
		unknown           bool
	}{
		// every version, and those before a fix
		{"npm", "SEMVER", "introduced:0", "", "0.0.1", true, "", false},
		{"npm", "SEMVER", "introduced:0 fixed:1.0.2", "", "1.0.1", true, "1.0.2", false},
		{"npm", "SEMVER", "introduced:0 fixed:1.0.2", "", "1.0.2", false, "", false},
		{"npm", "SEMVER", "introduced:0 fixed:1.0.2", "", "1.0.2-alpha", true, "1.0.2", false},
		{"npm", "SEMVER", "introduced:1.0.0-0 fixed:1.0.2", "", "1.0.0-alpha", true, "1.0.2", false},
		// the last affected version is affected
		{"npm", "SEMVER", "introduced:0 last_affected:1.5.0", "", "1.5.0", true, "", false},
		{"npm", "SEMVER", "introduced:0 last_affected:1.5.0", "", "1.5.1", false, "", false},
		// several branches in one range, in any order
		{"golang", "SEMVER", "introduced:1.0.0 fixed:1.0.2 introduced:3.0.0 fixed:3.2.5", "", "v1.0.1", true, "1.0.2", false},
		{"golang", "SEMVER", "introduced:1.0.0 fixed:1.0.2 introduced:3.0.0 fixed:3.2.5", "", "v2.0.0", false, "", false},
		{"golang", "SEMVER", "introduced:1.0.0 fixed:1.0.2 introduced:3.0.0 fixed:3.2.5", "", "v3.1.0", true, "3.2.5", false},
		{"golang", "SEMVER", "fixed:3.2.5 introduced:3.0.0 fixed:1.0.2 introduced:1.0.0", "", "v3.1.0", true, "3.2.5", false},
		{"golang", "SEMVER", "fixed:3.2.5 introduced:3.0.0 fixed:1.0.2 introduced:1.0.0", "", "v0.9.0", false, "", false},
		// limits
		{"npm", "SEMVER", "introduced:0 limit:2.0.0", "", "1.9.0", true, "", false},
		{"npm", "SEMVER", "introduced:0 limit:2.0.0", "", "2.0.0", false, "", false},
		{"npm", "SEMVER", "introduced:0 limit:*", "", "99.0.0", true, "", false},
		{"npm", "SEMVER", "introduced:0 limit:1.0.0 limit:3.0.0", "", "2.0.0", true, "", false},
		// the list of versions counts beside the ranges
		{"pypi", "ECOSYSTEM", "introduced:2.0 fixed:2.1", "1.0 1.1", "1.1", true, "", false},
		{"pypi", "ECOSYSTEM", "introduced:2.0 fixed:2.1", "1.0 1.1", "1.2", false, "", false},
		{"pypi", "ECOSYSTEM", "introduced:2.0 fixed:2.1", "1.0 1.1", "2.0.post1", true, "2.1", false},
		{"golang", "", "", "1.0.0", "v1.0.0", true, "", false},
		{"npm", "", "", "1.0.0", "1.0.1", false, "", false},
		// ecosystems' orders
		{"maven", "ECOSYSTEM", "introduced:2.13.0 fixed:2.15.0", "", "2.14.1", true, "2.15.0", false},
		{"maven", "ECOSYSTEM", "introduced:0 fixed:2.15.0", "", "2.15.0-rc1", true, "2.15.0", false},
		{"deb", "ECOSYSTEM", "introduced:0 fixed:3.0.11-1~deb12u2", "", "3.0.11-1~deb12u1", true, "3.0.11-1~deb12u2", false},
		{"deb", "ECOSYSTEM", "introduced:0 fixed:1:1.2.11", "", "1.3", true, "1:1.2.11", false},
		{"rpm", "ECOSYSTEM", "introduced:0 fixed:1:3.0.7-27.el9", "", "1:3.0.7-27.el9", false, "", false},
		{"rpm", "ECOSYSTEM", "introduced:0 fixed:1:3.0.7-27.el9", "", "1:3.0.7-6.el9_2", true, "1:3.0.7-27.el9", false},
		{"apk", "ECOSYSTEM", "introduced:0 fixed:3.1.4-r5", "", "3.1.4-r1", true, "3.1.4-r5", false},
		{"gem", "ECOSYSTEM", "introduced:0 fixed:2.0.0", "", "2.0.0.beta1", true, "2.0.0", false},
		{"nuget", "ECOSYSTEM", "introduced:0 fixed:13.0.1", "", "12.0.3", true, "13.0.1", false},
		{"cargo", "SEMVER", "introduced:0.0.0-0 fixed:0.2.23", "", "0.2.22", true, "0.2.23", false},
		// an order that is not known, unless it is SemVer
		{"hex", "SEMVER", "introduced:1.0.0 fixed:1.2.0", "", "1.1.0", true, "1.2.0", false},
		{"conan", "ECOSYSTEM", "introduced:1.0.0 fixed:1.2.0", "", "1.1.0", false, "", true},
		{"conan", "ECOSYSTEM", "introduced:1.0.0 fixed:1.2.0", "1.1.0", "1.1.0", true, "", false},
		{"hackage", "ECOSYSTEM", "introduced:1.0.0 fixed:1.2.0", "", "1.1.0", true, "1.2.0", false},
		{"hex", "ECOSYSTEM", "introduced:1.0.0 fixed:1.2.0", "", "1.1.0", true, "1.2.0", false},
		{"composer", "ECOSYSTEM", "introduced:2.4.4 fixed:2.4.4-p2", "", "2.4.4-p1", true, "2.4.4-p2", false},
		{"composer", "ECOSYSTEM", "introduced:0 fixed:2.4.4-p2", "", "2.4.4-p2", false, "", false},
		{"npm", "SEMVER", "introduced:1.0.0 fixed:1.2.0", "", "latest?", false, "", true},
		{"npm", "SEMVER", "introduced:1.0.0 fixed:1.2.0", "", "", false, "", true},
		// commits
		{"npm", "GIT", "introduced:0 fixed:abc", "", "1.0.0", false, "", true},
		{"npm", "GIT", "introduced:0 fixed:abc", "1.0.0", "1.0.0", true, "", false},
		{"npm", "GIT", "introduced:0 fixed:abc", "1.0.0", "1.0.1", false, "", false},
	} {
		a := Affected{Versions: strings.Fields(tc.versions)}
		if tc.kind != "" {
			a.Ranges = []Range{{tc.kind, events(tc.events)}}
		}
		is, fixed, err := a.has(tc.typ, tc.version)
		if is != tc.is || fixed != tc.fixed || (err != nil) != tc.unknown {
			t.Errorf("%s %s %q, %q: %q is affected: %t, fixed in %q, %v", tc.typ, tc.kind, tc.events, tc.versions, tc.version, is, fixed, err)
		}
	}
}

// Ranges, with their events in any order, affect the same versions as the list of versions from
// which they were made.
func TestRangesAgreeWithVersions(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 0))
	for typ, format := range map[string]string{"npm": "%d.%d.0", "deb": "%d.%d-1", "rpm": "%d.%d-1.el9", "apk": "%d.%d-r0", "pypi": "%d.%d", "maven": "%d.%d"} {
		for range 40 {
			version := func(n int) string { return fmt.Sprintf(format, 1+n/20, n%20) }
			var listed, ranged Affected
			for at, i := r.IntN(9), 0; at < 90 && i < 3; i++ { // two events at most 10 apart each
				end := at + 1 + r.IntN(10)
				all := []Event{{Introduced: version(at)}, {Fixed: version(end)}}
				if r.IntN(3) == 0 {
					all[1] = Event{LastAffected: version(end - 1)}
				}
				for n := at; n < end; n++ {
					listed.Versions = append(listed.Versions, version(n))
				}
				if len(ranged.Ranges) == 0 || r.IntN(2) == 0 {
					ranged.Ranges = append(ranged.Ranges, Range{Type: "ECOSYSTEM"})
				}
				in := &ranged.Ranges[len(ranged.Ranges)-1]
				in.Events = append(in.Events, all...)
				r.Shuffle(len(in.Events), func(i, j int) { in.Events[i], in.Events[j] = in.Events[j], in.Events[i] })
				at = end + 1 + r.IntN(10)
			}
			for n := range 100 {
				a, _, err := ranged.has(typ, version(n))
				b, _, err2 := listed.has(typ, version(n))
				if err != nil || err2 != nil || a != b {
					t.Fatalf("%s: %s is affected: %t by %+v, %t by %v (%v, %v)", typ, version(n), a, ranged.Ranges, b, listed.Versions, err, err2)
				}
			}
		}
	}
}

// about is an advisory about a package below a version.
func advisory(id, ecosystem, name, fixed string) *Advisory {
	a := &Advisory{ID: id, Affected: make([]Affected, 1)}
	a.Affected[0].Package.Ecosystem, a.Affected[0].Package.Name = ecosystem, name
	a.Affected[0].Ranges = []Range{{"ECOSYSTEM", events("introduced:0 fixed:" + fixed)}}
	return a
}

// A package belongs to its distribution's release, and to no other.
func TestReleasesAndNames(t *testing.T) {
	t.Parallel()
	const is, not, unknown = "is", "not", "unknown"
	for _, tc := range []struct{ ecosystem, name, purl, want string }{
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1?distro=debian-12", is},
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1?distro=debian-12.5", is},
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1?distro=bookworm", is},
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1?distro=debian-11", not},
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1?distro=bullseye", not},
		{"Debian:12", "openssl", "pkg:deb/debian/openssl@1.0-1", unknown},
		{"Debian:12", "openssl", "pkg:deb/openssl@1.0-1?distro=debian-12", unknown},
		{"Debian", "openssl", "pkg:deb/debian/openssl@1.0-1", is},
		{"Debian:12", "openssl", "pkg:deb/ubuntu/openssl@1.0-1?distro=ubuntu-22.04", not},
		{"Debian:12", "openssl", "pkg:deb/debian/libssl3@1.0-1?distro=debian-12&upstream=openssl", is},
		{"Debian:12", "libssl3", "pkg:deb/debian/libssl3@1.0-1?distro=debian-12&upstream=openssl", not}, // another source
		{"Debian:12", "openssl", "pkg:deb/debian/libssl3@9-1?distro=debian-12&upstream=openssl%401.0-1", is},
		{"Ubuntu:24.04:LTS", "openssl", "pkg:deb/ubuntu/openssl@1.0-1?distro=ubuntu-24.04", is},
		{"Ubuntu:24.04", "openssl", "pkg:deb/ubuntu/openssl@1.0-1?distro=ubuntu-24.04", is},
		{"Ubuntu:24.04:LTS", "openssl", "pkg:deb/ubuntu/openssl@1.0-1?distro=ubuntu-24.10", not},
		{"Alpine:v3.20", "openssl", "pkg:apk/alpine/openssl@1.0-r1?distro=alpine-3.20.1", is},
		{"Alpine:v3.20", "openssl", "pkg:apk/alpine/libssl3@1.0-r1?distro=3.20.1&upstream=openssl", is},
		{"Alpine:v3.2", "openssl", "pkg:apk/alpine/openssl@1.0-r1?distro=alpine-3.20.1", not},
		{"Wolfi", "openssl", "pkg:apk/wolfi/openssl@1.0-r1?distro=wolfi-20230201", is},
		{"Wolfi", "openssl", "pkg:apk/alpine/openssl@1.0-r1?distro=alpine-3.20", not},
		{"Red Hat:enterprise_linux:9::baseos", "openssl-libs", "pkg:rpm/redhat/openssl-libs@1.0-1.el9?distro=rhel-9.4", is},
		{"Red Hat:enterprise_linux:9::baseos", "openssl", "pkg:rpm/redhat/openssl-libs@1.0-1.el9?distro=rhel-9.4&upstream=openssl-1.0-1.el9.src.rpm", is},
		{"Red Hat:enterprise_linux:8::baseos", "openssl-libs", "pkg:rpm/redhat/openssl-libs@1.0-1.el9?distro=rhel-9.4", not},
		{"Red Hat:enterprise_linux:9::baseos", "openssl-libs", "pkg:rpm/redhat/openssl-libs@1.0-1.el9", unknown},
		{"Rocky Linux:9", "bash", "pkg:rpm/rocky/bash@1.0-1.el9?distro=rocky-9.3", is},
		{"AlmaLinux:9", "bash", "pkg:rpm/rocky/bash@1.0-1.el9?distro=rocky-9.3", not},
		{"openSUSE:Leap 15.5", "bash", "pkg:rpm/opensuse/bash@1.0-1?distro=opensuse-leap-15.5", is},
		{"SUSE:Linux Enterprise Server 15 SP5", "bash", "pkg:rpm/suse/bash@1.0-1?distro=sles-15.5", is},
		{"SUSE:Linux Enterprise Server 15 SP5", "bash", "pkg:rpm/suse/bash@1.0-1?distro=sles-15.6", not},
		{"npm", "@babel/core", "pkg:npm/%40babel/core@1.0.0", is},
		{"npm", "core", "pkg:npm/%40babel/core@1.0.0", not},
		{"npm", "openssl", "pkg:gem/openssl@1.0.0", not},
		{"PyPI", "Zope_Interface", "pkg:pypi/zope.interface@1.0", is},
		{"NuGet", "Newtonsoft.Json", "pkg:nuget/newtonsoft.json@1.0", is},
		{"Maven", "org.apache.logging.log4j:log4j-core", "pkg:maven/org.apache.logging.log4j/log4j-core@1.0", is},
		{"Maven", "org.apache.logging.log4j:log4j-core", "", unknown},
		{"Go", "golang.org/x/net", "pkg:golang/golang.org/x/net@v1.0.0", is},
		{"Go", "github.com/Azure/azure-sdk-for-go", "pkg:golang/github.com/Azure/azure-sdk-for-go@v1.0.0", is},
		{"Go", "github.com/Azure/azure-sdk-for-go", "pkg:golang/github.com/azure/azure-sdk-for-go@v1.0.0", is},
		{"Bitnami", "OpenSSL", "pkg:bitnami/OpenSSL@1.0.0", unknown},
		{"Go", "stdlib", "pkg:golang/stdlib@1.0.0", is},
	} {
		set := NewSet()
		if err := set.Add(advisory("A-1", tc.ecosystem, tc.name, "2.0")); err != nil {
			t.Fatal(tc.ecosystem, err)
		}
		p := packages.Package{Name: tc.name, Version: "1.0", PURL: tc.purl}
		if tc.want == unknown && tc.purl == "" {
			p.Name = "log4j-core"
		} else {
			p.Version = ""
		}
		list := &packages.ImagePackages{Sources: []packages.Source{{Packages: []packages.Package{p, {Name: "x", PURL: "pkg:deb/debian/x@1?upstream=y"}, {Name: "x", PURL: "pkg:apk/alpine/x@1?upstream=y"}}}}}
		found, err := set.Find(list)
		if err != nil {
			t.Fatal(err)
		}
		got := not
		if len(found) > 0 {
			if got = is; found[0].Unknown != "" {
				got = unknown
			}
		}
		if len(found) > 1 || got != tc.want {
			t.Errorf("%s %s is about %s: %s, want %s: %+v", tc.ecosystem, tc.name, tc.purl, got, tc.want, found)
		}
		if names, ok := set.Names(8); ok && tc.want != not { // the index finds it
			has, err := packages.Names(list)
			if err != nil || !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(has, name) }) {
				t.Errorf("none of the names %v of %s is among %v", names, tc.name, has)
			}
		}
	}
}

// If an SBOM names no source packages, a distribution's package may be built from any.
func TestSourcesThatAreNotNamed(t *testing.T) {
	t.Parallel()
	set := NewSet()
	for _, a := range []*Advisory{advisory("D-1", "Debian:12", "openssl", "2"), advisory("D-2", "Debian:12", "bash", "2"), advisory("D-3", "Debian:11", "zlib", "2")} {
		if err := set.Add(a); err != nil {
			t.Fatal(err)
		}
	}
	of := func(distro string, all ...string) (found []string) {
		list := &packages.ImagePackages{Sources: []packages.Source{{}}}
		for _, name := range all {
			name, upstream, _ := strings.Cut(name, "<")
			list.Sources[0].Packages = append(list.Sources[0].Packages, packages.Package{Name: name, PURL: "pkg:deb/debian/" + name + "@1?distro=" + distro + "&upstream=" + upstream})
		}
		all2, err := set.Find(list)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all2 {
			found = append(found, fmt.Sprint(f.ID, f.Unknown != ""))
		}
		return found
	}
	for _, tc := range []struct {
		got  []string
		want string
	}{
		{of("debian-12", "libssl3", "bash"), "D-2false D-1true"},
		{of("debian-12", "libssl3<openssl", "bash"), "D-1false D-2false"},
		{of("debian-12", "libc6<glibc"), ""},
		{of("debian-12", "libc6"), "D-1true"},
		{of("debian-11", "libc6"), "D-3true"},
		{of("debian-10", "libc6"), ""},
	} {
		if got := strings.Join(tc.got, " "); got != tc.want {
			t.Errorf("found %q, want %q", got, tc.want)
		}
	}
}

// An advisory that cannot be compared with an SBOM does not count as touching nothing.
func TestUnchecked(t *testing.T) {
	t.Parallel()
	git := advisory("G-1", "npm", "a", "1")
	git.Affected[0].Ranges[0].Type = "GIT"
	both := advisory("G-2", "npm", "a", "1")
	both.Affected = append(both.Affected, git.Affected...)
	withdrawn := advisory("W-1", "npm", "a", "1")
	withdrawn.Withdrawn = "2026-01-01T00:00:00Z"
	none := advisory("N-1", "npm", "a", "1")
	none.Affected[0].Ranges = nil
	partly := advisory("P-1", "npm", "a", "1")
	partly.Affected = append(partly.Affected, advisory("", "Android", "b", "1").Affected...)
	for _, tc := range []struct {
		a    *Advisory
		want string
	}{
		{git, "git commits alone"}, {both, ""}, {withdrawn, ""}, {none, "neither versions nor ranges"},
		{partly, "the ecosystem Android"}, {&Advisory{ID: "E"}, "neither versions"},
		{advisory("U", "Ubuntu:Pro:18.04:LTS", "a", "1"), "streams of updates"},
		{advisory("R", "Red Hat:rhel_eus:9.2::baseos", "a", "1"), "streams of updates"},
		{advisory("S", "openSUSE:Tumbleweed", "a", "1"), "is not known"},
	} {
		err := NewSet().Add(tc.a)
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", tc.a.ID, err, tc.want)
		}
	}
	large := &Advisory{ID: "L", Affected: make([]Affected, maxElements)}
	if err := NewSet().Add(large); !errors.Is(err, errFull) {
		t.Error(err)
	}
}

// all reads documents. errs counts those that are not advisories.
func all(r io.Reader) (ids []string, errs int, err error) {
	err = Read(r, func(a *Advisory, err error) error {
		if err != nil {
			errs++
			return nil
		}
		ids = append(ids, a.ID)
		return nil
	})
	return ids, errs, err
}

func TestRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		text  string
		ids   string
		errs  int
		fails bool
	}{
		{"", "", 0, false},
		{" \n", "", 0, false},
		{`{"id":"A"}`, "A", 0, false},
		{"{\"id\":\"A\"}\n{\"id\":\"B\",\"affected\":[{\"package\":{\"name\":\"a\"}}]}\n", "A,B", 0, false},
		{` [{"id":"A"},{"id":"B"}]`, "A,B", 0, false},
		{`[]`, "", 0, false},
		{`{"id":"A"}{"id":7}{"id":""}{"id":"a\nb"}{"id":"B"}`, "A,B", 3, false},
		{`{"id":"A"} nonsense`, "A", 0, true},
		{`[{"id":"A"}`, "A", 0, true},
		{`{"id":`, "", 0, true},
		{`"text"`, "", 1, false},
		{"\xff", "", 0, true},
	} {
		ids, errs, err := all(strings.NewReader(tc.text))
		if strings.Join(ids, ",") != tc.ids || errs != tc.errs || (err != nil) != tc.fails {
			t.Errorf("%q: %v, %d that are none, %v", tc.text, ids, errs, err)
		}
	}
}

// endless is a document that does not end.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	if e.read == 0 {
		copy(p, `{"id":"`)
	}
	e.read += len(p)
	return len(p), nil
}

func TestAttackEndlessDocument(t *testing.T) {
	t.Parallel()
	e := &endless{}
	if _, _, err := all(e); err == nil || e.read > 4*MaxDocument {
		t.Errorf("%d bytes are read of an endless document: %v", e.read, err)
	}
}

// Documents give the same advisories one by one and in an array. Any advisory that was read finds
// packages, or fails.
func FuzzRead(f *testing.F) {
	for _, a := range []*Advisory{advisory("A", "Debian:12", "openssl", "3.0"), advisory("B", "npm", "@babel/core", "7"), advisory("C", "Red Hat:enterprise_linux:9::a", "a", "1:2")} {
		b, err := json.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, "pkg:deb/debian/libssl3@1?distro=debian-12&upstream=openssl")
	}
	f.Add([]byte(`[{"id":"A","affected":[{"package":{"ecosystem":"Go","name":"a"},"versions":["1"]}]}]`), "pkg:golang/a@v1")
	f.Add([]byte(`{"id":"A"}{`), "")
	f.Fuzz(func(t *testing.T, text []byte, purl string) {
		var read [][]byte
		set := NewSet()
		if err := Read(bytes.NewReader(text), func(a *Advisory, err error) error {
			if err != nil {
				return nil
			}
			b, err := json.Marshal(a)
			if err != nil {
				t.Fatal(err)
			}
			read = append(read, b)
			if a.ID == "" {
				t.Error("an advisory without an id")
			}
			_ = set.Add(a) // an error about unknown parts does not matter here
			return nil
		}); err != nil && len(read) == 0 {
			return
		}
		for name, again := range map[string][]byte{"lines": bytes.Join(read, []byte("\n")), "an array": []byte("[" + string(bytes.Join(read, []byte(","))) + "]")} {
			n := 0
			if err := Read(bytes.NewReader(again), func(a *Advisory, err error) error {
				if b, _ := json.Marshal(a); err != nil || !bytes.Equal(b, read[n]) {
					t.Errorf("%s: %s is %s, %v", name, read[n], b, err)
				}
				n++
				return nil
			}); err != nil || n != len(read) {
				t.Errorf("%s: %d of %d, %v", name, n, len(read), err)
			}
		}
		p := packages.Package{Name: "a", PURL: purl}.Bounded()
		list := &packages.ImagePackages{Sources: []packages.Source{{Packages: []packages.Package{p}}}}
		found, err := set.Find(list)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := set.Find(list); len(again) != len(found) {
			t.Errorf("found %v, and then %v", found, again)
		}
		names, ok := set.Names(8)
		if has, err := packages.Names(list); ok && len(found) > 0 && (err != nil || !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(has, name) })) {
			t.Errorf("none of the names %q is among %q of %v", names, has, found)
		}
	})
}
