package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

var (
	scaleImages = flag.String("images", "1000,10000", "numbers of Images of BenchmarkScale")
	imageLabels = flag.Int("labels", 36, "labels of each Image of these benchmarks: 36 make it take about 20 kB")
	scaleDir    = flag.String("scaledir", "", "keep and reuse the data directories of BenchmarkScale in this directory")
)

// BenchmarkScale shows how the cost of a server, in a process of its own,
// grows with the number of Images it holds. A million take 20 GB and minutes to
// write: -images=1000,1000000 -scaledir=DIR keeps them for the next run.
func BenchmarkScale(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Images="+text, func(b *testing.B) { benchScale(b, n) })
	}
}

// scaleMatches is the number of Images that each selector of BenchmarkScale selects.
const scaleMatches = 10

// scaleBase is what the Images are built on that are few, by their annotations.
const scaleBase = "registry.example.com/base:1"

const imagesKey = "/image.openshift.io/images/"

func benchScale(b *testing.B, n int) {
	dir := b.TempDir()
	if *scaleDir != "" {
		dir = filepath.Join(*scaleDir, strconv.Itoa(n))
	}
	names := seed(b, dir, n)
	s := startProcess(b, dir)
	maker := newImageMaker(b, *imageLabels)
	// other Images than those of the seed and of earlier runs
	maker.made = int(time.Now().UnixNano())

	b.Run("Op=Get", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := s.do(http.MethodGet, benchPath+"/"+names[rand.IntN(n)], "", "", http.StatusOK); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("Op=Create", func(b *testing.B) {
		_, bodies := maker.make(b, b.N)
		b.ResetTimer()
		s.create(b, bodies)
	})
	list := func(query string) func(b *testing.B) {
		return func(b *testing.B) {
			for b.Loop() {
				if err := s.do(http.MethodGet, benchPath+"?"+query, "", "", http.StatusOK); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.Run("Op=List/Field=signer", list("fieldSelector=signatures.signer%3Drare"))
	b.Run("Op=List/Label=rare", list("labelSelector=rare"))
	b.Run("Op=Page/At=first", list("limit=500"))
	b.Run("Op=Page/At=last", func(b *testing.B) { list("limit=500&continue=" + url.QueryEscape(lastPage(b, s, names)))(b) })
	b.Run("Op=PageAllListWatch", func(b *testing.B) {
		for b.Loop() {
			pageListWatch(b, s, maker)
		}
	})
	b.Run("Op=DeleteCollection", func(b *testing.B) {
		for b.Loop() {
			deleteBesideReads(b, s, maker, names)
		}
	})
}

// openSeed opens the store of a data directory in which no server runs, with what writes each kind
// of images past the API. Callers close the store.
func openSeed(t testing.TB, dir string) (*db.DB, *kubestore.Getter) {
	t.Helper()
	store, err := db.Open(db.Options{Dir: dir, Views: server.Views()})
	if err != nil {
		t.Fatal(err)
	}
	getter := kubestore.NewGetter(store, legacyscheme.Codecs, kubestore.Options{})
	if _, err := imageapi.New(getter, imageapi.Options{Scheme: legacyscheme.Scheme}); err != nil {
		store.Close()
		t.Fatal(err)
	}
	return store, getter
}

// seed writes n Images into the store, past the API, and returns their names.
func seed(b testing.TB, dir string, n int) (names []string) {
	b.Helper()
	maker := newImageMaker(b, *imageLabels)
	rare := func(i int) bool { return i%(n/scaleMatches) == 0 }
	raw := func(i int) string {
		base := ""
		if rare(i) {
			base = fmt.Sprintf(`"org.opencontainers.image.base.name":%q,"org.opencontainers.image.base.digest":%q,`, scaleBase, manifest.Digest([]byte(scaleBase)))
		}
		return strings.TrimSuffix(maker.manifest, "}") + fmt.Sprintf(`,"annotations":{%s"seed":"%d"}}`, base, i)
	}
	names = make([]string, n)
	for i := range names {
		names[i] = manifest.Digest([]byte(raw(i)))
	}
	store, getter := openSeed(b, dir)
	defer store.Close()
	have, _, err := store.Totals(b.Context(), imagesKey)
	if err != nil {
		b.Fatal(err)
	}
	images := getter.Store(imagev1.Resource("images"))
	var writers errgroup.Group
	writers.SetLimit(16)
	for i := int(have); i < n; i++ {
		writers.Go(func() error {
			img := &imagev1.Image{
				ObjectMeta: metav1.ObjectMeta{
					Name: names[i], UID: "00000000-0000-4000-8000-000000000000", CreationTimestamp: metav1.Now(),
					Labels: map[string]string{"repo": fmt.Sprint("team-", i%50)},
				},
				DockerImageReference: "registry.example.com/team/app@" + names[i],
				DockerImageManifest:  raw(i),
				DockerImageConfig:    maker.Config,
				Signatures: []imagev1.ImageSignature{{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s@%032x", names[i], i)},
					Type:       imagev1.ImageSignatureTypeAtomicImageV1,
					Content:    make([]byte, 2000),
				}},
			}
			if err := manifest.Derive(img); err != nil {
				return err
			}
			if rare(i) {
				img.Labels["rare"] = "true"
				img.Signatures[0].IssuedTo = &imagev1.SignatureSubject{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "rare"}}
				for _, t := range []imagev1.SignatureConditionType{"Trusted", "ForImage"} {
					img.Signatures[0].Conditions = append(img.Signatures[0].Conditions, imagev1.SignatureCondition{Type: t, Status: corev1.ConditionTrue})
				}
			}
			return images.Create(context.Background(), imagesKey+img.Name, img, &imagev1.Image{}, 0)
		})
	}
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
	return names
}

// process is a server in a process of its own.
type process struct {
	*benchServer
	cmd *exec.Cmd
}

// startProcess runs the server over dir until the benchmark ends, and reports
// how long it took from its start until it was ready, and the disk it takes.
func startProcess(b *testing.B, dir string) *process {
	b.Helper()
	start := time.Now()
	s := runProcess(b, dir, "--config", servertest.WriteConfig(b, ownPodsOnly))
	ready := time.Since(start)
	file, err := os.Stat(filepath.Join(dir, datafile.FileName))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Op=Start", func(b *testing.B) {
		for b.Loop() {
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(ready.Seconds(), "s-to-ready")
		b.ReportMetric(float64(file.Size())/(1<<30), "GiB-of-disk")
	})
	return s
}

// runProcess runs the server over dir until the test ends, and returns when
// it is ready.
func runProcess(t testing.TB, dir string, flags ...string) *process {
	t.Helper()
	return runProcessAfter(t, "", dir, flags...)
}

// runProcessAfter is runProcess, in a shell that has run a command before, such
// as ulimit.
func runProcessAfter(t testing.TB, command, dir string, flags ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", append([]string{"-ec", command + "\nexec \"$@\"", "sh", self, "serve", "--data-dir", dir, "--secure-port", "0"}, flags...)...)
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	cmd.Stderr, err = os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for !strings.Contains(lines.Text(), "ready") {
		if !lines.Scan() {
			t.Fatal("the server ended before it was ready: ", lines.Err())
		}
	}
	go io.Copy(io.Discard, out)
	config, err := kubeconfigConfig(server.KubeconfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	return &process{connect(t, newAPITarget(config).Config), cmd}
}

// kill ends the process as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // it was killed
}

// mostMemory is the most memory the process ever had resident, in MiB.
func (p *process) mostMemory(t testing.TB) float64 {
	t.Helper()
	mib, err := mostResident(p.cmd.Process.Pid)
	if err != nil {
		t.Skip("only Linux tells: ", err)
	}
	return mib
}

// forgetMemory has mostMemory count from now on, where the system allows it; elsewhere it goes on
// to count all.
func (p *process) forgetMemory() {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.cmd.Process.Pid), []byte("5"), 0)
}

// mostResident is the most memory that a process has had resident, in MiB.
func mostResident(pid int) (mib float64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, line, _ := strings.Cut(string(status), "VmHWM:")
	_, err = fmt.Sscan(line, &mib)
	return mib / 1024, err
}

// runMeasured runs a program to its end and returns the most memory that it had resident, in MiB,
// but for what its last moments added. What the system tells of a process that has ended
// (ru_maxrss) is of no use: Linux counts in what its parent had resident when it was begun.
func runMeasured(cmd *exec.Cmd) (mib float64, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended, measured := make(chan struct{}), make(chan float64)
	go func() {
		looks := time.NewTicker(20 * time.Millisecond)
		defer looks.Stop()
		var most float64
		for {
			if mib, err := mostResident(cmd.Process.Pid); err == nil {
				most = max(most, mib)
			}
			select {
			case <-looks.C:
			case <-ended:
				measured <- most
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	return <-measured, err
}

// lastPage is a continue token for the last 500 of the seed.
func lastPage(b *testing.B, s *process, names []string) string {
	b.Helper()
	sorted := slices.Sorted(slices.Values(names))
	_, rv := readPage(b, s, "limit=1")
	token, err := storage.EncodeContinue(imagesKey+sorted[len(sorted)-500]+"\x00", imagesKey, rv)
	if err != nil {
		b.Fatal(err)
	}
	return token
}

// What the start of a list, or of the answer that its next page is too old, has.
var (
	listVersion  = regexp.MustCompile(`"resourceVersion":"(\d+)"`)
	listContinue = regexp.MustCompile(`"continue":"([^"]+)"`)
)

// readPage reads a page of a list, without decoding it. When the history of the
// list is gone, token goes on as of now, as upstream's clients would.
func readPage(b *testing.B, s *process, query string) (token string, rv int64) {
	b.Helper()
	resp, err := s.client.Get(s.Config.Host + benchPath + "?" + query)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	head := make([]byte, 2048)
	n, err := io.ReadFull(resp.Body, head)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if _, cerr := io.Copy(io.Discard, resp.Body); err != nil || cerr != nil {
		b.Fatal(err, cerr)
	}
	if found := listContinue.FindSubmatch(head[:n]); found != nil {
		token = string(found[1])
	}
	if found := listVersion.FindSubmatch(head[:n]); found != nil {
		rv, _ = strconv.ParseInt(string(found[1]), 10, 64)
	}
	if resp.StatusCode != http.StatusOK && (resp.StatusCode != http.StatusGone || token == "") {
		b.Fatalf("%s: %s", resp.Status, head[:n])
	}
	return token, rv
}

// pageListWatch pages through all Images while another client creates one and
// lists by label for each page, and ten watch.
func pageListWatch(b *testing.B, s *process, maker *imageMaker) {
	ctx, stop := context.WithCancel(b.Context())
	var others sync.WaitGroup
	_, now := readPage(b, s, "limit=1")
	for range 10 {
		others.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s%s?watch=true&resourceVersion=%d", s.Config.Host, benchPath, now), nil)
			resp, err := s.client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			defer resp.Body.Close()
			io.Copy(io.Discard, resp.Body) // until stop
		})
	}
	page := make(chan struct{})
	others.Go(func() {
		for range page {
			_, bodies := maker.make(b, 1)
			s.create(b, bodies)
			if err := s.do(http.MethodGet, benchPath+"?labelSelector=rare", "", "", http.StatusOK); err != nil {
				b.Error(err)
			}
		}
	})
	pages := 0
	for token := ""; token != "" || pages == 0; pages++ {
		select {
		case page <- struct{}{}:
		default: // the other client is slower
		}
		token, _ = readPage(b, s, "limit=500&continue="+url.QueryEscape(token))
	}
	close(page)
	stop()
	others.Wait()
	b.ReportMetric(float64(pages), "pages")
	b.ReportMetric(s.mostMemory(b), "MiB-resident-at-most")
}

// wholeLists are the forms of a list without a limit. The first needs no decoding.
var wholeLists = []struct{ name, query, accept string }{
	{"JSON", "", plainJSON},
	{"Selected", "labelSelector=!rare", plainJSON},
	{"YAML", "", "application/yaml"},
	{"SelectedYAML", "labelSelector=!rare", "application/yaml"},
	{"Table", "", tableJSON},
	{"Metadata", "", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
}

// readWhole reads a list without a limit and returns its length.
func (p *process) readWhole(t testing.TB, query, accept string) (size int64) {
	t.Helper()
	resp, err := p.client.Do(p.request(t.Context(), t, query, accept, "identity"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if size, err = io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("a list in %s: %s after %d bytes, %v", accept, resp.Status, size, err)
	}
	return size
}

// BenchmarkWholeList is the time of a list without a limit in each form, and the most memory that
// the server, with GOMEMLIMIT=1GiB, had resident by then.
func BenchmarkWholeList(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		dir := b.TempDir()
		seed(b, dir, n)
		for _, form := range wholeLists {
			b.Run(fmt.Sprintf("Images=%d/Form=%s", n, form.name), func(b *testing.B) {
				s := runProcessAfter(b, "export GOMEMLIMIT=1GiB", dir)
				cpu := s.metric(b, "process_cpu_seconds_total")
				for b.Loop() {
					b.SetBytes(s.readWhole(b, form.query, form.accept))
				}
				b.ReportMetric((s.metric(b, "process_cpu_seconds_total")-cpu)/float64(b.N), "cpu-s/list")
				b.ReportMetric(s.mostMemory(b), "MiB-resident-at-most")
			})
		}
	}
}

// A list without a limit takes the memory of pages and not of all that it has, in every form. What
// lists took is given back to the system: it is not resident for good.
func TestWholeListsTakeLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and the race detector takes memory of its own")
	}
	t.Parallel()
	dir := t.TempDir()
	seed(t, dir, 1500)
	s := runProcess(t, dir)
	collect := func() {
		if err := s.do(http.MethodGet, "/debug/pprof/heap?gc=1", "", "", http.StatusOK); err != nil {
			t.Fatal(err)
		}
	}
	collect()
	idle := s.resident(t)
	for _, form := range wholeLists {
		before := s.mostMemory(t)
		size, after := s.readWhole(t, form.query, form.accept), s.mostMemory(t)
		t.Logf("%s: %d MiB resident at most, %d before, for %d MiB", form.name, int(after), int(before), size>>20)
		if after > wholeListMemory {
			t.Errorf("%s: more than %d MiB", form.name, wholeListMemory)
		}
	}
	after := s.resident(t)
	servertest.Eventually(t, fmt.Sprintf("%d MiB were resident before the lists, %d after them; they come down to %d more than before", int(idle), int(after), leftOfLists), func() bool {
		collect()
		return s.resident(t) <= idle+leftOfLists
	})
	t.Logf("%d MiB resident before, %d after, %d in the end", int(idle), int(after), int(s.resident(t)))
}

// leftOfLists is how much more than before lists a server may have resident a while after them, in
// MiB: code that was used, and what is cached.
const leftOfLists = 64

// wholeListMemory is what a server should have resident at most that writes 1,500 Images, 30 MB in
// JSON, in MiB.
const wholeListMemory = 320

// deleteBesideReads reports what gets and creates take while 1,000 Images, found
// among all by their label, are deleted, and what they take otherwise.
func deleteBesideReads(b *testing.B, s *process, maker *imageMaker, names []string) {
	_, bodies := maker.make(b, 1000)
	for i, body := range bodies {
		bodies[i] = bytes.Replace(body, []byte(`"metadata":{`), []byte(`"metadata":{"labels":{"doomed":"true"},`), 1)
	}
	s.create(b, bodies)
	before := latencies(b, s, maker, names, func() { time.Sleep(3 * time.Second) })
	during := latencies(b, s, maker, names, func() {
		if err := s.do(http.MethodDelete, benchPath+"?labelSelector=doomed", "", "", http.StatusOK); err != nil {
			b.Error(err)
		}
	})
	b.ReportMetric(before.Seconds()*1000, "ms-p99-before")
	b.ReportMetric(during.Seconds()*1000, "ms-p99-during")
}

// latencies returns the 99th percentile of what requests take while do runs:
// four clients get, one creates.
func latencies(b *testing.B, s *process, maker *imageMaker, names []string, do func()) time.Duration {
	var mu sync.Mutex
	var took []time.Duration
	var clients sync.WaitGroup
	var done atomic.Bool
	client := func(request func()) {
		clients.Go(func() {
			for !done.Load() {
				start := time.Now()
				request()
				mu.Lock()
				took = append(took, time.Since(start))
				mu.Unlock()
			}
		})
	}
	for range 4 {
		client(func() {
			if err := s.do(http.MethodGet, benchPath+"/"+names[rand.IntN(len(names))], "", "", http.StatusOK); err != nil {
				b.Error(err)
			}
		})
	}
	client(func() {
		_, bodies := maker.make(b, 1)
		if err := s.do(http.MethodPost, benchPath, string(bodies[0]), "", http.StatusCreated); err != nil {
			b.Error(err)
		}
	})
	do()
	done.Store(true)
	clients.Wait()
	slices.Sort(took)
	return took[len(took)*99/100]
}
