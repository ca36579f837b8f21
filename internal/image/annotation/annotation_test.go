package annotation_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func parse(t testing.TB, s string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// An image stores a bounded number of its references, and at least one of each repository. Adding
// references again for which there is no room changes nothing, so that imports do not rewrite an
// image in turn.
func TestKnownReferencesAreBounded(t *testing.T) {
	written := map[string]string{}
	add := func(s string) {
		annotation.SetKnown(written, append(annotation.Known(written), parse(t, s)))
	}
	for i := range 401 {
		add(fmt.Sprintf("quay.io/app:%d", i))
	}
	add("quay.io/other:1")
	first := written[annotation.References]
	known := annotation.Known(written)
	if len(known) != annotation.MaxReferences || known[0].Tag != "0" || known[255] != parse(t, "quay.io/other:1") || written[annotation.MoreReferences] != "true" {
		t.Errorf("%d are known, from %s to %s", len(known), known[0], known[len(known)-1])
	}
	for i := range 401 {
		add(fmt.Sprintf("quay.io/app:%d", i))
		if written[annotation.References] != first {
			t.Fatalf("adding tag %d again rewrites what is known", i)
		}
	}
	if !annotation.Leave(written, known[0]) || annotation.Leave(written, known[0]) || len(annotation.Known(written)) != annotation.MaxReferences-1 {
		t.Error("what leaves is not left once")
	}
}

// An image without references has no annotation, rather than null.
func TestNoReferencesAreNoAnnotation(t *testing.T) {
	written := map[string]string{}
	annotation.SetKnown(written, []reference.Reference{parse(t, "quay.io/app:1")})
	annotation.Leave(written, parse(t, "quay.io/app:1"))
	if text, ok := written[annotation.References]; ok {
		t.Errorf("%q is left", text)
	}
	for _, old := range []string{"null", "[]"} {
		if !annotation.IsOld(map[string]string{annotation.References: old}, "quay.io/app:1") {
			t.Errorf("%s, which was written once, is not found to be renewed", old)
		}
	}
}

func TestGoneReferencesAreBounded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	missing := map[reference.Reference]string{}
	for i := range annotation.MaxReferences + 2 {
		missing[parse(t, fmt.Sprintf("quay.io/r%d:1", i))] = now.Add(time.Duration(i) * time.Minute).Format(time.RFC3339)
	}
	written := map[string]string{}
	annotation.SetMissing(written, missing)
	delete(missing, parse(t, "quay.io/r0:1"))
	delete(missing, parse(t, "quay.io/r1:1"))
	if got := annotation.Missing(written); !maps.Equal(got, missing) {
		t.Errorf("%d are left, want %d: all but the two that have been gone for longest", len(got), len(missing))
	}
	annotation.SetMissing(written, nil)
	if _, ok := written[annotation.Gone]; ok {
		t.Error("an annotation that says nothing is left")
	}
}

// Importers of earlier releases stored index.docker.io for Docker Hub. It is read, and written
// again, in the canonical form.
func TestOldNamesOfDockerHubAreRead(t *testing.T) {
	hub := parse(t, "docker.io/library/busybox:1")
	stored := map[string]string{
		annotation.References: `["index.docker.io/library/busybox:1","quay.io/a:1","docker.io/library/busybox:1"]`,
		annotation.Gone:       `{"index.docker.io/library/busybox:1":"2026-01-01T00:00:00Z"}`,
	}
	known, missing := annotation.Known(stored), annotation.Missing(stored)
	if !slices.Equal(known, []reference.Reference{hub, parse(t, "quay.io/a:1")}) {
		t.Errorf("known are %v", known)
	}
	if missing[hub] != "2026-01-01T00:00:00Z" || len(missing) != 1 {
		t.Errorf("missing are %v", missing)
	}
	annotation.SetKnown(stored, known)
	annotation.SetMissing(stored, missing)
	if all := stored[annotation.References] + stored[annotation.Gone]; strings.Contains(all, "index.docker.io") || strings.Count(all, "docker.io/library/busybox:1") != 2 {
		t.Errorf("written is %s", all)
	}
}

// Anyone may write annotations. Any value is read in bounded time, and the result is canonical,
// without duplicates, and the same after being written and read again.
func FuzzAnnotations(f *testing.F) {
	f.Add(`["docker.io/library/busybox:1","busybox"]`, `{"index.docker.io/x:1":"2026-01-01T00:00:00Z","x:1":"2027"}`)
	f.Add(`{`, `[]`)
	f.Add(`null`, `{"a":1}`)
	f.Add(`["NOT A REFERENCE",1]`, ``)
	f.Add(`["`+strings.Repeat(`a","`, 300)+`b"]`, `{"":""}`)
	f.Fuzz(func(t *testing.T, references, gone string) {
		stored := map[string]string{annotation.References: references, annotation.Gone: gone}
		known, missing := annotation.Known(stored), annotation.Missing(stored)
		for i, ref := range known {
			if slices.Contains(known[:i], ref) || ref != ref.Pulled() {
				t.Errorf("known are %v", known)
			}
		}
		annotation.SetKnown(stored, known)
		annotation.SetMissing(stored, missing)
		if again := annotation.Known(stored); !slices.Equal(again, known) {
			t.Errorf("%v became %v", known, again)
		}
		if again := annotation.Missing(stored); len(missing) <= annotation.MaxReferences && !maps.Equal(again, missing) {
			t.Errorf("%v became %v", missing, again)
		}
		var texts []string
		if text, ok := stored[annotation.References]; !ok && len(known) == 0 {
			return
		} else if err := json.Unmarshal([]byte(text), &texts); err != nil || len(texts) == 0 || len(texts) > annotation.MaxReferences {
			t.Errorf("written is %s: %v", stored[annotation.References], err)
		}
	})
}

// Many repositories that each bring as much as they may do not fill the annotations, which
// Kubernetes bounds: otherwise the image could no longer be written. The largest records shrink to
// the names of their signatures.
func TestAttackRepositoriesFillTheAnnotations(t *testing.T) {
	digests := make([]string, 64)
	for i := range digests {
		digests[i] = fmt.Sprintf("sha256:%064x", i)
	}
	found := map[string]annotation.Repository{}
	for i := range annotation.MaxRepositories {
		found[fmt.Sprintf("quay.io/app-%d", i)] = annotation.Repository{
			Signatures: []string{fmt.Sprintf("signature-%d", i)}, LeftOut: slices.Clone(digests), Manifests: slices.Clone(digests),
			Attestations: json.RawMessage(`["` + strings.Repeat("x", 3000) + `"]`),
		}
	}
	written := map[string]string{}
	annotation.SetFound(written, found)
	if n := len(written[annotation.Repositories]); n > 160<<10 {
		t.Errorf("%d bytes are written", n)
	}
	reduced := 0
	for name, r := range annotation.Found(written) {
		if len(r.Signatures) != 1 || r.Signatures[0] != found[name].Signatures[0] {
			t.Errorf("%s has the signatures %q", name, r.Signatures)
		}
		if len(r.LeftOut) == 0 {
			if reduced++; len(r.Warnings) != 1 {
				t.Errorf("%s does not say that something is missing: %q", name, r.Warnings)
			}
		}
	}
	if all := len(annotation.Found(written)); all != annotation.MaxRepositories || reduced == 0 || reduced == all {
		t.Errorf("of %d repositories, %d are reduced", all, reduced)
	}
}
