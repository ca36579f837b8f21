package sbom_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/sbom"
	"github.com/tidewaiter/tidewaiter/internal/payload"
)

const digest = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

const spdx = `{"spdxVersion":"SPDX-2.3","SPDXID":"SPDXRef-DOCUMENT","files":[{"fileName":"a"}],"packages":[
{"SPDXID":"SPDXRef-image","name":"example.com/app","primaryPackagePurpose":"CONTAINER"},
{"SPDXID":"SPDXRef-1","name":"openssl","versionInfo":"3.0.11-1","licenseConcluded":"NOASSERTION","licenseDeclared":"Apache-2.0",
 "externalRefs":[{"referenceCategory":"SECURITY","referenceType":"cpe23Type","referenceLocator":"cpe:2.3:a"},
  {"referenceCategory":"PACKAGE_MANAGER","referenceType":"purl","referenceLocator":"pkg:deb/debian/openssl@3.0.11-1"}]},
{"SPDXID":"SPDXRef-2","name":"bash","licenseConcluded":"GPL-3.0-or-later"}],"relationships":[]}`

const cyclone = `{"bomFormat":"CycloneDX","specVersion":"1.6","metadata":{"component":{"type":"container","name":"app"}},"components":[
{"type":"library","group":"@babel","name":"core","version":"7.1.0","purl":"pkg:npm/%40babel/core@7.1.0","licenses":[{"license":{"id":"MIT"}},{"license":{"name":"Other"}}]},
{"type":"application","name":"server","components":[{"type":"library","group":"org.apache.logging.log4j","name":"log4j-core","version":"2.14.1",
 "purl":"pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1","licenses":[{"expression":"Apache-2.0 OR MIT"}]}]},
{"type":"file","name":"/etc/passwd"}]}`

const vex = `{"@context":"https://openvex.dev/ns/v0.2.0","author":"Ann","statements":[
{"vulnerability":{"name":"CVE-2014-0160"},"products":[{"@id":"pkg:oci/app"}],"status":"not_affected","justification":"component_not_present"},
{"vulnerability":"CVE-2021-44228","status":"fixed"},{"status":"affected"}]}`

func statement(predicate, of string) string {
	_, hex, _ := strings.Cut(of, ":")
	return `{"_type":"https://in-toto.io/Statement/v0.1","predicateType":"https://spdx.dev/Document","subject":[{"name":"app","digest":{"sha256":"` + hex + `"}}],"predicate":` + predicate + `}`
}

func envelope(statement string) string {
	return `{"payloadType":"application/vnd.in-toto+json","payload":"` + base64.StdEncoding.EncodeToString([]byte(statement)) + `","signatures":[{"sig":"AA=="}]}`
}

// read reads a document, signed or not.
func read(content, digest string) (*sbom.Document, error) {
	if strings.HasPrefix(content, `{"payloadType"`) || strings.HasPrefix(content, `{"mediaType"`) {
		s, err := payload.ParseAttestation([]byte(content))
		if err != nil {
			return nil, err
		}
		return sbom.ReadStatement(s, digest)
	}
	return sbom.Read([]byte(content), digest)
}

func TestRead(t *testing.T) {
	t.Parallel()
	ofSPDX := []packages.Package{
		{Name: "openssl", Version: "3.0.11-1", PURL: "pkg:deb/debian/openssl@3.0.11-1", License: "Apache-2.0"},
		{Name: "bash", License: "GPL-3.0-or-later"},
	}
	ofCycloneDX := []packages.Package{
		{Name: "@babel/core", Version: "7.1.0", PURL: "pkg:npm/%40babel/core@7.1.0", License: "MIT AND Other"},
		{Name: "log4j-core", Version: "2.14.1", PURL: "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1", License: "Apache-2.0 OR MIT"},
		{Name: "server"},
	}
	for name, tc := range map[string]struct {
		content, format string
		want            []packages.Package
	}{
		"SPDX":                    {spdx, packages.FormatSPDX, ofSPDX},
		"CycloneDX":               {cyclone, packages.FormatCycloneDX, ofCycloneDX},
		"a statement":             {statement(spdx, digest), packages.FormatSPDX, ofSPDX},
		"an envelope":             {envelope(statement(cyclone, digest)), packages.FormatCycloneDX, ofCycloneDX},
		"a bundle":                {`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json","dsseEnvelope":` + envelope(statement(spdx, digest)) + `}`, packages.FormatSPDX, ofSPDX},
		"an object of cosign's":   {statement(`{"Data":`+spdx+`,"Timestamp":""}`, digest), packages.FormatSPDX, ofSPDX},
		"a document without any":  {`{"spdxVersion":"SPDX-2.2"}`, packages.FormatSPDX, nil},
		"packages that are empty": {`{"bomFormat":"CycloneDX","components":[]}`, packages.FormatCycloneDX, nil},
	} {
		document, err := read(tc.content, digest)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if document.Format != tc.format || !slices.Equal(document.Packages, tc.want) || document.Incomplete != "" {
			t.Errorf("%s: %+v", name, document)
		}
	}
}

func TestReadVEX(t *testing.T) {
	t.Parallel()
	document, err := read(envelope(statement(vex, digest)), digest)
	if err != nil {
		t.Fatal(err)
	}
	want := []packages.Statement{
		{Vulnerability: "CVE-2014-0160", Status: "not_affected", Justification: "component_not_present"},
		{Vulnerability: "CVE-2021-44228", Status: "fixed"},
	}
	if document.Format != packages.FormatOpenVEX || document.Author != "Ann" || !slices.Equal(document.Statements, want) {
		t.Errorf("%+v", document)
	}
}

// One document may be attached to all images of a release: a statement about another image does not
// count for this one. Unreadable parts make the result incomplete.
func TestVEXOfOtherProducts(t *testing.T) {
	t.Parallel()
	this, other := "pkg:oci/app@"+digest, "pkg:oci/tool@sha256%3A"+strings.Repeat("0", 64)
	statement := func(cve, products string) string {
		return fmt.Sprintf(`{"vulnerability":{"name":%q},"status":"not_affected","products":[%s]}`, cve, products)
	}
	document, err := read(`{"@context":"https://openvex.dev/ns/v0.2.0","statements":[`+strings.Join([]string{
		statement("CVE-1", fmt.Sprintf(`{"@id":%q}`, this)),
		statement("CVE-2", fmt.Sprintf(`{"@id":%q}`, other)),
		statement("CVE-3", fmt.Sprintf(`{"@id":%q},{"@id":"https://example.com/app","identifiers":{"purl":%q}}`, other, this)),
		statement("CVE-4", fmt.Sprintf(`%q`, other)),
		statement("CVE-5", `{"@id":"pkg:golang/example.com/app@v1"}`),
		statement("CVE-6", ``),
		`{"status":"not_affected"}`,
		`{"vulnerability":"CVE-7","status":"fixed","products":[7]}`,
	}, ",")+`]}`, digest)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range document.Statements {
		got = append(got, s.Vulnerability)
	}
	if want := []string{"CVE-1", "CVE-3", "CVE-5", "CVE-6"}; !slices.Equal(got, want) || document.Incomplete != "statements that cannot be read: 2" {
		t.Errorf("%v, incomplete %q; want %v", got, document.Incomplete, want)
	}
}

func TestWhatIsNotRead(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		``:                           "cannot be read",
		`[]`:                         "only the JSON forms",
		`SPDXVersion: SPDX-2.3`:      "only the JSON forms",
		`<bom/>`:                     "only the JSON forms",
		`{}`:                         "neither SPDX 2, CycloneDX nor OpenVEX",
		`{"spdxVersion":"SPDX-3.0"}`: "SPDX 2 is",
		`{"bomFormat":"Other"}`:      "unknown",
		`{"@context":"https://spdx.org/rdf/3.0.1/spdx-context.jsonld"}`: "neither",
		statement(spdx, "sha256:00"):                                    "about another image",
		statement(`"SPDXVersion: SPDX-2.3"`, digest):                    "only the JSON forms",
		spdx[:len(spdx)-1]:                                              "cannot be read",
		`{"spdxVersion":"SPDX-2.3","packages":{}}`:                      "cannot be read",
		statement(statement(spdx, digest), digest):                      "neither",
		statement(`{"Data":{"Data":`+spdx+`}}`, digest):                 "neither",
		strings.Replace(statement(spdx, digest), "https://spdx.dev/Document", "https://slsa.dev/provenance/v1", 1): "not one of an SBOM",
		strings.Replace(statement(spdx, digest), "Document", `Document","predicatetype":"x`, 1):                    "only in its spelling",
		// package payload reads envelopes
		envelope(statement(spdx, digest)): "",
		`{"dsseEnvelope":` + envelope(statement(spdx, digest)) + `,"spdxVersion":"SPDX-3"}`: "SPDX 2 is",
		strings.Repeat(" ", sbom.MaxDocument+1):                                             "at most",
	} {
		if document, err := sbom.Read([]byte(content), digest); err == nil || !strings.Contains(err.Error(), want) || document != nil {
			t.Errorf("%.60q: %v, %v; want %q", content, document, err, want)
		}
	}
}

// Texts of documents become printable and bounded.
func TestAttackTexts(t *testing.T) {
	t.Parallel()
	text, _ := json.Marshal("a\t\n\x1b[31m\u202e" + strings.Repeat("x", 2000))
	document, err := sbom.Read(fmt.Appendf(nil, `{"bomFormat":"CycloneDX","components":[{"name":%[1]s,"version":%[1]s,"purl":%[1]s,"licenses":[{"expression":%[1]s}]},{"name":""}]}`, text), digest)
	if err != nil {
		t.Fatal(err)
	}
	if len(document.Packages) != 1 || document.Incomplete != "1 of its packages cannot be read" {
		t.Fatalf("%+v", document)
	}
	if p := document.Packages[0]; p != p.Bounded() || p.PURL != "" || strings.ContainsAny(p.Name+p.License, "\t\n\x1b\u202e") {
		t.Errorf("%q", p)
	}
}

// hostile returns documents that are made to be expensive: each has a few megabytes, which take
// hundreds in memory if they are decoded to objects.
func hostile() map[string]string {
	million := `{"bomFormat":"CycloneDX","components":[` + strings.Repeat(`{"name":"a"},`, 1_000_000) + `{"name":"b"}]}`
	deep := `{"bomFormat":"CycloneDX","components":[` + strings.Repeat(`{"name":"a","components":[`, 5000) + `{"name":"b"}` + strings.Repeat(`]}`, 5000) + `]}`
	return map[string]string{
		"a million packages":      million,
		"components 5,000 deep":   deep,
		"arrays 9,000 deep":       `{"spdxVersion":"SPDX-2.3","a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
		"arrays a million deep":   `{"spdxVersion":"SPDX-2.3","a":` + strings.Repeat("[", 1_000_000),
		"two million empty files": `{"spdxVersion":"SPDX-2.3","files":[` + strings.Repeat(`{},`, 2_000_000) + `{}]}`,
		"a package of ten MB":     `{"spdxVersion":"SPDX-2.3","packages":[{"name":"a","externalRefs":[` + strings.Repeat(`{},`, 3_000_000) + `{}]}]}`,
		"a name of ten MB":        `{"bomFormat":"CycloneDX","components":[{"name":"` + strings.Repeat("a", 10<<20) + `"}]}`,
		"a million subjects":      `{"_type":"https://in-toto.io/Statement/v1","subject":[` + strings.Repeat(`{"digest":{}},`, 1_000_000) + `{}],"predicate":{}}`,
		"a million statements":    `{"@context":"https://openvex.dev/ns","statements":[` + strings.Repeat(`{"status":1},`, 1_000_000) + `{}]}`,
	}
}

// For any document, the result is bounded, and reading takes memory in proportion to the document's
// size.
func TestAttackHostileDocuments(t *testing.T) {
	for name, content := range hostile() {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		document, err := sbom.Read([]byte(content), digest)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if err == nil {
			if n := len(document.Packages); n > packages.MaxPackages || document.Incomplete == "" && strings.Contains(name, "package") {
				t.Errorf("%s: %d packages, incomplete %q", name, n, document.Incomplete)
			}
		}
		if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 8<<20 {
			t.Errorf("%s: %d bytes are kept", name, kept)
		}
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 64*uint64(len(content)) {
			t.Errorf("%s: %d bytes were allocated for a document of %d", name, allocated, len(content))
		}
		runtime.KeepAlive(document)
	}
}

// For any document, the result is bounded and printable. The same document in a statement gives the
// same result.
func fuzz(f *testing.F, seeds ...string) {
	for _, seed := range seeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		document, err := sbom.Read(content, digest)
		if err != nil {
			if document != nil {
				t.Error("a document beside an error")
			}
			return
		}
		if len(document.Packages) > packages.MaxPackages || len(document.Statements) > packages.MaxStatements {
			t.Error("too many")
		}
		for _, p := range document.Packages {
			if p.Name == "" || p != p.Bounded() {
				t.Errorf("%q", p)
			}
		}
		for _, s := range document.Statements {
			if s.Vulnerability == "" || s != s.Bounded() {
				t.Errorf("%q", s)
			}
		}
		if _, err := packages.Pack(document.Packages); err != nil {
			t.Error(err)
		}
		if again, err := read(envelope(statement(string(content), digest)), digest); err == nil && !slices.Equal(again.Packages, document.Packages) {
			t.Errorf("%v in an envelope, %v without", again.Packages, document.Packages)
		}
	})
}

func FuzzSPDX(f *testing.F) {
	fuzz(f, spdx, `{"spdxVersion":"SPDX-2.2","packages":[{}]}`, statement(spdx, digest))
}

func FuzzCycloneDX(f *testing.F) {
	fuzz(f, cyclone, `{"bomFormat":"CycloneDX","components":[{"components":[{}]}]}`, envelope(statement(cyclone, digest)))
}

func FuzzOpenVEX(f *testing.F) {
	fuzz(f, vex, `{"@context":"https://openvex.dev/ns","statements":[{}]}`, envelope(statement(vex, digest)))
}
