package main

import (
	"archive/zip"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// BenchmarkAdvisories shows how long impact --advisory takes with an archive of 50,000 advisories
// among 10,000 images with 400 packages each, and with one advisory. Images share bases: 200 of
// Debian packages, and 200 of their own of npm.
func BenchmarkAdvisories(b *testing.B) {
	const images, advisories, names, each = 10_000, 50_000, 5_000, 200
	dir := b.TempDir()
	seedWithPackages(b, dir, images, names, each)
	serveOn(b, dir, listen(b))
	archive, one := filepath.Join(b.TempDir(), "all.zip"), filepath.Join(b.TempDir(), "one.json")
	writeAdvisories(b, archive, one, advisories, names)
	for _, file := range []string{one, archive} {
		b.Run("File="+filepath.Base(file), func(b *testing.B) {
			peak := uint64(0)
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(50 * time.Millisecond):
						var m runtime.MemStats
						runtime.ReadMemStats(&m)
						peak = max(peak, m.HeapInuse)
					}
				}
			}()
			for b.Loop() {
				root := newRootCommand()
				root.PersistentPreRunE = nil
				var out, errOut strings.Builder
				if code := execute(b.Context(), root, []string{"impact", "--advisory", file, "--kubeconfig", server.KubeconfigPath(dir)}, strings.NewReader(""), &out, &errOut); code == 2 {
					b.Fatal(errOut.String())
				}
				b.Log(strings.SplitN(out.String(), "\n", 2)[0])
			}
			close(stop)
			b.ReportMetric(float64(peak>>20), "peak-MiB")
		})
	}
}

// packageOf is one of names packages, in a version.
func packageOf(n, version int) packages.Package {
	name := fmt.Sprint("package-", n)
	if n%2 == 0 {
		v := fmt.Sprintf("1.%d-1", version)
		return packages.Package{Name: name, Version: v, PURL: "pkg:deb/debian/" + name + "@" + v + "?arch=amd64&distro=debian-12&upstream=" + name}
	}
	v := fmt.Sprintf("1.%d.0", version)
	return packages.Package{Name: name, Version: v, PURL: "pkg:npm/" + name + "@" + v}
}

// seedWithPackages writes n Images into the store, past the API, each with a tag and a list of
// packages: those of one of 20 bases, and as many of its own.
func seedWithPackages(b *testing.B, dir string, n, names, each int) {
	b.Helper()
	bases := make([][]packages.Package, 20)
	r := rand.New(rand.NewPCG(1, 0))
	for i := range bases {
		for range each {
			bases[i] = append(bases[i], packageOf(2*r.IntN(names/2), r.IntN(20)))
		}
	}
	i := 0
	seedTagged(b, dir, n, func(getter *kubestore.Getter, ref reference.Reference, img *imagev1.Image) (also func() error) {
		all := append([]packages.Package{}, bases[i%len(bases)]...)
		i++
		for range each {
			all = append(all, packageOf(2*r.IntN(names/2)+1, r.IntN(20)))
		}
		lists := getter.Store(packages.GroupVersion.WithResource(packages.Resource).GroupResource())
		return func() error {
			packed, err := packages.Pack(all)
			if err != nil {
				return err
			}
			list := &packages.ImagePackages{
				ObjectMeta: metav1.ObjectMeta{Name: img.Name, UID: "00000000-0000-4000-8000-000000000001", CreationTimestamp: img.CreationTimestamp},
				Sources:    []packages.Source{{Repository: ref.Name(), Manifest: img.Name, Blob: img.Name, Format: packages.FormatSPDX, Count: int32(len(all)), Packed: packed}},
			}
			return lists.Create(context.Background(), "/tidewaiter.dev/imagepackages/"+img.Name, list, &packages.ImagePackages{}, 0)
		}
	})
}

// writeAdvisories writes an archive of n advisories, a tenth of which is about packages that are
// here, and a file with one.
func writeAdvisories(b *testing.B, archive, one string, n, names int) {
	b.Helper()
	f, err := os.Create(archive)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	w := zip.NewWriter(f)
	r := rand.New(rand.NewPCG(2, 0))
	for i := range n {
		p := packageOf(r.IntN(names), 0)
		ecosystem, fixed := "npm", fmt.Sprintf("1.%d.0", r.IntN(20))
		if strings.HasPrefix(p.PURL, "pkg:deb") {
			ecosystem, fixed = "Debian:12", fmt.Sprintf("1.%d-1", r.IntN(20))
		}
		if i%10 > 0 {
			p.Name = fmt.Sprint("elsewhere-", i)
		}
		var versions []string
		for v := range 20 {
			versions = append(versions, fmt.Sprintf("%q", fmt.Sprintf("0.%d.0", v)))
		}
		text := strings.Replace(osv(fmt.Sprint("OSV-", i), "", ecosystem, p.Name, fixed), `"ranges"`, `"versions":[`+strings.Join(versions, ",")+`],"ranges"`, 1)
		entry, err := w.Create(fmt.Sprint(i, ".json"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := entry.Write([]byte(text)); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(one, []byte(osv("OSV-one", "", "npm", packageOf(1, 0).Name, "1.10.0")), 0o600); err != nil {
		b.Fatal(err)
	}
}
