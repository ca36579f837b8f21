package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/importer/registrytest/bulk"
)

var (
	bulkImages  = flag.Int("bulkimages", 2000, "number of images of BenchmarkBulk")
	bulkRepos   = flag.Int("bulkrepositories", 1, "number of repositories of BenchmarkBulk; if there are several, the whole registry is imported, and compared with a loop of go-containerregistry")
	bulkLatency = flag.String("bulklatency", "0s,50ms", "how long the registry of BenchmarkBulk takes to answer")
	bulkJobs    = flag.String("bulkjobs", "16,64", "--jobs of BenchmarkBulk")
	bulkServer  = flag.Bool("bulkserver", false, "have a server in a process of its own hold the data directory of BenchmarkBulk")
	bulkSBOM    = flag.Int("bulkpackages", 0, "number of packages that an SPDX document lists beside each image of BenchmarkBulk")
	bulkFail    = flag.Int("bulkfail", 0, "have the registry of BenchmarkBulk answer every n-th request with 503 and a Retry-After of a second; the generators and peers, which would fail, are left out")
	bulkProfile = flag.String("bulkprofile", "", "folder for processor profiles of the imports and of the server of BenchmarkBulk, which cost some time")
	bulkPeers   = flag.Int("bulkpeers", 60, "number of images that crane and skopeo read, a process for each, as many at a time as there are jobs; zero leaves them out")
)

// bulkEnv makes this test binary the registry of BenchmarkBulk, or the program that asks it
// the same as an import does and does nothing with the answers. It is JSON of bulkRole.
const bulkEnv = "TIDEWAITER_TEST_BULK"

// profileEnv is the file for the processor profile of a process that is the tidewaiter command.
const profileEnv = "TIDEWAITER_TEST_PROFILE"

// profiled runs a command, and writes its processor profile if the environment names a file.
func profiled(command func() int) int {
	if file := os.Getenv(profileEnv); file != "" {
		out, err := os.Create(file)
		if err == nil {
			err = pprof.StartCPUProfile(out)
		}
		if err != nil {
			log.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	return command()
}

// profileOf is the environment of a process whose profile gets a name.
func profileOf(name string) (environment []string) {
	if *bulkProfile != "" {
		environment = append(environment, profileEnv+"="+filepath.Join(*bulkProfile, name+".pprof"))
	}
	return environment
}

type bulkRole struct {
	Registry *bulk.Options
	Load     *bulkLoad
}

// bulkLoad is what to ask: of each image a HEAD, its signatures and, unless it is Known, its
// manifest and config.
type bulkLoad struct {
	URL          string
	Images, Jobs int
	Repositories int
	Known        bool
	// Referrers says whether they are asked for; tag lists are not, of which an import needs one
	// for all images.
	Referrers bool
	// Store is the file of a database, if what is read is to be checked, parsed and stored.
	Store string
	// Loop has go-containerregistry read catalog, tags, manifests and configs instead.
	Loop bool
}

// bulkMain is the process of a role.
func bulkMain(text string) error {
	var role bulkRole
	if err := json.Unmarshal([]byte(text), &role); err != nil {
		return err
	}
	if role.Load != nil {
		return role.Load.run()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	registry := bulk.New(*role.Registry)
	fmt.Println("http://" + l.Addr().String())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the benchmark
		os.Exit(0)
	}()
	return http.Serve(l, registry)
}

func (l *bulkLoad) run() error {
	if l.Loop {
		return l.loop()
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: l.Jobs, DisableCompression: true}}
	names := bulk.New(bulk.Options{Repositories: l.Repositories})
	var store *bulkStore
	if l.Store != "" {
		var err error
		if store, err = openBulkStore(l.Store); err != nil {
			return err
		}
	}
	var next atomic.Int64
	var failure atomic.Pointer[error]
	var workers sync.WaitGroup
	for range l.Jobs {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < l.Images && failure.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := l.one(client, names.Reference(i), store); err != nil {
					failure.Store(&err)
				}
			}
		})
	}
	workers.Wait()
	if err := failure.Load(); err != nil {
		return *err
	}
	if store != nil {
		return store.close()
	}
	return nil
}

// loop reads the whole registry, with one process and without storing anything.
func (l *bulkLoad) loop() error {
	registry, err := name.NewRegistry(strings.TrimPrefix(l.URL, "http://"), name.Insecure)
	if err != nil {
		return err
	}
	puller, err := remote.NewPuller(remote.WithJobs(l.Jobs))
	if err != nil {
		return err
	}
	repositories, err := remote.Catalog(context.Background(), registry)
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(l.Jobs)
	for _, repository := range repositories {
		repository := registry.Repo(repository)
		tags, err := remote.List(repository, remote.Reuse(puller))
		if err != nil {
			return err
		}
		for _, tag := range tags {
			group.Go(func() error {
				described, err := remote.Get(repository.Tag(tag), remote.Reuse(puller))
				if err != nil {
					return err
				}
				image, err := described.Image()
				if err == nil {
					_, err = image.RawConfigFile()
				}
				return err
			})
		}
	}
	return group.Wait()
}

func (l *bulkLoad) one(client *http.Client, reference string, store *bulkStore) error {
	repository, tag, _ := strings.Cut(reference, ":")
	ask := func(method, what string) (http.Header, []byte, error) {
		req, err := http.NewRequest(method, l.URL+"/v2/"+repository+"/"+what, nil)
		if err != nil {
			return nil, nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			err = cmp.Or(err, fmt.Errorf("%s %s: %s", method, what, resp.Status))
		}
		return resp.Header, body, err
	}
	header, _, err := ask(http.MethodHead, "manifests/"+tag)
	digest := header.Get("Docker-Content-Digest")
	var manifest, config []byte
	if err == nil && !l.Known {
		if _, manifest, err = ask(http.MethodGet, "manifests/"+digest); err == nil {
			_, rest, _ := bytes.Cut(manifest, []byte(`"digest":"`))
			configDigest, _, _ := bytes.Cut(rest, []byte(`"`))
			_, config, err = ask(http.MethodGet, "blobs/"+string(configDigest))
		}
	}
	if err == nil && l.Referrers {
		_, _, err = ask(http.MethodGet, "referrers/"+digest)
	}
	switch {
	case err != nil || store == nil:
		return err
	case l.Known:
		return store.has(reference, digest)
	default:
		return store.add(reference, digest, manifest, config)
	}
}

// BenchmarkBulk prints a table of imports of many images: for each latency there is a registry in a
// process of its own; for each number of jobs a plain load generator that makes the same requests,
// once storing what it reads and once throwing it away, `tidewaiter import` into a new data
// directory, and once more when all is known. Then crane and skopeo, if there are any. It prints
// the rows.
//
//	make bench-import
func BenchmarkBulk(b *testing.B) {
	for latency := range strings.SplitSeq(*bulkLatency, ",") {
		for jobs := range strings.SplitSeq(*bulkJobs, ",") {
			b.Run(fmt.Sprintf("Latency=%s/Jobs=%s", latency, jobs), func(b *testing.B) {
				wait, err := time.ParseDuration(latency)
				if err != nil {
					b.Fatal(err)
				}
				n, err := strconv.Atoi(jobs)
				if err != nil {
					b.Fatal(err)
				}
				for range b.N {
					benchBulk(b, wait, n)
				}
			})
		}
	}
}

func benchBulk(b *testing.B, latency time.Duration, jobs int) {
	o := bulk.Options{Images: *bulkImages, Repositories: *bulkRepos, Layers: 12, Latency: latency, Referrers: true, Packages: *bulkSBOM, FailEvery: *bulkFail}
	r := startBulkRegistry(b, o)
	references := filepath.Join(b.TempDir(), "references.txt")
	var text strings.Builder
	names := bulk.New(bulk.Options{Repositories: o.Repositories})
	for i := range o.Images {
		fmt.Fprintf(&text, "%s/%s\n", r.host, names.Reference(i))
	}
	if err := os.WriteFile(references, []byte(text.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Logf("%-30s %9s %9s %9s %8s  %s", "", "images/s", "ms cpu", "registry", "MiB", "requests")
	data := filepath.Join(b.TempDir(), "data")
	var cold time.Duration
	server := 0 // its process
	if *bulkServer {
		server = startBulkServer(b, data)
	}
	for _, known := range []bool{false, true} {
		what := map[bool]string{false: "cold", true: "known"}[known]
		var least, load time.Duration
		if o.FailEvery == 0 {
			generator := bulkLoad{URL: r.URL, Images: o.Images, Repositories: o.Repositories, Jobs: jobs, Known: known, Referrers: true}
			floor := generator
			floor.Store = filepath.Join(filepath.Dir(references), "floor.db")
			least, _ = r.measure(b, "generator that stores, "+what, o.Images, bulkCommand(b, bulkRole{Load: &floor}))
			load, _ = r.measure(b, "generator, "+what, o.Images, bulkCommand(b, bulkRole{Load: &generator}))
		}
		self, err := os.Executable()
		if err != nil {
			b.Fatal(err)
		}
		from := []string{"-f", references}
		if o.Repositories > 1 {
			from = []string{"--catalog", r.host + "/"}
		}
		cmd := exec.Command(self, slices.Concat([]string{"import"}, from, []string{"--jobs", fmt.Sprint(jobs), "--data-dir", data, "--create-data-dir"})...)
		cmd.Env = slices.Concat(os.Environ(), []string{serveEnv + "=1", "KUBECONFIG="}, profileOf("import-"+what))
		before := time.Duration(0)
		if server != 0 {
			before = processorTime(b, server)
		}
		took, used := r.measure(b, "tidewaiter import, "+what, o.Images, cmd)
		if server != 0 {
			cpu := processorTime(b, server) - before
			used += cpu
			most, err := mostResident(server)
			if err != nil {
				b.Fatal(err)
			}
			b.Logf("%-30s %9s %9.2f %9s %8.0f", "its server", "", cpu.Seconds()*1000/float64(o.Images), "", most)
		}
		if !known {
			cold = took
		}
		if o.Repositories > 1 && o.FailEvery == 0 {
			loop, least := r.measure(b, "loop of go-containerregistry", o.Images, bulkCommand(b, bulkRole{Load: &bulkLoad{URL: r.URL, Jobs: jobs, Loop: true}}))
			b.ReportMetric(took.Seconds()/loop.Seconds(), what+"-times-loop")
			b.ReportMetric(used.Seconds()/least.Seconds(), what+"-cpu-times-loop")
		}
		b.ReportMetric(float64(o.Images)/took.Seconds(), what+"-images/s")
		if o.FailEvery == 0 {
			b.ReportMetric(load.Seconds()/took.Seconds(), what+"/generator")
			b.ReportMetric(least.Seconds()/took.Seconds(), what+"/storing")
		}
	}
	if o.FailEvery > 0 {
		return
	}
	for _, peer := range bulkPeerCommands(b, references, jobs) {
		name, _, _ := strings.Cut(strings.TrimPrefix(peer.Args[2], ": "), ";")
		took, _ := r.measure(b, name, *bulkPeers, peer)
		b.ReportMetric(took.Seconds()/float64(*bulkPeers)/(cold.Seconds()/float64(o.Images)), "times-"+name)
	}
}

// bulkPeerCommands read the first images, jobs at a time, as people do in a shell.
func bulkPeerCommands(b *testing.B, references string, jobs int) (commands []*exec.Cmd) {
	loop := func(name, program, what string) {
		path, err := exec.LookPath(program)
		if err != nil {
			path, err = filepath.Abs(filepath.Join("../../e2e/.tools/bin", program))
			if _, statErr := os.Stat(path); err != nil || statErr != nil {
				b.Logf("%s is not there", program)
				return
			}
		}
		commands = append(commands, exec.Command("sh", "-ec", fmt.Sprintf(`: %s; head -n %d %s | xargs -P %d -I REF sh -ec '%s' >/dev/null`, name, *bulkPeers, references, jobs, strings.ReplaceAll(what, program+" ", path+" "))))
	}
	if *bulkPeers > 0 {
		loop("crane", "crane", `crane manifest --insecure REF; crane config --insecure REF`)
		loop("skopeo", "skopeo", `skopeo inspect --tls-verify=false docker://REF`)
	}
	return commands
}

// bulkRegistry is the registry's process.
type bulkRegistry struct {
	URL, host string
	cmd       *exec.Cmd
}

func bulkCommand(b *testing.B, role bulkRole) *exec.Cmd {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	text, err := json.Marshal(role)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), bulkEnv+"="+string(text))
	return cmd
}

func startBulkRegistry(b *testing.B, o bulk.Options) *bulkRegistry {
	b.Helper()
	cmd := bulkCommand(b, bulkRole{Registry: &o})
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	url := strings.TrimSpace(line)
	return &bulkRegistry{URL: url, host: strings.TrimPrefix(url, "http://"), cmd: cmd}
}

// startBulkServer runs `tidewaiter serve` over a data directory, and returns its process.
func startBulkServer(b *testing.B, data string) (pid int) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, "serve", "--data-dir", data, "--secure-port", "0")
	cmd.Env = slices.Concat(os.Environ(), []string{serveEnv + "=1"}, profileOf("server"))
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		b.Fatalf("the server did not start: %q, %v", line, err)
	}
	return cmd.Process.Pid
}

// measure runs a program and prints what it did and cost, for each of n images.
func (r *bulkRegistry) measure(b *testing.B, what string, n int, cmd *exec.Cmd) (took, cpu time.Duration) {
	b.Helper()
	r.requests(b, http.MethodDelete)
	var stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = nil, &stderr
	before, start := processorTime(b, r.cmd.Process.Pid), time.Now()
	memory, err := runMeasured(cmd)
	if err != nil {
		b.Fatalf("%s: %v\n%s", what, err, &stderr)
	}
	took = time.Since(start)
	asked := processorTime(b, r.cmd.Process.Pid) - before
	cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	resident := fmt.Sprintf("%.0f", memory)
	if filepath.Base(cmd.Path) == "sh" {
		resident = "" // the shell's, and not that of what it runs
	}
	var kinds []string
	counts := r.requests(b, http.MethodGet)
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		kinds = append(kinds, fmt.Sprintf("%d %s", counts[kind], kind))
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(n) }
	b.Logf("%-30s %9.0f %9.2f %9.2f %8s  %s", what, float64(n)/took.Seconds(), each(cpu), each(asked), resident, strings.Join(kinds, ", "))
	return took, cpu
}

// requests are those that the registry has counted.
func (r *bulkRegistry) requests(b *testing.B, method string) (counts map[string]int64) {
	b.Helper()
	req, err := http.NewRequest(method, r.URL+"/requests", nil)
	if err != nil {
		b.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&counts); err != nil {
		b.Fatal(err)
	}
	return counts
}

// processorTime is that of a process, of which clock ticks are a hundredth of a second
// (proc_pid_stat(5)).
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest)) // from the third on
	user, err1 := strconv.Atoi(fields[11])
	system, err2 := strconv.Atoi(fields[12])
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
