package console

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// The answer about an advisory has an address, which leads whoever opens it to the same question.
func TestAdvisoryHasAnAddress(t *testing.T) {
	answer := m{"status": m{"summary": m{"examined": 9, "unlisted": 2, "images": 1, "references": 2, "pods": 3}, "continue": "next", "rows": l{m{"reference": "r.io/web:v1", "effect": "Contains", "running": m{"pods": 3, "complete": true},
		"advisories": l{m{"id": "GHSA-1", "fixed": "2.15.0", "fixedBy": "v2", "package": m{"name": "log4j-core", "version": "2.14.1", "vouched": "True", "vouchedBy": "builder"}}}}}}}
	var asked impactSpec
	b := newBrowser(t, map[string]any{"POST " + impactPath: answer})
	b.signIn("good")
	w := b.do("POST", Root+"impact", url.Values{"document": {"{\"id\": \"GHSA-1\",\n \"aliases\": [\"CVE-1\"]}"}})
	to := w.Header().Get("Location")
	if w.Code != http.StatusSeeOther || !strings.HasPrefix(to, Root+"impact?advisory=") {
		t.Fatalf("an advisory leads to %d %s", w.Code, to)
	}
	body := b.do("GET", to, nil).Body.String()
	for _, want := range []string{
		"What GHSA-1, CVE-1 touches", "1 image has it, by 2 references; 3 or more pods run it.", "2 without an SBOM of their own: not known", "has it</span>", "log4j-core 2.14.1", "by the SBOM that builder vouches for", "2.15.0", "and in the tag v2 here", "continue=next",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the answer lacks %q:\n%s", want, body)
		}
	}
	packed, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	if asked.Advisories, err = unpack(packed.Query().Get("advisory")); err != nil || namesOf(asked.Advisories) != "GHSA-1, CVE-1" {
		t.Errorf("the address has %q, %v", asked.Advisories, err)
	}
	if body := b.do("GET", Root+"impact?advisory=%20", nil).Body.String(); !strings.Contains(body, "does not have a whole advisory") {
		t.Errorf("a broken address is answered\n%s", body)
	}
	random := make([]byte, maxAdvisory)
	for i := range random {
		random[i] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"[rand.IntN(64)]
	}
	for document, code := range map[string]int{"no JSON": http.StatusBadRequest, fmt.Sprintf("%q", random) + "": http.StatusSeeOther, `"` + strings.Repeat("x", maxForm) + `"`: http.StatusRequestEntityTooLarge} {
		if w := b.do("POST", Root+"impact", url.Values{"document": {document}}); w.Code != code {
			t.Errorf("%.20s… is answered %d, want %d", document, w.Code, code)
		}
	}
}

// What has a package is asked by an address, too; nothing found is not none while SBOMs are
// missing.
func TestWhatHasAPackage(t *testing.T) {
	answers := map[string]any{"POST " + impactPath: m{"status": m{"summary": m{"examined": 9, "unlisted": 2, "podsComplete": true}}}}
	b := newBrowser(t, answers)
	b.signIn("good")
	if body := b.do("GET", Root+"impact?package=openssl", nil).Body.String(); !strings.Contains(body, "What has openssl") || !strings.Contains(body, "No image is known to have it, and not all are known.") || !strings.Contains(body, "tidewaiter impact --package openssl") {
		t.Errorf("a package that is perhaps nowhere is answered\n%s", body)
	}
	answers["POST "+impactPath] = m{"status": m{"summary": m{"examined": 9, "podsComplete": true}}}
	if body := b.do("GET", Root+"impact?package=openssl", nil).Body.String(); !strings.Contains(body, "No image has it.") {
		t.Errorf("a package that is nowhere is answered\n%s", body)
	}
	answers["POST "+impactPath] = http.StatusForbidden
	if body := b.do("GET", Root+"impact?package=openssl", nil).Body.String(); !strings.Contains(body, "You may not ask what this touches") || strings.Contains(body, "No image has it") {
		t.Errorf("who may not ask is answered\n%s", body)
	}
}

// Whether a tag or an image may be deleted is asked from its page; what is not known is no yes.
func TestMayIDeleteIt(t *testing.T) {
	answers := hostileAnswers()
	b := newBrowser(t, answers)
	b.signIn("good")
	if body := b.do("GET", Root+"image?ref="+digestA, nil).Body.String(); !strings.Contains(body, `class="may-delete" href="/console/impact?delete=`) {
		t.Errorf("the page of an image does not lead there:\n%s", body)
	}
	row := m{"reference": "r.io/web:v1", "effect": "Unpullable", "lastTag": true, "running": m{"pods": 3, "complete": true}, "neededBy": l{"prod/shop/deployments/web"}}
	for want, status := range map[string]m{
		"No: 3 pods run what would be gone, and 1 workload needs it.":             {"summary": m{"pods": 3, "podsComplete": true, "workloads": 1}, "rows": l{row}},
		"No: 1 or more pod runs what would be gone.":                              {"summary": m{"pods": 1}, "rows": l{row}},
		"It is not known whether something that runs needs it.":                   {"summary": m{}, "rows": l{row}},
		"of 2 images that pods run it is not known":                               {"summary": m{"podsComplete": true, "undecided": 2}, "rows": l{row}},
		"No: no pod runs what would be gone, and 2 workloads need it.":            {"summary": m{"podsComplete": true, "workloads": 2}, "rows": l{row}},
		"Yes: nothing that runs needs it.":                                        {"summary": m{"podsComplete": true}, "rows": l{row}},
		"no reference to it is known":                                             {"summary": m{"podsComplete": true}},
		"no other tag of its repository leads to this image, so the registry may": {"summary": m{"podsComplete": true}, "rows": l{row}},
		"prod/shop/deployments/web":                                               {"summary": m{"podsComplete": true}, "rows": l{row}},
		"cannot be pulled":                                                        {"summary": m{"podsComplete": true}, "rows": l{row}},
		"<strong>pods</strong>: prod is away":                                     {"summary": m{}, "unknowns": l{m{"part": "pods", "reason": "prod is away"}}},
		"tidewaiter impact --delete r.io/web:v1":                                  {"summary": m{}},
		`<a href="/console/image?ref=r.io%2Fweb%3Av1">Back to the image</a>`:      {"summary": m{}},
	} {
		answers["POST "+impactPath] = m{"status": status}
		if body := b.do("GET", Root+"impact?delete=r.io/web:v1", nil).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%v is answered without %q:\n%s", status, want, body)
		}
	}
	answers["POST "+impactPath] = http.StatusForbidden
	if body := b.do("GET", Root+"impact?delete=r.io/web:v1", nil).Body.String(); !strings.Contains(body, "You may not ask what this touches") || strings.Contains(body, "Yes:") {
		t.Errorf("who may not ask is answered\n%s", body)
	}
}

// The page of an image lists its packages, each once, and searches them.
func TestPackagesOfAnImage(t *testing.T) {
	answers := hostileAnswers()
	var packages l
	for i := range shownPackages + 9 {
		packages = append(packages, m{"name": fmt.Sprint("lib", i), "version": "1"})
	}
	packages = append(packages, m{"name": "openssl", "version": "3.0.1", "license": "Apache-2.0"})
	answers["GET "+packagesPath] = m{"items": l{m{"sources": l{m{"format": "SPDX", "count": len(packages)}, m{"format": "CycloneDX", "count": 1}}}}}
	answers["GET "+packagesPath+"/"+digestA] = m{"sources": l{m{"packages": packages}, m{"packages": packages[len(packages)-1:]}}}
	b := newBrowser(t, answers)
	b.signIn("good")
	if body := b.do("GET", Root+"image?ref="+digestA, nil).Body.String(); !strings.Contains(body, "The first 50 of 60.") || !strings.Contains(body, ">lib0</span>") || strings.Contains(body, ">openssl</span>") {
		t.Errorf("the page lists\n%s", body)
	}
	body := b.do("GET", Root+"image?ref="+digestA+"&packages=SSL", nil).Body.String()
	if strings.Count(body, ">openssl</span>") != 1 || strings.Contains(body, ">lib0</span>") || !strings.Contains(body, "Apache-2.0") || !strings.Contains(body, Root+"impact?package=openssl") {
		t.Errorf("a search finds\n%s", body)
	}
	if body := b.do("GET", Root+"image?ref="+digestA+"&packages=nothing", nil).Body.String(); !strings.Contains(body, "No package has “nothing” in its name") {
		t.Errorf("a search that finds nothing is answered\n%s", body)
	}
}
