package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/console"
)

// What there is besides Images when pages of the console are measured.
const (
	consolePods = 1000 // each of another image
	consoleTags = 2000
	seeded      = 2000    // the rest are copies
	maxCounted  = 100_000 // of more, pages are measured while the server counts them
)

// BenchmarkConsole shows the time to the first byte of each page of the console, of a server in a
// process of its own that follows a cluster and has been through all Images once, or goes through
// them if they are more than 100,000:
// -images=1000000 -scaledir=DIR, as for BenchmarkScale.
func BenchmarkConsole(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Images="+text, func(b *testing.B) { benchConsole(b, n) })
	}
}

func benchConsole(b *testing.B, n int) {
	dir := b.TempDir()
	if *scaleDir != "" {
		dir = filepath.Join(*scaleDir, strconv.Itoa(n))
	}
	names := seedMany(b, dir, n)
	seedConsoleTags(b, dir, names)
	s := runProcess(b, dir, "--config", followed(b, names))
	s.awaitCounts(b, n <= maxCounted)
	for _, page := range []struct{ name, path string }{
		{"Attention", ""}, {"Images", "images"}, {"ImagesByVerdict", "images?verdict=NoPolicy"}, {"ImagesBySize", "images?sort=size"}, {"ImagesUsed", "images?used=true"},
		{"ImagesByLayer", "images?layer=" + url.QueryEscape(s.layer(b, names[0]))}, {"Search", "images?q=nothing-like-it"}, {"Image", "image?ref=" + names[len(names)/2]}, {"ImageByTag", "image?ref=registry.example.com/team-7/app:v1"},
		{"Repositories", "repositories"}, {"Repository", "repository?name=registry.example.com/team-7/app"}, {"Compare", "compare?a=" + names[0] + "&b=" + names[1]},
		{"Running", "running"}, {"RunningPod", "running?pod=pod-7"}, {"Policies", "policies?try=registry.example.com/team-7/app:v1"}, {"Activity", "activity"}, {"Changes", "changes"}, {"Nothing", "no-such-page"}, {"SignIn", "sign-in"},
		{"AttentionLater", ""}, // the first page also shows what the start of the server costs
	} {
		b.Run("Page="+page.name, func(b *testing.B) {
			var all []time.Duration
			for b.Loop() {
				begun := time.Now()
				r, err := s.client.Get(s.Config.Host + console.Root + page.path)
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, time.Since(begun)) // the head of the answer is there
				body, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != http.StatusOK && page.name != "Nothing" {
					b.Fatalf("%s: %s %s, %v", page.path, r.Status, body, err)
				}
			}
			reportTimes(b, all, "ms-to-first-byte")
		})
	}
}

// reportTimes reports the median of times, in a unit of milliseconds, and their 90th percentile.
func reportTimes(b *testing.B, all []time.Duration, unit string) {
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2].Seconds()*1000, unit)
	b.ReportMetric(all[len(all)*9/10].Seconds()*1000, "ms-p90")
}

// seedMany has n Images in a data directory, and returns the names of those that are not copies.
func seedMany(b *testing.B, dir string, n int) (names []string) {
	b.Helper()
	names = seed(b, dir, min(n, seeded))
	if have := countImages(b, dir); have < n {
		more := make([]string, n-have)
		for i := range more {
			more[i] = manifest.Digest(fmt.Append(nil, have+i))
		}
		slices.Sort(more) // pages of the index of keys are written once
		dbtest.Multiply(b, dir, imagesKey, more)
	}
	return names
}

// seedConsoleTags writes tags that lead to images, in 50 repositories, past the API.
func seedConsoleTags(b *testing.B, dir string, names []string) {
	b.Helper()
	store, getter := openSeed(b, dir)
	defer store.Close()
	const prefix = "/image.openshift.io/imagetags/" + tags.Namespace + "/"
	if have, _, err := store.Totals(b.Context(), prefix); err != nil || have > 0 {
		if err != nil {
			b.Fatal(err)
		}
		return
	}
	for i := range consoleTags {
		ref, err := reference.Parse(fmt.Sprintf("registry.example.com/team-%d/app:v%d", i%50, i/50))
		if err != nil {
			b.Fatal(err)
		}
		tag := tags.New(ref)
		tag.UID, tag.CreationTimestamp = "00000000-0000-4000-8000-000000000000", metav1.Now()
		tags.Lead(tag, ref, names[i%len(names)], metav1.Now())
		if err := getter.Store(imagev1.Resource("imagetags")).Create(context.Background(), prefix+tag.Name, tag, &imagev1.ImageTag{}, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// followed writes the configuration of a server that follows a cluster whose pods run images.
func followed(b *testing.B, names []string) (file string) {
	b.Helper()
	cluster := clustertest.New(b)
	for i := range consolePods {
		cluster.Set(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("team-", i%20), Name: fmt.Sprint("pod-", i), CreationTimestamp: metav1.Now()},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: fmt.Sprintf("registry.example.com/team-%d/app:v%d", i%50, i/50)}}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "registry.example.com/team/app@" + names[i*(len(names)/consolePods)]}}},
		})
	}
	dir := b.TempDir()
	file = filepath.Join(dir, "config.yaml")
	for name, text := range map[string]string{filepath.Join(dir, "prod.kubeconfig"): string(cluster.Kubeconfig()), file: "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	return file
}

// text reads what is at a path.
func (p *process) text(b *testing.B, path string) string {
	b.Helper()
	r, err := p.client.Get(p.Config.Host + path)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s %s, %v", path, r.Status, body, err)
	}
	return string(body)
}

// countImages counts the Images of a data directory in which no server runs.
func countImages(b *testing.B, dir string) int {
	b.Helper()
	store, _ := openSeed(b, dir)
	defer store.Close()
	have, _, err := store.Totals(b.Context(), imagesKey)
	if err != nil {
		b.Fatal(err)
	}
	return int(have)
}

// awaitCounts waits until the server knows the cluster's pods, and has counted all Images if that
// is wanted.
func (p *process) awaitCounts(b *testing.B, images bool) {
	b.Helper()
	for images && !strings.Contains(p.text(b, "/tidewaiter/summary"), `"imagesAsOf"`) || !strings.Contains(p.text(b, "/apis/tidewaiter.dev/v1/clusters"), fmt.Sprintf(`"pods":%d`, consolePods)) {
		time.Sleep(200 * time.Millisecond)
	}
}

// layer is the digest of an image's first layer.
func (p *process) layer(b *testing.B, name string) string {
	b.Helper()
	_, after, _ := strings.Cut(p.text(b, benchPath+"/"+name), `"dockerImageLayers":[{"name":"`)
	digest, _, ok := strings.Cut(after, `"`)
	if !ok {
		b.Fatal("the image has no layer")
	}
	return digest
}

// BenchmarkLivePages shows the memory of a server for a thousand pages of Activity that are open,
// each in a browser of its own.
func BenchmarkLivePages(b *testing.B) {
	const pages = 1000
	s := runProcess(b, b.TempDir())
	for b.Loop() {
		before := s.resident(b)
		_, after, _ := strings.Cut(s.text(b, console.Root+"activity"), `sse-connect="`)
		path, _, _ := strings.Cut(after, `"`)
		ctx, stop := context.WithCancel(b.Context())
		var open sync.WaitGroup
		for i := range pages {
			config := restclient.CopyConfig(s.Config)
			config.Impersonate = restclient.ImpersonationConfig{UserName: fmt.Sprint("person-", i/50), Groups: []string{user.SystemPrivilegedGroup}}
			// a function of its own, so that each has its own connection
			config.Proxy = http.ProxyFromEnvironment
			client, err := restclient.HTTPClientFor(config)
			if err != nil {
				b.Fatal(err)
			}
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Config.Host+path, nil)
			if err != nil {
				b.Fatal(err)
			}
			r, err := client.Do(request)
			if err != nil || r.StatusCode != http.StatusOK {
				b.Fatalf("%v: %v", r, err)
			}
			first := make([]byte, 1)
			if _, err := io.ReadFull(r.Body, first); err != nil {
				b.Fatal(err)
			}
			open.Go(func() {
				_, _ = io.Copy(io.Discard, r.Body) // until stop
				r.Body.Close()
				client.CloseIdleConnections()
			})
		}
		b.ReportMetric(s.resident(b)-before, "MiB-for-1000-pages")
		stop()
		open.Wait()
	}
}

// resident is the memory that the process has resident, in MiB.
func (p *process) resident(b testing.TB) (mib float64) {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		b.Skip("only Linux tells: ", err)
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	if _, err := fmt.Sscan(line, &mib); err != nil {
		b.Fatal(err)
	}
	return mib / 1024
}
