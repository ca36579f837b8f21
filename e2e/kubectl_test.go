package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

func TestKubectlGet(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	busybox, multi := images.Busybox(t), images.MultiArch(t)
	s.Import(t, r.Push(t, "library/busybox:1", busybox), r.Push(t, "team/multi:1", multi))
	name, index := images.Digest(t, busybox).String(), images.Digest(t, multi).String()
	arm := images.Children(t, multi)[1].Digest.String()
	reference := r.Host + "/library/busybox@" + name

	t.Run("table", func(t *testing.T) {
		rows := lines(s.Kubectl(t, "get", "images"))
		if got := columns(rows[0]); !slices.Equal(got, []string{"IMAGE", "REPOSITORY", "TAGS", "VERDICT", "PODS", "AGE"}) {
			t.Errorf("columns %q", got)
		}
		if len(rows) != 1+1+1+len(images.Platforms) {
			t.Errorf("%d rows:\n%s", len(rows), strings.Join(rows, "\n"))
		}
		wantContains(t, "the table", strings.Join(rows, "\n"), name[len("sha256:"):][:12], r.Host+"/library/busybox")
		for _, row := range rows {
			if len(row) > 120 {
				t.Errorf("%d columns: %s", len(row), row)
			}
		}
	})
	t.Run("wide", func(t *testing.T) {
		rows := lines(s.Kubectl(t, "get", "image", name, "-o", "wide"))
		want := []string{"IMAGE", "REPOSITORY", "TAGS", "VERDICT", "PODS", "AGE", "OUTDATED", "GONE", "SIZE", "LAYERS", "PLATFORM", "SIGNATURES", "SIGNER", "ATTESTED", "CREATED", "BASE", "VERDICTS", "NAME"}
		if got := columns(rows[0]); !slices.Equal(got, want) {
			t.Fatalf("columns %q, want %q", got, want)
		}
		cell := cells(rows[0], rows[1])
		manifest, err := busybox.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		for column, want := range map[string]string{
			"NAME": name, "LAYERS": fmt.Sprint(len(manifest.Layers)), "PLATFORM": "linux/amd64", "SIGNATURES": "0",
		} {
			if cell[column] != want {
				t.Errorf("%s = %q, want %q", column, cell[column], want)
			}
		}
		for column, pattern := range map[string]string{"SIZE": `^[\d.]+ ?[kKMG]?i?B?$`, "AGE": `^\d+[smh]`, "CREATED": `\d`} {
			if !regexp.MustCompile(pattern).MatchString(cell[column]) {
				t.Errorf("%s = %q does not match %s", column, cell[column], pattern)
			}
		}
	})
	t.Run("field selectors", func(t *testing.T) {
		for selector, want := range map[string][]string{
			"metadata.name=" + name:                                                {name},
			"dockerImageReference=" + reference:                                    {name},
			"dockerImageMetadata.Architecture=arm64":                               {arm},
			"dockerImageManifestMediaType=application/vnd.oci.image.index.v1+json": {index},
			"dockerImageManifestMediaType=application/vnd.oci.image.index.v1+json,dockerImageMetadata.Architecture=arm64": nil,
		} {
			got := lines(s.Kubectl(t, "get", "images", "-o", "name", "--field-selector", selector))
			for i := range got {
				got[i] = strings.TrimPrefix(got[i], "image.image.openshift.io/")
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s selects %q, want %q", selector, got, want)
			}
		}
		if got := s.TryKubectl(t, "get", "images", "--field-selector", "color=blue"); got.Code == 0 {
			t.Errorf("an unknown field was accepted:\n%s", got.Stdout)
		} else {
			wantContains(t, "the message", got.Stderr, "color")
		}
	})
	t.Run("jsonpath", func(t *testing.T) {
		if got := s.Kubectl(t, "get", "image", name, "-o", "jsonpath={.dockerImageReference}"); got != reference {
			t.Errorf("dockerImageReference = %q, want %q", got, reference)
		}
	})
	t.Run("describe", func(t *testing.T) {
		wantContains(t, "kubectl describe", s.Kubectl(t, "describe", "image", name), name, reference)
	})
	t.Run("absent", func(t *testing.T) {
		got := s.TryKubectl(t, "get", "image", "sha256:"+strings.Repeat("0", 64))
		if got.Code == 0 {
			t.Error("exit code 0")
		}
		wantContains(t, "the message", got.Stderr, "NotFound", "images.image.openshift.io")
	})
}

// columns splits a header of kubectl, whose names may hold single spaces.
func columns(header string) []string {
	return regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(header), -1)
}

// cells cuts a row where the header's columns begin.
func cells(header, row string) map[string]string {
	names := columns(header)
	starts := make([]int, 0, len(names)+1)
	at := 0
	for _, n := range names {
		at += strings.Index(header[at:], n)
		starts = append(starts, at)
		at += len(n)
	}
	starts = append(starts, max(len(row), at))
	row += strings.Repeat(" ", starts[len(names)]-len(row))
	out := map[string]string{}
	for i, n := range names {
		out[n] = strings.TrimSpace(row[starts[i]:starts[i+1]])
	}
	return out
}

func TestKubectlDiscoveryAndExplain(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	t.Run("api-resources", func(t *testing.T) {
		out := s.Kubectl(t, "api-resources", "--api-group", "image.openshift.io", "-o", "wide", "--no-headers")
		row := strings.Fields(lines(out)[slices.IndexFunc(lines(out), func(l string) bool { return strings.HasPrefix(l, "images ") })])
		wantContains(t, "images", strings.Join(row, " "), "image.openshift.io/v1", "false", "Image",
			"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
	})
	t.Run("version", func(t *testing.T) {
		wantContains(t, "kubectl version", s.Kubectl(t, "version"), "Server Version: v1.37")
	})
	t.Run("explain", func(t *testing.T) {
		for path, want := range map[string][]string{
			"image":                     {"VERSION:    v1", "dockerImageReference", "string that can be used to pull this image"},
			"image.signatures":          {"<[]ImageSignature>", "holds all signatures of the image", "content", "conditions"},
			"image.signatures.issuedBy": {"commonName", "SignatureIssuer"},
			"image.dockerImageLayers":   {"mediaType", "size", "<integer>"},
		} {
			wantContains(t, "kubectl explain "+path, s.Kubectl(t, "explain", path), want...)
		}
	})
	t.Run("explain --output plaintext-openapiv2", func(t *testing.T) {
		wantContains(t, "the output", s.Kubectl(t, "explain", "image.signatures", "--output", "plaintext-openapiv2"), "holds all signatures")
	})
}

// A list in pages shows one snapshot, whatever is written meanwhile.
func TestKubectlListInPages(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	const n = 23
	var list strings.Builder
	for i := range n {
		fmt.Fprintln(&list, plainImage(fmt.Sprintf("page-%02d", i), "suite", "pages"))
	}
	s.KubectlStdin(t, list.String(), "create", "-f", "-")

	got := s.TryKubectl(t, "get", "images", "--chunk-size=5", "-o", "name", "-v=6")
	if names := lines(got.Stdout); len(names) != n || !slices.IsSorted(names) {
		t.Errorf("%d names, want %d in order:\n%s", len(names), n, got.Stdout)
	}
	if pages := strings.Count(got.Stderr, "continue="); pages != 4 {
		t.Errorf("kubectl followed %d continue tokens, want 4:\n%s", pages, got.Stderr)
	}
}

func TestKubectlWatch(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	s.KubectlStdin(t, plainImage("watched-0"), "create", "-f", "-")
	// Once the first is printed, the watch starts from the list that held it.
	watch := harness.Start(t, s.KubectlCommand(t, "get", "images", "--watch", "--output-watch-events", "--no-headers"))
	watch.Stdout.AwaitMatch(t, regexp.MustCompile(`ADDED\s+watched-0\s`))

	s.KubectlStdin(t, plainImage("watched-1"), "create", "-f", "-")
	s.Kubectl(t, "label", "image", "watched-1", "seen=yes")
	s.Kubectl(t, "delete", "image", "watched-1")
	watch.Stdout.AwaitMatch(t, regexp.MustCompile(`(?s)ADDED\s+watched-1\s.*MODIFIED\s+watched-1\s.*DELETED\s+watched-1\s`))
}

func TestKubectlWritesAndPatches(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	create := func(t *testing.T, name string) {
		t.Helper()
		s.KubectlStdin(t, plainImage(name), "create", "-f", "-")
		t.Cleanup(func() { s.Kubectl(t, "delete", "image", name, "--ignore-not-found") })
	}
	labels := func(t *testing.T, name string) string {
		t.Helper()
		return s.Kubectl(t, "get", "image", name, "-o", "jsonpath={.metadata.labels}")
	}
	t.Run("server-side apply of a label", func(t *testing.T) {
		create(t, "applied")
		label := func(value string) string {
			return `{"apiVersion":"image.openshift.io/v1","kind":"Image","metadata":{"name":"applied","labels":{"team":"` + value + `"}}}`
		}
		s.KubectlStdin(t, label("one"), "apply", "--server-side", "--field-manager", "first", "-f", "-")
		if got := labels(t, "applied"); got != `{"team":"one"}` {
			t.Errorf("labels %s", got)
		}
		managers := s.Kubectl(t, "get", "image", "applied", "--show-managed-fields", "-o", "jsonpath={.metadata.managedFields[*].manager}")
		wantContains(t, "managers", managers, "first")

		c := s.KubectlCommand(t, "apply", "--server-side", "--field-manager", "second", "-f", "-")
		c.Stdin = label("two")
		if got := harness.Run(t, c); got.Code == 0 {
			t.Error("a second manager took the label over without --force-conflicts")
		} else {
			wantContains(t, "the conflict", got.Stderr, "conflict", `"first"`, ".metadata.labels.team")
		}
		s.KubectlStdin(t, label("two"), "apply", "--server-side", "--field-manager", "second", "--force-conflicts", "-f", "-")
		if got := labels(t, "applied"); got != `{"team":"two"}` {
			t.Errorf("labels after --force-conflicts %s", got)
		}
		// The reference was not in what was applied, and is still there.
		if got := s.Kubectl(t, "get", "image", "applied", "-o", "jsonpath={.dockerImageReference}"); got == "" {
			t.Error("applying a label removed the reference")
		}
	})
	t.Run("client-side apply", func(t *testing.T) {
		t.Cleanup(func() { s.Kubectl(t, "delete", "image", "client-side", "--ignore-not-found") })
		s.KubectlStdin(t, plainImage("client-side", "a", "1", "b", "2"), "apply", "-f", "-")
		s.KubectlStdin(t, plainImage("client-side", "a", "3"), "apply", "-f", "-")
		if got := labels(t, "client-side"); got != `{"a":"3"}` {
			t.Errorf("labels %s, want b removed and a changed", got)
		}
	})
	for patchType, patch := range map[string]string{
		"json":      `[{"op":"add","path":"/metadata/labels","value":{"patched":"json"}}]`,
		"merge":     `{"metadata":{"labels":{"patched":"merge"}}}`,
		"strategic": `{"metadata":{"labels":{"patched":"strategic"}}}`,
	} {
		t.Run("patch --type="+patchType, func(t *testing.T) {
			name := "patched-" + patchType
			create(t, name)
			s.Kubectl(t, "patch", "image", name, "--type", patchType, "-p", patch, "--dry-run=server")
			if got := labels(t, name); got != "" {
				t.Errorf("a dry run set labels %s", got)
			}
			s.Kubectl(t, "patch", "image", name, "--type", patchType, "-p", patch)
			if got, want := labels(t, name), fmt.Sprintf(`{"patched":%q}`, patchType); got != want {
				t.Errorf("labels %s, want %s", got, want)
			}
		})
	}
	t.Run("dry run", func(t *testing.T) {
		s.KubectlStdin(t, plainImage("dry"), "create", "--dry-run=server", "-f", "-")
		s.KubectlStdin(t, plainImage("dry"), "apply", "--server-side", "--dry-run=server", "-f", "-")
		if got := s.TryKubectl(t, "get", "image", "dry"); got.Code == 0 {
			t.Error("a dry run created an Image")
		}
		create(t, "kept")
		s.Kubectl(t, "delete", "image", "kept", "--dry-run=server")
		s.Kubectl(t, "label", "image", "kept", "x=y", "--dry-run=server")
		if got := labels(t, "kept"); got != "" {
			t.Errorf("a dry run set labels %s", got)
		}
	})
	t.Run("replace", func(t *testing.T) {
		create(t, "replaced")
		current := s.Kubectl(t, "get", "image", "replaced", "-o", "json")
		s.KubectlStdin(t, strings.Replace(current, `"name": "replaced"`, `"name": "replaced", "labels": {"by": "put"}`, 1), "replace", "-f", "-")
		if got := labels(t, "replaced"); got != `{"by":"put"}` {
			t.Errorf("labels %s", got)
		}
		c := s.KubectlCommand(t, "replace", "-f", "-")
		c.Stdin = current // its resourceVersion is old now
		if got := harness.Run(t, c); got.Code == 0 {
			t.Error("a stale replace was accepted")
		} else {
			wantContains(t, "the message", got.Stderr, "Conflict")
		}
	})
	t.Run("diff", func(t *testing.T) {
		create(t, "diffed")
		c := s.KubectlCommand(t, "diff", "--server-side", "-f", "-")
		c.Stdin = plainImage("diffed", "new", "label")
		if got := harness.Run(t, c); got.Code != 1 {
			t.Errorf("exit code %d, want 1 for a difference:\n%s%s", got.Code, got.Stdout, got.Stderr)
		} else {
			wantContains(t, "the diff", got.Stdout, "+    new: label")
		}
	})
}

// What was derived from content that a digest names cannot be changed: not
// silently, as elsewhere, but with an answer that names the field.
func TestImmutableContent(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	img := images.HelloWorld(t)
	s.Import(t, r.Push(t, "library/hello-world:1", img))
	name := images.Digest(t, img).String()
	before := getImage(t, s, name)
	for patch, named := range map[string]string{
		`{"dockerImageLayers":[{"name":"sha256:` + strings.Repeat("0", 64) + `","size":1,"mediaType":"a/b"}]}`: "dockerImageLayers",
		`{"dockerImageMetadata":{"Architecture":"s390x"}}`:                                                     "dockerImageMetadata",
		`{"dockerImageManifest":"{}"}`:                                                                         "dockerImageManifest",
		`{"dockerImageConfig":"{}"}`:                                                                           "dockerImageConfig",
	} {
		t.Run(patch, func(t *testing.T) {
			got := s.TryKubectl(t, "patch", "image", name, "--type=merge", "-p", patch)
			if got.Code == 0 {
				t.Fatalf("accepted: %s", patch)
			}
			wantContains(t, "the message", got.Stderr, "invalid", named)
		})
	}
	if after := getImage(t, s, name); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Error("a refused write changed the Image")
	}

	t.Run("a manifest under another name", func(t *testing.T) {
		u := before.DeepCopy()
		u.SetName("sha256:" + strings.Repeat("0", 64))
		u.SetResourceVersion("")
		u.SetUID("")
		b, err := u.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		c := s.KubectlCommand(t, "create", "-f", "-")
		c.Stdin = string(b)
		if got := harness.Run(t, c); got.Code == 0 {
			t.Error("accepted")
		} else {
			wantContains(t, "the message", got.Stderr, "metadata.name", name)
		}
	})
}

func TestKubectlDeleteCollection(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	var list strings.Builder
	for i := range 12 {
		fmt.Fprintln(&list, plainImage(fmt.Sprintf("old-%02d", i), "age", "old"))
		fmt.Fprintln(&list, plainImage(fmt.Sprintf("new-%02d", i), "age", "new"))
	}
	s.KubectlStdin(t, list.String(), "create", "-f", "-")
	remaining := func() int { return len(imageNames(t, s)) }

	s.Kubectl(t, "delete", "--raw", imagesPath+"?labelSelector=age%3Dold&dryRun=All")
	if n := remaining(); n != 24 {
		t.Errorf("a dry run left %d of 24", n)
	}
	s.Kubectl(t, "delete", "--raw", imagesPath+"?labelSelector=age%3Dold")
	if n := remaining(); n != 12 {
		t.Errorf("%d are left, want 12", n)
	}
	s.Kubectl(t, "delete", "images", "-l", "age=new")
	if n := remaining(); n != 0 {
		t.Errorf("%d are left, want none", n)
	}
}
