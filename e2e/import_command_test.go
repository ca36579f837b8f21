package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// Exit 0 is all imported, 1 some, 2 none or misuse; whatever fails says what
// and, for misuse, what to type instead.
func TestImportExitCodesAndMessages(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	good := r.Push(t, "team/app:v1", images.Numbered(t, 1)[0])
	chart := r.Push(t, "charts/app:v1", images.Artifact(t))
	absentTag, absentRepository := r.Host+"/team/app:v2", r.Host+"/team/nothing:v1"
	nobody := "127.0.0.1:1/team/app:v1" // port 1 is closed

	for name, tc := range map[string]struct {
		args   []string
		code   int
		stdout []string
		output []string // in either stream
	}{
		"all":                     {[]string{good}, 0, []string{good, "sha256:"}, nil},
		"all, twice the same":     {[]string{good, good}, 0, []string{good}, nil},
		"some":                    {[]string{good, absentTag}, 1, []string{good, "sha256:"}, []string{absentTag, "not found"}},
		"none: tag":               {[]string{absentTag}, 2, nil, []string{absentTag, "not found"}},
		"none: repository":        {[]string{absentRepository}, 2, nil, []string{absentRepository, "not found"}},
		"none: no registry":       {[]string{nobody}, 2, nil, []string{nobody, "unreachable"}},
		"none: not an image":      {[]string{chart}, 2, nil, []string{chart, "not an image"}},
		"nothing to import":       {nil, 2, nil, []string{"tidewaiter import"}},
		"bad reference":           {[]string{r.Host + "/Team/App:v1"}, 2, nil, []string{"lower case", r.Host + "/team/app:v1"}},
		"URL for a reference":     {[]string{"https://" + good}, 2, nil, []string{"scheme", good}},
		"bad reference, one good": {[]string{good, "team//app"}, 2, nil, []string{"team//app", "team/app"}},
		"unknown flag":            {[]string{"--all-tag", good}, 2, nil, []string{"--all-tag", "--all-tags"}},
		"unknown output":          {[]string{"-o", "xml", good}, 2, nil, []string{"xml", "name", "json", "yaml", "wide"}},
		"bad platform":            {[]string{"--platform", "linux", good}, 2, nil, []string{"linux/arm64", "leave it out"}},
		"tag with --all-tags":     {[]string{"--all-tags", good}, 2, nil, []string{r.Host + "/team/app"}},
		"bad jobs":                {[]string{"--jobs", "0", good}, 2, nil, []string{"--jobs"}},
		"missing file":            {[]string{"-f", "no-such-file"}, 2, nil, []string{"no-such-file"}},
		"two targets":             {[]string{"--data-dir", t.TempDir(), good}, 2, nil, []string{"--kubeconfig", "--data-dir"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := s.TryImport(t, tc.args...)
			if got.Code != tc.code {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", got.Code, tc.code, got.Stdout, got.Stderr)
			}
			wantContains(t, "standard output", got.Stdout, tc.stdout...)
			wantContains(t, "the output", got.Stdout+got.Stderr, tc.output...)
			for _, bad := range []string{"panic", "goroutine ", "nternal error", "\x1b"} {
				if strings.Contains(got.Stdout+got.Stderr, bad) {
					t.Errorf("the output contains %q:\n%s%s", bad, got.Stdout, got.Stderr)
				}
			}
		})
	}
	// None of the misuse cases left anything behind.
	if got := imageNames(t, s); !slices.Equal(got, []string{images.Digest(t, images.Numbered(t, 1)[0]).String()}) {
		t.Errorf("stored images: %v", got)
	}
}

// Each output format is one a program can read.
func TestImportOutputFormats(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	hello, multi := images.HelloWorld(t), images.MultiArch(t)
	refs := []string{r.Push(t, "library/hello-world:1", hello), r.Push(t, "team/multi:1", multi)}
	want := []string{images.Digest(t, hello).String(), images.Digest(t, multi).String()}

	t.Run("name", func(t *testing.T) {
		out := s.Import(t, append([]string{"-o", "name"}, refs...)...)
		for _, l := range lines(out) {
			if !regexp.MustCompile(`^image\.image\.openshift\.io/sha256:[0-9a-f]{64}$`).MatchString(l) {
				t.Errorf("line %q is no name that kubectl takes", l)
			}
			s.Kubectl(t, "get", l)
		}
		wantContains(t, "the output", out, want...)
	})
	// A list of the Images that the references lead to and of their platforms, as kubectl prints
	// one.
	manifest, err := multi.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	all := slices.Clone(want)
	for _, m := range manifest.Manifests {
		if m.Annotations["vnd.docker.reference.type"] == "" { // no attestation
			all = append(all, m.Digest.String())
		}
	}
	checkList := func(t *testing.T, out string, unmarshal func([]byte, any) error) {
		t.Helper()
		var list struct {
			APIVersion, Kind string
			Items            []struct {
				APIVersion, Kind string
				Metadata         struct{ Name, ResourceVersion string }
			}
		}
		if err := unmarshal([]byte(out), &list); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		var got []string
		for _, item := range list.Items {
			if item.APIVersion != "image.openshift.io/v1" || item.Kind != "Image" || item.Metadata.ResourceVersion == "" {
				t.Errorf("not an Image as stored: %+v", item)
			}
			got = append(got, item.Metadata.Name)
		}
		slices.Sort(got)
		if list.APIVersion != "v1" || list.Kind != "List" || !slices.Equal(got, slices.Sorted(slices.Values(all))) {
			t.Errorf("%s %s of %q, want v1 List of %q", list.APIVersion, list.Kind, got, all)
		}
	}
	t.Run("json", func(t *testing.T) {
		checkList(t, s.Import(t, append([]string{"-o", "json"}, refs...)...), json.Unmarshal)
	})
	t.Run("yaml", func(t *testing.T) {
		checkList(t, s.Import(t, append([]string{"-o", "yaml"}, refs...)...), func(b []byte, v any) error { return yaml.Unmarshal(b, v) })
	})
	t.Run("json of nothing", func(t *testing.T) {
		got := s.TryImport(t, "-o", "json", r.Host+"/team/nothing:1")
		var list struct{ Items []any }
		if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil || list.Items == nil || len(list.Items) != 0 {
			t.Errorf("not an empty list: %v: %s", err, got.Stdout)
		}
	})
	t.Run("wide", func(t *testing.T) {
		out := s.Import(t, append([]string{"-o", "wide"}, refs...)...)
		for i := range refs {
			if !slices.ContainsFunc(lines(out), func(l string) bool {
				return strings.Contains(l, refs[i]) && strings.Contains(l, want[i])
			}) {
				t.Errorf("no line has %s and %s:\n%s", refs[i], want[i], out)
			}
		}
	})
}

func TestImportFromFileAndStandardInput(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 3)
	r.PushAll(t, "team/app", imgs)
	ref := func(i int) string { return fmt.Sprintf("%s/team/app:%d", r.Host, i) }
	list := "# what production runs\n" + ref(0) + "\n\n  " + ref(1) + "  \r\n"

	file := filepath.Join(t.TempDir(), "references")
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	out := s.Import(t, "-f", file, ref(2))
	for i, img := range imgs {
		wantContains(t, "the output", out, ref(i), images.Digest(t, img).String())
	}

	c := harness.ImportCommand(t, "--kubeconfig", s.Kubeconfig, "-f", "-")
	c.Stdin = list
	out = harness.MustRun(t, c)
	wantContains(t, "the output", out, ref(0), ref(1))
	if strings.Contains(out, ref(2)) {
		t.Errorf("%s was not on standard input:\n%s", ref(2), out)
	}

	c.Stdin = "team/app:v1\nthis is no reference\n"
	got := harness.Run(t, c)
	if got.Code != 2 {
		t.Errorf("exit code %d, want 2", got.Code)
	}
	wantContains(t, "the message", got.Stderr, "this is no reference", "2") // the line
}

func TestImportAllTags(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 25)
	r.PushAll(t, "team/app", imgs)
	out := s.Import(t, "--all-tags", "--jobs", "4", r.Host+"/team/app")
	if n := len(lines(out)); n != len(imgs) {
		t.Errorf("%d lines for %d tags:\n%s", n, len(imgs), out)
	}
	if n := len(imageNames(t, s)); n != len(imgs) {
		t.Errorf("%d images are stored, want %d", n, len(imgs))
	}
}

// --platform imports one child of an index and leaves the others.
func TestImportPlatform(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	multi := images.MultiArch(t)
	ref := r.Push(t, "team/multi:1", multi)
	s.Import(t, "--platform", "linux/arm64", ref)
	for _, child := range images.Children(t, multi) {
		stored := slices.Contains(imageNames(t, s), child.Digest.String())
		if want := child.Platform.Architecture == "arm64"; stored != want {
			t.Errorf("%s: stored %t, want %t", child.Platform, stored, want)
		}
	}

	got := s.TryImport(t, "--platform", "linux/s390x", ref)
	if got.Code != 2 {
		t.Errorf("a platform the index lacks: exit code %d, want 2", got.Code)
	}
	wantContains(t, "the message", got.Stdout+got.Stderr, "linux/arm64") // what there is instead
}

func TestImportDryRunStoresNothing(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	multi := images.MultiArch(t)
	ref := r.Push(t, "team/multi:1", multi)
	out := s.Import(t, "--dry-run", ref)
	wantContains(t, "the output", out, ref, images.Digest(t, multi).String(), "dry run")
	if got := imageNames(t, s); len(got) != 0 {
		t.Errorf("a dry run stored %v", got)
	}

	// What it prints is what would be stored: it can be reviewed, and created.
	img := images.HelloWorld(t)
	ref = r.Push(t, "library/hello-world:1", img)
	s.KubectlStdin(t, s.Import(t, "--dry-run", "-o", "yaml", ref), "create", "-f", "-")
	checkImage(t, s, ref, img)
}

// A digest that is stored costs one HEAD; another reference to it is added to
// those known, and the first is kept.
func TestImportAgain(t *testing.T) {
	t.Parallel()
	s, r := harness.SharedServer(t), registry.Start(t, registry.Distribution)
	img := images.Busybox(t)
	first := r.Push(t, "library/busybox:1.36", img)
	second := r.Push(t, "mirror/busybox:stable", img)
	s.Import(t, first)
	digest := images.Digest(t, img).String()
	before := getImage(t, s, digest)

	asked := len(r.Requests(t))
	s.Import(t, first)
	var manifests []string
	for _, q := range r.Requests(t)[asked:] {
		if strings.Contains(q.Path, "/manifests/sha256:") || strings.Contains(q.Path, "/manifests/1.36") || strings.Contains(q.Path, "/blobs/") {
			manifests = append(manifests, q.Method+" "+q.Path)
		}
	}
	if len(manifests) != 1 || !strings.HasPrefix(manifests[0], "HEAD ") {
		t.Errorf("importing a stored image again asked the registry for %q, want one HEAD", manifests)
	}
	if after := getImage(t, s, digest); after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("importing the same reference again wrote the Image")
	}

	s.Import(t, second)
	var known []string
	if err := json.Unmarshal([]byte(getImage(t, s, digest).GetAnnotations()["tidewaiter.dev/references"]), &known); err != nil {
		t.Fatalf("annotation tidewaiter.dev/references: %v", err)
	}
	if !slices.Contains(known, first) || !slices.Contains(known, second) || !slices.IsSorted(known) {
		t.Errorf("known references %q, want %q and %q, sorted", known, first, second)
	}
}

// A running server that holds the data directory gets the images; without one they go into the
// directory, which is made if that is said; the environment's KUBECONFIG is heeded.
func TestImportTargets(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, 3)
	r.PushAll(t, "team/app", imgs)
	ref := func(i int) string { return fmt.Sprintf("%s/team/app:%d", r.Host, i) }
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	dataDir := filepath.Join(t.TempDir(), "data")

	if got := harness.Run(t, harness.ImportCommand(t, "--data-dir", dataDir, ref(0))); got.Code != 2 {
		// nor is one made
		t.Errorf("exit code %d, want 2:\n%s", got.Code, got.Stderr)
	}
	// none runs
	harness.MustRun(t, harness.ImportCommand(t, "--data-dir", dataDir, "--create-data-dir", ref(0)))
	s := harness.StartServerOn(t, dataDir)
	s.Kubectl(t, "get", "image", digest(0))

	harness.MustRun(t, harness.ImportCommand(t, "--data-dir", dataDir, ref(1))) // this server
	s.Kubectl(t, "get", "image", digest(1))

	c := harness.ImportCommand(t, ref(2)) // KUBECONFIG
	c.Env = append(c.Env, "KUBECONFIG="+s.Kubeconfig)
	harness.MustRun(t, c)
	s.Kubectl(t, "get", "image", digest(2))
	if _, err := os.Stat(filepath.Join(c.Dir, "tidewaiter-data")); err == nil {
		t.Error("an import with KUBECONFIG made a data directory")
	}

	// What was imported without a server is what a server would have stored.
	checkImage(t, s, ref(0), imgs[0])
	checkImage(t, s, ref(1), imgs[1])
}

// A registry that hands out other bytes than a digest names is found out.
func TestImportChecksBytes(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	tamper := func(t *testing.T, r *registry.Registry, blob v1.Hash) {
		t.Helper()
		path := r.BlobPath(blob)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("config", func(t *testing.T) {
		r, img := registry.Start(t, registry.Distribution), images.HelloWorld(t)
		ref := r.Push(t, "library/hello-world:1", img)
		config, err := img.ConfigName()
		if err != nil {
			t.Fatal(err)
		}
		tamper(t, r, config)
		got := s.TryImport(t, ref)
		if got.Code != 2 {
			t.Errorf("exit code %d, want 2:\n%s", got.Code, got.Stdout)
		}
		wantContains(t, "the message", got.Stdout+got.Stderr, "digest mismatch", config.String())
	})
	t.Run("layer", func(t *testing.T) {
		r, img := registry.Start(t, registry.Distribution), images.Busybox(t)
		ref := r.Push(t, "library/busybox:1", img)
		s.Import(t, "--dry-run", "--layers=verify", ref)
		manifest, err := img.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		layer := manifest.Layers[len(manifest.Layers)-1].Digest
		tamper(t, r, layer)
		got := s.TryImport(t, "--layers=verify", ref)
		if got.Code != 2 {
			t.Errorf("--layers=verify: exit code %d, want 2:\n%s", got.Code, got.Stdout)
		}
		wantContains(t, "the message", got.Stdout+got.Stderr, layer.String())
		s.Import(t, ref) // the manifest is sound, and layers are not read
	})
}
