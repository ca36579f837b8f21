package imagepackages_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagepackages"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
)

func open(t testing.TB, d *db.DB) *imagepackages.REST {
	t.Helper()
	scheme := k8sruntime.NewScheme()
	if err := packages.Install(scheme); err != nil {
		t.Fatal(err)
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	lists, err := imagepackages.NewLists(kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{}), scheme)
	if err != nil {
		t.Fatal(err)
	}
	return imagepackages.NewREST(lists, nil)
}

// ctx is a context of a request about a kind that belongs to no namespace.
func ctx() context.Context {
	return genericapirequest.WithNamespace(context.Background(), metav1.NamespaceNone)
}

// digestOf is the digest of an image with a number.
func digestOf(i int) string { return manifest.Digest(fmt.Append(nil, i)) }

// listOf is a list of packages by name.
func listOf(digest string, all ...packages.Package) *packages.ImagePackages {
	return &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}, Sources: []packages.Source{{
		Repository: "registry.example.com/team/app", Manifest: digest, Blob: digest, Format: packages.FormatSPDX, Signed: true, Packages: all,
	}}}
}

func create(t testing.TB, lists *imagepackages.REST, list *packages.ImagePackages) {
	t.Helper()
	if _, err := lists.Create(ctx(), list, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func with(t testing.TB, lists *imagepackages.REST, query string, most int) (all []string) {
	t.Helper()
	revision := int64(0)
	for from, first := "", true; first || from != ""; first = false {
		names, at, more, err := lists.With(ctx(), query, from, revision, most)
		if err != nil {
			t.Fatal(err)
		}
		all, revision, from = append(all, names...), at, more
	}
	return all
}

// What the index finds is what a look at every list finds, in pages of any size and in random
// worlds.
func TestIndexFindsWhatListsHave(t *testing.T) {
	t.Parallel()
	lists := open(t, dbtest.Open(t))
	r := rand.New(rand.NewPCG(1, 2))
	have := map[string][]string{}
	for i := range 60 {
		var all []packages.Package
		for n := range 8 {
			if r.IntN(2) == 0 {
				name := fmt.Sprintf("package-%d", n)
				all = append(all, packages.Package{Name: name, PURL: fmt.Sprintf("pkg:npm/%s@%d", name, r.IntN(3))})
				have[name] = append(have[name], digestOf(i))
			}
		}
		create(t, lists, listOf(digestOf(i), all...))
	}
	for name, want := range have {
		slices.Sort(want)
		for _, most := range []int{1, 7, 500} {
			if got := with(t, lists, name, most); !slices.Equal(got, want) {
				t.Errorf("%s in pages of %d: %d images, want %d", name, most, len(got), len(want))
			}
			if got := with(t, lists, "pkg:npm/"+name, most); !slices.Equal(got, want) {
				t.Errorf("pkg:npm/%s in pages of %d: %d images, want %d", name, most, len(got), len(want))
			}
		}
		versions := 0
		for version := range 3 {
			versions += len(with(t, lists, fmt.Sprintf("pkg:npm/%s@%d", name, version), 500))
		}
		if versions != len(want) {
			t.Errorf("%s has %d images by version, and %d in all", name, versions, len(want))
		}
	}
	if n, err := lists.Count(ctx()); err != nil || n != 60 {
		t.Error(n, err)
	}
	if err := lists.Forget(ctx(), digestOf(0)); err != nil {
		t.Error(err)
	}
	if err := lists.Forget(ctx(), digestOf(0)); err != nil {
		t.Errorf("what is not there: %v", err)
	}
}

// A list that lacks packages of its image shows so, and is found.
func TestListsThatLackPackages(t *testing.T) {
	t.Parallel()
	lists := open(t, dbtest.Open(t))
	create(t, lists, listOf(digestOf(0), packages.Package{Name: "openssl"}))
	for i, problem := range []string{"", "damaged", ""} {
		if partly, err := lists.Partly(ctx()); err != nil || partly != (i == 2) {
			t.Errorf("%t, %v", partly, err)
		}
		if i == 2 {
			break
		}
		list := listOf(digestOf(i + 1))
		if list.Sources[0].Problem = problem; problem != "" {
			list.Sources[0].Format = ""
		}
		create(t, lists, list)
	}
	for i, want := range []string{"1", "0", "Unknown"} {
		list, err := lists.Get(ctx(), digestOf(i), &metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		table, err := lists.ConvertToTable(ctx(), list, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := table.Rows[0].Cells[1]; got != want {
			t.Errorf("%v packages, want %s", got, want)
		}
	}
}

// A value that no package has is the caller's mistake.
func TestWithBadValue(t *testing.T) {
	t.Parallel()
	lists := open(t, dbtest.Open(t))
	for _, value := range []string{"", "pkg:"} {
		if _, _, _, err := lists.With(ctx(), value, "", 0, 1); !apierrors.IsBadRequest(err) {
			t.Errorf("%q: %v", value, err)
		}
	}
}

// Each server over a shared truth has an index of its own of the lists that another wrote.
func TestIndexOfReplica(t *testing.T) {
	t.Parallel()
	truth := dbtest.NewTruth()
	one, other := open(t, dbtest.Open(t, func(o *db.Options) { o.Truth = truth })), open(t, dbtest.Open(t, func(o *db.Options) { o.Truth = truth }))
	create(t, one, listOf(digestOf(1), packages.Package{Name: "openssl"}))
	if got := with(t, other, "openssl", 10); !slices.Equal(got, []string{digestOf(1)}) {
		t.Errorf("the other server finds %v", got)
	}
	if err := other.Forget(ctx(), digestOf(1)); err != nil {
		t.Fatal(err)
	}
	if got := with(t, one, "openssl", 10); got != nil {
		t.Errorf("after a deletion: %v", got)
	}
}

// debianLike are 400 packages of an image: 250 that most images have, and 150 of some 20,000.
func debianLike(r *rand.Rand) (all []packages.Package) {
	add := func(name, version string) {
		all = append(all, packages.Package{Name: name, Version: version, PURL: fmt.Sprintf("pkg:deb/debian/%s@%s?arch=amd64&distro=debian-12", name, version), License: "GPL-2.0-or-later"})
	}
	for i := range 250 {
		add(fmt.Sprintf("libcommon%d-perl", i), fmt.Sprintf("1.%d.%d-%d+deb12u%d", i%7, i%13, i%3, r.IntN(4)))
	}
	for range 150 {
		n := r.IntN(20_000)
		add(fmt.Sprintf("node-module-%d", n), fmt.Sprintf("%d.%d.0", n%11, r.IntN(9)))
	}
	return all
}

// BenchmarkPackages measures 10,000 images of 400 packages: writing a list, how large the file
// becomes, and finding images.
func BenchmarkPackages(b *testing.B) {
	const n = 10_000
	dir := b.TempDir()
	lists := open(b, dbtest.Open(b, func(o *db.Options) { o.Dir = dir }))
	r := rand.New(rand.NewPCG(3, 4))
	all := make([]*packages.ImagePackages, n)
	packed := 0
	for i := range all {
		all[i] = listOf(digestOf(i), debianLike(r)...)
		bytes, err := packages.Pack(all[i].Sources[0].Packages)
		if err != nil {
			b.Fatal(err)
		}
		all[i].Sources[0].Packages, all[i].Sources[0].Packed = nil, bytes // as importers send them
		packed += len(bytes)
	}
	written := 0
	b.Run("Op=Write", func(b *testing.B) {
		b.SetParallelism(8)
		for b.Loop() {
			if written < n {
				create(b, lists, all[written])
				written++
			}
		}
	})
	for ; written < n; written++ {
		create(b, lists, all[written])
	}
	all = nil
	var size int64
	files, err := filepath.Glob(filepath.Join(dir, "tidewaiter.db*"))
	if err != nil {
		b.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			size += info.Size()
		}
	}
	var memory runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&memory)
	b.Logf("%d lists: %d bytes packed, %d bytes of files, %d bytes of heap", n, packed, size, memory.HeapAlloc)
	for name, query := range map[string]string{"In=All": "libcommon7-perl", "In=Few": "node-module-77", "In=None": "nothing"} {
		b.Run("Op=Page/"+name, func(b *testing.B) {
			for b.Loop() {
				if _, _, _, err := lists.With(ctx(), query, "", 0, 500); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
