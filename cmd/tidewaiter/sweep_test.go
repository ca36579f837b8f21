package main

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A server that is killed while it judges all its Images goes on, when it is
// started again, with those that it had not come to. The metrics tell how far it is.
func TestSweepGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: no processes are killed")
	}
	const n = 500 // five stretches between pauses
	var s *process
	var first, second reverify.Progress
	for attempt := 0; second.Changed == 0; attempt++ {
		if attempt == 10 {
			t.Fatalf("it was done before it could be killed, %d times", attempt)
		}
		dir := t.TempDir()
		_, trust := seedSigned(t, dir, n)
		s = runProcess(t, dir, "--policy", trust)
		first = s.swept(t, func(p reverify.Progress) bool {
			remaining := s.metric(t, "tidewaiter_reverify_remaining_images")
			return p.Changed == n || p.Changed > 0 && remaining > 0 && remaining <= n*3/4
		})
		s.kill()
		s = runProcess(t, dir, "--policy", trust)
		second = s.swept(t, func(p reverify.Progress) bool { return !p.Running })
	}
	if second.Examined != n || second.Verified[verdicts.VerifiedTrue] != n {
		t.Errorf("%+v", second)
	}
	if second.Changed > n-first.Changed {
		t.Errorf("%d Images had been written when it was killed, and %d of %d were afterwards", first.Changed, second.Changed, n)
	}
	for name, want := range map[string]int64{
		"tidewaiter_reverify_remaining_images":                 0,
		`tidewaiter_reverify_images_total{result="changed"}`:   second.Changed,
		`tidewaiter_reverify_images_total{result="unchanged"}`: n - second.Changed,
		`tidewaiter_reverify_sweeps_total{result="success"}`:   1,
	} {
		if got := s.metric(t, name); got != float64(want) {
			t.Errorf("%s is %v, want %d", name, got, want)
		}
	}
}

// metric is the value of a metric of the process, -1 if it shows none.
func (p *process) metric(t testing.TB, name string) float64 {
	t.Helper()
	resp, err := p.client.Get(p.Config.Host + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	return -1
}

// BenchmarkSweep has a server, in a process of its own, judge Images that it
// never had a policy for, each signed with a key: every verdict changes, so every
// Image is written. Half way the process is killed and started again. Two clients
// get 100 Images a second each, before and meanwhile.
func BenchmarkSweep(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Images="+text, func(b *testing.B) {
			for range b.N {
				benchSweep(b, n)
			}
		})
	}
}

func benchSweep(b *testing.B, n int) {
	dir, trust := b.TempDir(), ""
	var names []string
	if *scaleDir == "" {
		names, trust = seedSigned(b, dir, n)
	} else {
		kept := filepath.Join(*scaleDir, "signed-"+strconv.Itoa(n))
		names, trust = seedSigned(b, kept, n)
		if err := os.CopyFS(dir, os.DirFS(kept)); err != nil {
			b.Fatal(err)
		}
	}
	s := runProcess(b, dir)
	s.swept(b, func(p reverify.Progress) bool { return !p.Running })
	before := s.getLatencies(b, names, func() { time.Sleep(5 * time.Second) })
	s.kill()

	var left, redone int64
	var took time.Duration
	during := []time.Duration{}
	for range 2 {
		start := time.Now()
		s = runProcess(b, dir, "--policy", trust)
		var p reverify.Progress
		during = append(during, s.getLatencies(b, names, func() {
			p = s.swept(b, func(p reverify.Progress) bool { return !p.Running || left == 0 && p.Examined >= int64(n)/2 })
		})...)
		s.kill()
		took += time.Since(start)
		if left == 0 { // killed half way
			left = int64(n) - p.Changed
			continue
		}
		if p.Examined != int64(n) || p.Verified[verdicts.VerifiedTrue] != int64(n) {
			b.Fatalf("%+v", p)
		}
		redone = p.Changed - left
	}
	slices.Sort(during)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(n)/took.Seconds(), "images/s")
	b.ReportMetric(took.Seconds(), "s")
	// Less than nothing: what was written between the last look and the end.
	b.ReportMetric(float64(redone), "images-redone")
	for _, l := range []struct {
		when  string
		times []time.Duration
	}{{"before", before}, {"during", during}} {
		for _, percentile := range []int{50, 99} {
			b.ReportMetric(l.times[len(l.times)*percentile/100].Seconds()*1000, fmt.Sprintf("ms-p%d-%s", percentile, l.when))
		}
	}
}

// seedSigned writes n Images signed with one key into the store, past the API, as
// a server without policies keeps them, unless they are there. It returns their
// names and a policy that trusts the key.
func seedSigned(t testing.TB, dir string, n int) (names []string, trust string) {
	t.Helper()
	raw := func(i int) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","annotations":{"seed":"%d"}}`, i)
	}
	names = make([]string, n)
	for i := range names {
		names[i] = manifest.Digest([]byte(raw(i)))
	}
	trust = filepath.Join(dir, "policy.yaml")
	if _, err := os.Stat(trust); err == nil {
		return names, trust
	}
	store, getter := openSeed(t, dir)
	defer store.Close()
	images := getter.Store(imagev1.Resource("images"))
	key := signaturestest.NewKey(t, signaturestest.P256)
	var writers errgroup.Group
	writers.SetLimit(16)
	for i, name := range names {
		content := signaturestest.Marshal(t, key.SimpleSigning(t, name, "registry.example.com/team/app"))
		writers.Go(func() error {
			img := &imagev1.Image{
				ObjectMeta:                   metav1.ObjectMeta{Name: name, UID: "00000000-0000-4000-8000-000000000000", CreationTimestamp: metav1.Now()},
				DockerImageReference:         "registry.example.com/team/app@" + name,
				DockerImageManifest:          raw(i),
				DockerImageManifestMediaType: "application/vnd.oci.image.manifest.v1+json",
				// Of the size of a common one.
				DockerImageConfig: fmt.Sprintf(`{"architecture":"amd64","os":"linux","config":{"Labels":{"filler":%q}}}`, strings.Repeat("text ", 800)),
				Signatures: []imagev1.ImageSignature{{
					ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(name, content)},
					Type:       signatures.TypeSimpleSigning, Content: content,
				}},
			}
			signatures.VerifyImage(img, nil, time.Now(), nil)
			return images.Create(context.Background(), imagesKey+name, img, &imagev1.Image{}, 0)
		})
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	doc := signaturestest.Document("signed", `["registry.example.com"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
	if err := os.WriteFile(trust, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	return names, trust
}

// swept waits for the first sweep after the start of a server to be as far as
// enough says, and returns its progress.
func (p *process) swept(t testing.TB, enough func(reverify.Progress) bool) reverify.Progress {
	t.Helper()
	client := progressClient(t, p.Config)
	for {
		progress, err := askVerification(t.Context(), client.Get())
		if err != nil {
			t.Fatal(err)
		}
		if progress.Error != "" {
			t.Fatal(progress.Error)
		}
		if progress.Sweep > 0 && enough(progress) {
			return progress
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func progressClient(t testing.TB, config *restclient.Config) restclient.Interface {
	t.Helper()
	c := restclient.CopyConfig(config)
	c.NegotiatedSerializer = legacyscheme.Codecs.WithoutConversion()
	client, err := restclient.UnversionedRESTClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// getLatencies returns, in order of size, what gets of single Images take while
// do runs.
func (p *process) getLatencies(b *testing.B, names []string, do func()) []time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		clients.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				start := time.Now()
				if err := p.do(http.MethodGet, benchPath+"/"+names[rand.IntN(len(names))], "", "", http.StatusOK); err != nil {
					b.Error(err)
				}
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	do()
	close(done)
	clients.Wait()
	slices.Sort(took)
	return took
}
