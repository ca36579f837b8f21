package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
)

// attachSBOM pushes an SBOM, or a VEX document, as a referrer of an image.
func attachSBOM(t *testing.T, registry *registrytest.Registry, repository, digest, typ, content string) {
	t.Helper()
	artifact, err := sample.Artifact(typ, []byte(content))
	if err != nil {
		t.Fatal(err)
	}
	hash, err := v1.NewHash(digest)
	if err != nil {
		t.Fatal(err)
	}
	registry.Push(repository+":referrer", mutate.Subject(artifact, v1.Descriptor{MediaType: types.OCIManifestSchema1, Digest: hash, Size: 100}).(v1.Image))
}

// sbomOf is an SBOM of Debian packages, as name@version.
func sbomOf(all ...string) string {
	var components []string
	for _, p := range all {
		name, version, _ := strings.Cut(p, "@")
		components = append(components, fmt.Sprintf(`{"type":"library","name":%q,"version":%q,"purl":"pkg:deb/debian/%[1]s@%[2]s?arch=amd64"}`, name, version))
	}
	return `{"bomFormat":"CycloneDX","specVersion":"1.6","components":[` + strings.Join(components, ",") + `]}`
}

// Packages are imported, selected by, reviewed, described, and forgotten with their image.
func TestPackages(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	attachSBOM(t, l.a, "team/app", l.digests["old"], "application/vnd.cyclonedx+json", sbomOf("openssl@3.0.1-1", "bash@5.2"))
	attachSBOM(t, l.a, "team/app", l.digests["new"], "application/vnd.cyclonedx+json", sbomOf("openssl@3.0.11-1"))
	attachSBOM(t, l.a, "team/app", l.digests["new"], "application/vnd.openvex+json", `{"@context":"https://openvex.dev/ns/v0.2.0","author":"Ann","statements":[{"vulnerability":{"name":"CVE-2014-0160"},"status":"not_affected"}]}`)
	attachSBOM(t, l.b, "team/lone", l.digests["lone"], "application/spdx+json", `{"spdxVersion":"SPDX-2.3","packages":[{"name":"openssl","versionInfo":"unknown"}]}`)
	l.run("import", l.a.Host+"/team/app:v1", l.a.Host+"/team/app@"+l.digests["old"], l.b.Host+"/team/lone:v2")

	selected := func(selector string, limit int64) (names []string) {
		t.Helper()
		for options := (metav1.ListOptions{FieldSelector: selector, Limit: limit}); ; {
			list, err := l.images.List(t.Context(), options)
			if err != nil {
				t.Fatal(selector, err)
			}
			for i := range list.Items {
				for called, digest := range l.digests {
					if digest == list.Items[i].Name {
						names = append(names, called)
					}
				}
			}
			if options.Continue = list.Continue; options.Continue == "" {
				slices.Sort(names)
				return names
			}
		}
	}
	for selector, want := range map[string][]string{
		"package=openssl":                {"lone", "new", "old"},
		"package=bash":                   {"old"},
		"package=pkg:deb/debian/openssl": {"new", "old"},
		"package=pkg:deb/debian/openssl@3.0.11-1?arch\\=amd64": {"new"},
		"package=nothing": nil,
		"package=openssl,references=" + l.b.Host + "/team/lone":   {"lone"},
		"package=openssl,references=" + l.a.Host + "/team/app:v1": {"new"},
		"package=openssl,signatures.verified=True":                nil,
		"package=openssl,dockerImageMetadata.Architecture=amd64":  {"lone", "new", "old"},
		"package=openssl,metadata.name=" + l.digests["new"]:       {"new"},
	} {
		for _, limit := range []int64{0, 1, 2, 500} {
			if got := selected(selector, limit); !slices.Equal(got, want) {
				t.Errorf("%s in pages of %d: %v, want %v", selector, limit, got, want)
			}
		}
	}
	for _, selector := range []string{"package!=openssl", "package=a,package=b", "package=pkg:"} {
		if _, err := l.images.List(t.Context(), metav1.ListOptions{FieldSelector: selector}); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", selector, err)
		}
	}
	if _, err := l.images.Watch(t.Context(), metav1.ListOptions{FieldSelector: "package=openssl"}); !apierrors.IsBadRequest(err) {
		t.Errorf("watched: %v", err)
	}

	for act, want := range map[string][]string{
		"openssl":                        {"3 images by", "what has the package openssl"},
		"openssl@<3.0.7":                 {"MayContain", "Contains", "team/lone", "2 images by", "maybe in the range: the package has no package URL"},
		"openssl@>=3.0.7":                {"MayContain", "2 images by"},
		"pkg:deb/debian/openssl@>=3.0.7": {"1 image by", "team/app:v1", "openssl 3.0.11-1 (Unsigned)", "VEX: CVE-2014-0160 not_affected, says Ann (Unsigned)"},
		"pkg:deb/debian/openssl@3.0.11-1?arch=amd64":     {"1 image by", "Contains", "team/app:v1"},
		"pkg:deb/debian/openssl@3.0.11%2D1?arch=amd64#a": {"1 image by", "Contains", "team/app:v1"},
		"pkg:deb/debian/openssl@3.0.11-1?arch=arm64":     {"nothing is known to be touched"},
		"bash@>6": {"nothing is known to be touched"},
		"curl":    {"nothing is known to be touched"},
	} {
		stdout, stderr, code := l.run("impact", "-o", "wide", "--package", act)
		if code != cli.ExitOK {
			t.Errorf("impact --package %s ends with %d, and nothing runs", act, code)
		}
		for _, text := range want {
			if !strings.Contains(stdout+stderr, text) {
				t.Errorf("impact --package %s lacks %q:\n%s%s", act, text, stdout, stderr)
			}
		}
		if !strings.Contains(stderr, "no SBOM was read") {
			t.Errorf("impact --package %s does not say that images without an SBOM are unknown: %s", act, stderr)
		}
	}

	for called, want := range map[string][]string{
		"new":   {"1 package in 1 SBOM", "CycloneDX", "Unsigned", "VEX", "CVE-2014-0160 not_affected", "Ann"},
		"other": {"unknown: no SBOM"},
	} {
		stdout, _, _ := l.run("describe", l.digests[called])
		for _, text := range want {
			if !strings.Contains(strings.Join(strings.Fields(stdout), " "), text) {
				t.Errorf("describe of %s lacks %q:\n%s", called, text, stdout)
			}
		}
	}

	// Who may list images learns nothing of their packages from a selector without the right to
	// list those.
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	admin := newClientset(t, config)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "lister"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"image.openshift.io"}, Resources: []string{"images"}, Verbs: []string{"list"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "lister", "lister", "")
	bind(t, admin, "viewer", "tidewaiter:image-viewer", "")
	for user, refused := range map[string]bool{"lister": true, "viewer": false} {
		images, err := imageclient.New(as(config, user))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := images.List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = images.List(t.Context(), metav1.ListOptions{FieldSelector: "package=openssl"})
		if apierrors.IsForbidden(err) != refused || refused && !strings.Contains(err.Error(), `User "lister" cannot list resource "imagepackages" in API group "tidewaiter.dev"`) || !refused && err != nil {
			t.Errorf("%s selects by a package: %v", user, err)
		}
	}

	// Something runs of which no SBOM was read, so it is unknown whether that has a package.
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "unread"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: l.b.Host + "/team/app@" + l.digests["other"]}}}}
	if _, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "it is unknown whether what runs has a package", func() bool {
		stdout, stderr, code := l.run("impact", "--package", "curl")
		return code == cli.ExitSome && strings.Contains(stdout, "nothing is known to be touched") && strings.Contains(stderr, "pods run or workloads need 1 digest, and no SBOM")
	})

	list, err := l.images.GetPackages(t.Context(), l.digests["old"], metav1.GetOptions{})
	if err != nil || len(list.Sources) != 1 || len(list.Sources[0].Packages) != 2 || list.Sources[0].Packed != nil {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err = l.images.UpdatePackages(t.Context(), list, metav1.UpdateOptions{}); err != nil || list.Count() != 2 {
		// what is read can be written
		t.Errorf("%+v, %v", list, err)
	}
	deleteTagged(t, l.images, l.digests["old"])
	if _, err := l.images.GetPackages(t.Context(), l.digests["old"], metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the packages of a deleted image: %v", err)
	}
	if got := selected("package=openssl", 0); !slices.Equal(got, []string{"lone", "new"}) {
		t.Errorf("after a deletion: %v", got)
	}
}

// A writer of lists cannot store what readers cannot read.
func TestPackagesAreValidated(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	digest := l.digests["lone"]
	source := packages.Source{Repository: "example.com/app", Manifest: digest, Blob: digest, Format: packages.FormatSPDX}
	for name, change := range map[string]func(*packages.ImagePackages){
		"a name":       func(list *packages.ImagePackages) { list.Name = "app" },
		"a manifest":   func(list *packages.ImagePackages) { list.Sources[0].Manifest = "x" },
		"a repository": func(list *packages.ImagePackages) { list.Sources[0].Repository = "" },
		"packed text":  func(list *packages.ImagePackages) { list.Sources[0].Packed = []byte("text") },
		"no name":      func(list *packages.ImagePackages) { list.Sources[0].Packages = []packages.Package{{Version: "1"}} },
		"many packages": func(list *packages.ImagePackages) {
			list.Sources[0].Packages = make([]packages.Package, packages.MaxPackages+1)
		},
		"many documents": func(list *packages.ImagePackages) { list.Sources = slices.Repeat(list.Sources, packages.MaxSources+1) },
		"control characters": func(list *packages.ImagePackages) {
			list.Sources[0].Statements = []packages.Statement{{Vulnerability: "\x1b[31m", Status: "fixed"}}
		},
	} {
		list := &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}, Sources: []packages.Source{source}}
		change(list)
		if _, err := l.images.CreatePackages(t.Context(), list, metav1.CreateOptions{}); !apierrors.IsInvalid(err) && !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
