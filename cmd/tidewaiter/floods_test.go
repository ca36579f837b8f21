package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

var floodTable = flag.String("flood-table", "", "have floods at their full size, and write their table into this document (some minutes)")

// floodMemory is what a server under any of the floods should have resident at most, in MiB.
// A test allows half as much again: a collector of garbage that gets no processor is late.
const floodMemory = 600

// flood is something that many callers, or one with many connections, do at once.
type flood struct {
	behaviour string
	// ends says what becomes of it.
	ends string
	// images of the given size are there before.
	images, bytes int
	// few is how many there are of it in a test, 0 for no test, and many in the table. Those that are
	// few take more memory than the test allows, or more connections, if nothing bounds them.
	few, many int
	// before is a command of the shell that runs before the server, and flags are the server's.
	before string
	flags  func(t *testing.T) []string
	// another has another user get objects meanwhile, at the attackers' address; else it is the
	// same user at another address.
	another bool
	// attack goes on until ctx is done. It calls begun when it is at its height.
	attack func(ctx context.Context, t *testing.T, s *process, n int, begun func())
}

const (
	selfReviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	podReview   = `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"1","resource":{"group":"","version":"v1","resource":"pods"},"operation":"CREATE","object":{"spec":{"containers":[{}`

	selectsAll  = "labelSelector=flood"
	selectsFew  = "labelSelector=rare"
	watchesAll  = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
	watchesSome = "watch=1&resourceVersion=0&" + selectsAll

	plainJSON = "application/json"
	tableJSON = "application/json;as=Table;v=v1;g=meta.k8s.io"

	// How floods end.
	refused     = "in turn; the excess gets 429 with `Retry-After`"
	cutOff      = "as many as there is room for, each until its client takes nothing for 30 s"
	ofOne       = "25 in flight and 25 that wait; the others get 429"
	watched     = "1,250 are served; the others get 429"
	tooMuch     = "413, and 429 when the room for bodies is full"
	unreadPages = "32 MiB wait for their readers; of the reader with most, the oldest page is cut off"
	inTime      = "as many as there is room for, until their deadline of a minute; the others get 429"
)

var floods = []flood{
	{behaviour: "1,000 lists selecting 10", ends: refused, images: 1500, bytes: 12 << 10, few: 100, many: 1000, attack: lists(selectsFew, plainJSON, "")},
	{behaviour: "400 lists selecting all", ends: refused, images: 1500, bytes: 12 << 10, few: 60, many: 400, attack: lists(selectsAll, plainJSON, "")},
	{behaviour: "400 lists as tables", ends: refused, images: 1500, bytes: 12 << 10, many: 400, attack: lists("", tableJSON, "")},
	{behaviour: "lists over 64 connections (gets by another user)", ends: ofOne, images: 1500, bytes: 12 << 10, many: 64, another: true, attack: lists("", plainJSON, "")},
	{behaviour: "lists selecting 10 over 64 connections (gets by another user)", ends: ofOne, images: 1500, bytes: 12 << 10, many: 64, another: true, attack: lists(selectsFew, plainJSON, "")},
	{behaviour: "10,000 watches (gets by another user)", ends: watched, images: 1500, bytes: 12 << 10, many: 10_000, another: true, attack: watches},
	{behaviour: "1,000 lists", ends: refused, images: 1500, bytes: 12 << 10, many: 1000, attack: lists("", plainJSON, "")},
	{behaviour: "1,000 compressed lists", ends: refused, images: 1500, bytes: 12 << 10, many: 1000, attack: lists("", plainJSON, "gzip")},
	{behaviour: "1,000 lists, not read", ends: inTime, images: 1500, bytes: 12 << 10, few: 200, many: 1000, attack: unread("", "limit=500")},
	{behaviour: "400 lists selecting all, not read", ends: inTime, images: 1500, bytes: 12 << 10, many: 400, attack: unread(selectsAll)},
	{behaviour: "200 lists of 30 Images of 2 MB, not read", ends: inTime, images: 30, bytes: 2 << 20, few: 40, many: 200, attack: unread("")},
	{behaviour: "200 lists selecting 30 Images of 2 MB, not read", ends: inTime, images: 30, bytes: 2 << 20, many: 200, attack: unread(selectsAll)},
	{behaviour: "10 watches that begin with 30 Images of 2 MB, not read", ends: cutOff, images: 30, bytes: 2 << 20, few: 10, many: 10, attack: unread(watchesAll)},
	{behaviour: "10 watches with a selector that begin with 30 Images of 2 MB, not read", ends: cutOff, images: 30, bytes: 2 << 20, many: 10, attack: unread(watchesSome)},
	{behaviour: "200 watches that begin with 30 Images of 2 MB, not read", ends: cutOff, images: 30, bytes: 2 << 20, many: 200, attack: unread(watchesAll)},
	{behaviour: "200 watches with a selector that begin with 30 Images of 2 MB, not read", ends: cutOff, images: 30, bytes: 2 << 20, many: 200, attack: unread(watchesSome)},
	{behaviour: "200 watches that begin with all, not read", ends: cutOff, images: 1500, bytes: 12 << 10, few: 100, many: 200, attack: unread(watchesAll, watchesSome)},
	{behaviour: "1,250 watches that begin with all, not read", ends: cutOff, images: 1500, bytes: 12 << 10, many: 1250, attack: unread(watchesAll, watchesSome)},
	{behaviour: "layers of a stream with 500 tags over 30 connections (gets by another user)", ends: refused, images: 1500, bytes: 12 << 10, few: 30, many: 30, another: true, attack: streamLayers},
	{behaviour: "90 reviews of 2.4 MB of YAML with 230,000 unknown keys (user without a role)", ends: tooMuch, images: 1500, bytes: 12 << 10, few: 40, many: 90,
		attack: bodies(selfReviews, "application/yaml", repeated("spec: {}\n", "k%d: 0\n", 230_000, ""), http.StatusRequestEntityTooLarge)},
	{behaviour: "90 reviews of 2.6 MB of JSON with 230,000 unknown keys (user without a role)", ends: tooMuch, images: 1500, bytes: 12 << 10, many: 90,
		attack: bodies(selfReviews, plainJSON, repeated(`{"spec":{}`, `,"k%d":0`, 230_000, "}"), http.StatusRequestEntityTooLarge)},
	{behaviour: "90 reviews with 95 wrong parts (user without a role)", ends: refused, images: 1500, bytes: 12 << 10, few: 40, many: 90,
		attack: bodies(selfReviews, plainJSON, repeated(`{"spec":{"resourceAttributes":{"labelSelector":{"requirements":[{}`, ",{}", 94, "]}}}}"), http.StatusUnprocessableEntity)},
	{behaviour: "90 admission reviews of 5.7 MB that name 1,900,000 containers", ends: tooMuch, images: 1500, bytes: 12 << 10, many: 90,
		attack: bodies(admission.Path, plainJSON, repeated(podReview, ",{}", 1_900_000, "]}}}}"), http.StatusRequestEntityTooLarge)},
	{behaviour: "90 admission reviews of 6 MB", ends: refused, images: 1500, bytes: 12 << 10, many: 90,
		attack: bodies(admission.Path, plainJSON, repeated(podReview+`,{"name":"`+strings.Repeat("a", 6_200_000)+`"}`, ",{}", 10_000, "]}}}}"), http.StatusOK)},
	{behaviour: "90 Images of 3 MB that are refused", ends: refused, images: 1500, bytes: 12 << 10, many: 90,
		attack: bodies(benchPath, plainJSON, repeated(`{"kind":"Image","apiVersion":"image.openshift.io/v1","metadata":{"name":"no digest"},"dockerImageManifest":"`, "manifest", 390_000, `"}`), http.StatusUnprocessableEntity)},
	{behaviour: "400 comparisons of Images of 2 MB in the console", ends: refused, images: 30, bytes: 2 << 20, few: 60, many: 400, attack: pagesOf("/console/compare?a=%s&b=%s")},
	{behaviour: "400 lists of Images in the console", ends: refused, images: 1500, bytes: 12 << 10, few: 60, many: 400, attack: pagesOf("/console/images?q=")},
	{behaviour: "400 pages of the console with raw Images of 2 MB, not read", ends: unreadPages, images: 30, bytes: 2 << 20, few: 60, many: 400, attack: pagesOf("/console/raw?digest=%s")},
	{behaviour: "Events of 2.9 MB and of 60 kB beside 600 live pages of the console, all of one person", ends: "64 pages are served and say that a large Event came; the others get 429", images: 1500, bytes: 12 << 10, few: 80, many: 600, attack: livePages},
	{behaviour: "400 scrapes of the metrics", ends: refused, images: 1500, bytes: 12 << 10, few: 60, many: 400, attack: pagesOf("/metrics")},
	{behaviour: "10,000 idle connections, where the server may open 512 files", ends: "the oldest idle one is closed for each new one", few: 2000, many: 10_000, before: "ulimit -n 512", attack: idleConnections},
	{behaviour: "1,000 senders of webhooks that know the secret and send no body", ends: "other deliveries are taken meanwhile", few: 200, many: 1000, flags: receiver, attack: idleSenders},
	{behaviour: "100 readers of a log of one line of 4 GiB: some leave, some read nothing, some set limitBytes", ends: "reading ends with the client, or at limitBytes", few: 30, many: 100, flags: podLogs, attack: endlessLines},
}

// TestFloods has a server, in a process of its own, go on under each flood, and within its memory.
// Floods that need no flags come one after the other to one server. With -exhaustive, as make
// nightly has them, they are at their full size, all of them, and each comes to a server of its
// own. With -flood-table, too, for longer, and -v shows what they cost others:
//
//	go test ./cmd/tidewaiter -run TestFloods -v -flood-table testdata/floods.md -timeout 30m
//	go test ./cmd/tidewaiter -run 'TestFloods$/90_Images' -v -flood-table testdata/floods.md
func TestFloods(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector's memory is not the server's")
	}
	if attack := os.Getenv(attackersEnv); attack != "" {
		attackFromHere(t, attack)
		return
	}
	t.Parallel() // for the most part it waits: for deadlines, and for answers to honest callers
	parent, dirs, twins, names, shared := t, map[[2]int]string{}, map[[2]int]string{}, map[[2]int]string{}, map[[2]int]*process{}
	for i, f := range floods {
		isFull := *floodTable != "" || *exhaustive
		n, most, lasts := f.few, floodMemory*1.5, time.Duration(0)
		if isFull {
			n, most, lasts = f.many, floodMemory, time.Second
		}
		if *floodTable != "" {
			lasts = 5 * time.Second
		}
		if n == 0 {
			continue
		}
		stored, isShared := [2]int{f.images, f.bytes}, !isFull && f.flags == nil && f.before == ""
		if isShared && shared[stored] == nil {
			dirs[stored] = t.TempDir()
			names[stored] = storeImages(t, dirs[stored], f.images, f.bytes)
			shared[stored] = runProcess(t, dirs[stored])
		}
		t.Run(f.behaviour, func(t *testing.T) {
			if dirs[stored] == "" {
				dirs[stored] = parent.TempDir()
				names[stored] = storeImages(t, dirs[stored], f.images, f.bytes)
				if *floodTable != "" {
					twins[stored] = parent.TempDir()
					if out, err := exec.Command("cp", "-a", dirs[stored]+"/.", twins[stored]).CombinedOutput(); err != nil {
						t.Fatalf("%v: %s", err, out)
					}
				}
			}
			var flags []string
			if f.flags != nil {
				flags = f.flags(t)
			}
			s := shared[stored]
			if !isShared {
				s = runProcessAfter(t, f.before, dirs[stored], flags...)
			}
			client, token := s.from(t, net.IPv4(127, 0, 0, 2)), s.Config.BearerToken
			if f.another {
				client, token = s.from(t, net.IPv4(127, 0, 0, 1)), s.reader(t)
			}
			path := "/api/v1/namespaces/default"
			if f.images > 0 && f.bytes < 1<<20 {
				path = benchPath + "/" + names[stored]
			}
			if f.flags == nil && f.before == "" {
				f.attack = attackFromElsewhere(i, dirs[stored])
			}
			var quiet []time.Duration
			if *floodTable != "" {
				quiet = s.honest(t, client, token, path, 100, lasts)
			}
			s.forgetMemory()
			before := s.mostMemory(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			height, over := make(chan struct{}), make(chan struct{})
			start := time.Now()
			go func() {
				defer close(over)
				f.attack(ctx, t, s, n, sync.OnceFunc(func() { close(height) }))
			}()
			select {
			case <-height:
			case <-over:
			}
			gets := s.honest(t, client, token, path, 100, lasts)
			var beside []time.Duration
			if *floodTable != "" {
				beside = f.beside(t, twins[stored], path, lasts)
			}
			stop()
			<-over
			took := time.Since(start)
			s.honest(t, client, token, "/readyz", 1, 0)
			peak := s.mostMemory(t)
			t.Logf("%s; %.0f MiB, %.0f before", tookOf(gets), peak, before)
			if peak > most {
				t.Errorf("the server had %.0f MiB, want %.0f at most", peak, most)
			}
			if *floodTable != "" {
				t.Logf("%s; without the flood %s; beside it %s", took, tookOf(quiet), tookOf(beside))
			}
		})
	}
}

// tookOf says how long gets took, of which the longest is the last.
func tookOf(gets []time.Duration) string {
	if len(gets) == 0 {
		return "no get"
	}
	return fmt.Sprintf("%d gets, median %s, p99 %s", len(gets), gets[len(gets)/2], gets[len(gets)*99/100])
}

// TestFloodsDocument: testdata/floods.md has the floods. With -flood-table it writes them there.
func TestFloodsDocument(t *testing.T) {
	document := *floodTable
	if document == "" {
		document = "testdata/floods.md"
	}
	checkFloods(t, document, *floodTable != "")
}

// beside gets a path from a second server that has the same data and no flood, while the flood goes
// on at the first one. It is what a flood costs everybody on a machine of so few processors,
// whatever the server does.
func (f flood) beside(t *testing.T, dir, path string, lasts time.Duration) []time.Duration {
	t.Helper()
	twin := runProcess(t, dir)
	client, token := twin.from(t, net.IPv4(127, 0, 0, 2)), twin.Config.BearerToken
	if f.another {
		token = twin.reader(t)
	}
	twin.honest(t, client, token, path, 100, 0)
	return twin.honest(t, client, token, path, 100, lasts)
}

// attackersEnv has TestFloods be the attackers: it says which flood, how many, and the server's
// data directory.
const attackersEnv = "TIDEWAITER_TEST_ATTACKERS"

// attackersBegun is a line that the attackers print at the height of the flood.
const attackersBegun = "the flood has begun"

// attackFromElsewhere has the attackers of a flood in a process of their own, which leaves the
// processors to the server and to honest callers where it can, as one on another machine does.
func attackFromElsewhere(flood int, dir string) func(context.Context, *testing.T, *process, int, func()) {
	return func(ctx context.Context, t *testing.T, _ *process, n int, begun func()) {
		self, err := os.Executable()
		if err != nil {
			t.Error(err)
			return
		}
		cmd := exec.Command("nice", "-n", "19", self, "-test.run=^TestFloods$", "-test.v", "-test.timeout=10m")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %d %s", attackersEnv, flood, n, dir))
		in, inErr := cmd.StdinPipe()
		out, outErr := cmd.StdoutPipe()
		if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
			t.Error(err)
			return
		}
		defer context.AfterFunc(ctx, func() { in.Close() })()
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() == attackersBegun {
				begun()
			} else if strings.HasPrefix(lines.Text(), "    ") {
				t.Log(strings.TrimSpace(lines.Text()))
			}
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the attackers: %v", err)
		}
	}
}

// attackFromHere is that process. It goes on until its input is closed.
func attackFromHere(t *testing.T, attack string) {
	var flood, n int
	var dir string
	if _, err := fmt.Sscan(attack, &flood, &n, &dir); err != nil {
		t.Fatal(err)
	}
	config, err := kubeconfigConfig(server.KubeconfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	floods[flood].attack(ctx, t, &process{benchServer: connect(t, newAPITarget(config).Config)}, n, sync.OnceFunc(func() { fmt.Println(attackersBegun) }))
}

// reader is the token of a service account that may read.
func (p *process) reader(t *testing.T) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	token := p.account(t, "reader")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "reader"}},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	reader := restclient.AnonymousClientConfig(p.Config)
	reader.BearerToken = token
	images, err := imageclient.New(reader)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err = images.List(t.Context(), metav1.ListOptions{Limit: 1}); err == nil {
			return reader.BearerToken
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// account is the token of a service account.
func (p *process) account(t *testing.T, name string) string {
	t.Helper()
	client, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if _, err := client.CoreV1().ServiceAccounts(account.Namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	request, err := client.CoreV1().ServiceAccounts(account.Namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// from is a client at an address.
func (p *process) from(t *testing.T, ip net.IP) *http.Client {
	t.Helper()
	config, err := restclient.TLSConfigFor(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: ip}}
	transport := &http.Transport{TLSClientConfig: config.Clone(), DialContext: dialer.DialContext, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// honest gets a path so many times or more, for so long at least, and returns how long each took,
// the longest last.
func (p *process) honest(t *testing.T, client *http.Client, token, path string, times int, lasts time.Duration) (took []time.Duration) {
	t.Helper()
	for began := time.Now(); len(took) < times || time.Since(began) < lasts; time.Sleep(5 * time.Millisecond) {
		start := time.Now()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.Config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := client.Do(r)
		if err != nil {
			t.Errorf("an honest get: %v", err)
			continue
		}
		_, err = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK || err != nil {
			t.Errorf("an honest get: %s, %v", resp.Status, err)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	return took
}

// storeImages stores Images of the given number and size in a data directory, past the API, and
// returns the name of one.
func storeImages(t *testing.T, dir string, images, size int) (name string) {
	t.Helper()
	if images == 0 {
		return ""
	}
	store, getter := openSeed(t, dir)
	defer store.Close()
	to := getter.Store(imagev1.Resource("images"))
	var writers errgroup.Group
	writers.SetLimit(16) // they share commits
	for i := range images {
		raw := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[],"annotations":{"text":%q,"number":"%d"}}`, imageIndex, strings.Repeat("text ", size/5), i)
		name = manifest.Digest([]byte(raw))
		image := &imagev1.Image{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, UID: types.UID(name), CreationTimestamp: metav1.Now(), Labels: map[string]string{"flood": "yes"},
			},
			DockerImageReference: fmt.Sprintf("registry.example.com/a:%d", i),
			DockerImageManifest:  raw,
		}
		if i%(images/10) == 0 {
			image.Labels["rare"] = "yes"
		}
		writers.Go(func() error {
			if err := manifest.Derive(image); err != nil {
				return err
			}
			return to.Create(context.Background(), imagesKey+image.Name, image, &imagev1.Image{}, 0)
		})
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	return name
}

// attacker is a client with a connection for each request.
func (p *process) attacker(t *testing.T) *http.Client {
	t.Helper()
	config, err := restclient.TLSConfigFor(p.Config)
	if err != nil {
		t.Error(err)
	}
	transport := &http.Transport{TLSClientConfig: config.Clone(), MaxIdleConnsPerHost: 1 << 20, DisableCompression: true, ReadBufferSize: 4 << 10}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// request asks for Images.
func (p *process) request(ctx context.Context, t testing.TB, query, accept, encoding string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Config.Host+benchPath+"?"+query, nil)
	if err != nil {
		t.Error(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Config.BearerToken)
	r.Header.Set("Accept", accept)
	if encoding != "" {
		r.Header.Set("Accept-Encoding", encoding)
	}
	return r
}

// lists are asked for by n clients, each of which reads its answer and asks again.
func lists(query, accept, encoding string) func(context.Context, *testing.T, *process, int, func()) {
	return func(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
		client := s.attacker(t)
		var served, told atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range n {
			clients.Go(func() {
				for ctx.Err() == nil {
					resp, err := client.Do(s.request(ctx, t, query, accept, encoding))
					if err != nil {
						continue
					}
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					switch {
					case resp.StatusCode == http.StatusOK && err == nil:
						served.Add(1)
						begun()
					case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "1":
						told.Add(1)
						select {
						case <-time.After(time.Second):
						case <-ctx.Done():
						}
					case ctx.Err() == nil:
						t.Errorf("a list: %s, %v", resp.Status, err)
					}
				}
			})
		}
		clients.Wait()
		t.Logf("%d lists served, %.1f a second; %d refused", served.Load(), float64(served.Load())/time.Since(began).Seconds(), told.Load())
		if served.Load() == 0 {
			t.Error("no list was served")
		}
	}
}

// streamLayers are got by n clients, each of which reads its answer and asks again. The stream
// shows 500 of the Images.
func streamLayers(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	images, err := imageclient.New(s.Config)
	if err != nil {
		t.Error(err)
		return
	}
	list, err := images.List(ctx, metav1.ListOptions{Limit: 500})
	if err != nil {
		t.Error(err)
		return
	}
	for i := range list.Items {
		ref := reference.Reference{Host: "registry.example.com", Repository: "a", Tag: fmt.Sprintf("t%d", i)}
		tag := tags.New(ref)
		tags.Lead(tag, ref, list.Items[i].Name, metav1.Now())
		if _, err := images.UpdateTag(ctx, tag, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
			return
		}
	}
	stream := &imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "flood"}, Spec: imagev1.ImageStreamSpec{DockerImageRepository: "registry.example.com/a"}}
	if _, err := images.CreateStream(ctx, stream, metav1.CreateOptions{}); err != nil {
		t.Error(err)
		return
	}
	client := s.attacker(t)
	var clients sync.WaitGroup
	var served atomic.Int64
	for range n {
		clients.Go(func() {
			for ctx.Err() == nil {
				r := s.request(ctx, t, "", plainJSON, "")
				r.URL.Path = "/apis/image.openshift.io/v1/namespaces/default/imagestreams/flood/layers"
				resp, err := client.Do(r)
				if err != nil {
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK && err == nil {
					served.Add(1)
					begun()
				} else if ctx.Err() == nil && resp.StatusCode != http.StatusTooManyRequests {
					t.Errorf("layers: %s, %v", resp.Status, err)
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d answers", served.Load())
}

// repeated is a text that has an item so many times between its head and its tail. It is made when
// it is needed.
func repeated(head, item string, times int, tail string) func() []byte {
	return func() []byte {
		text := []byte(head)
		for i := range times {
			if strings.Contains(item, "%d") {
				text = fmt.Appendf(text, item, i)
			} else {
				text = append(text, item...)
			}
		}
		return append(text, tail...)
	}
}

// bodies are sent to a path by n clients, each of which reads its answer and sends the body again.
// Reviews of oneself are those of a user without a role.
func bodies(path, media string, text func() []byte, answer int) func(context.Context, *testing.T, *process, int, func()) {
	return func(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
		token := s.Config.BearerToken
		if path == selfReviews {
			token = s.account(t, "nobody")
		}
		client, body := s.attacker(t), text()
		var served, told atomic.Int64
		var clients sync.WaitGroup
		began := time.Now()
		for range n {
			clients.Go(func() {
				for ctx.Err() == nil {
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Config.Host+path, bytes.NewReader(body))
					if err != nil {
						t.Error(err)
						return
					}
					r.Header.Set("Authorization", "Bearer "+token)
					r.Header.Set("Content-Type", media)
					resp, err := client.Do(r)
					if err != nil {
						continue
					}
					said, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
					resp.Body.Close()
					switch {
					case resp.StatusCode == answer && err == nil:
						served.Add(1)
						begun()
					case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "1":
						told.Add(1)
						select {
						case <-time.After(time.Second):
						case <-ctx.Done():
						}
					case ctx.Err() == nil:
						t.Errorf("a body: %s, %v: %.200s", resp.Status, err, said)
						begun()
						return
					}
				}
			})
		}
		clients.Wait()
		t.Logf("%d bodies answered, %.1f a second; %d refused", served.Load(), float64(served.Load())/time.Since(began).Seconds(), told.Load())
		if served.Load() == 0 {
			t.Error("no body was answered")
		}
	}
}

// unread are n requests of which the heads are read, and no more.
func unread(queries ...string) func(context.Context, *testing.T, *process, int, func()) {
	return func(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
		client := s.attacker(t)
		var answered, told atomic.Int64
		var clients sync.WaitGroup
		for i := range n {
			clients.Go(func() {
				resp, err := client.Do(s.request(ctx, t, queries[i%len(queries)], plainJSON, ""))
				if err != nil {
					return // it was never begun
				}
				defer resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusOK:
					answered.Add(1)
				case http.StatusTooManyRequests:
					told.Add(1)
					return
				default:
					t.Errorf("%s: %s", queries[i%len(queries)], resp.Status)
				}
				<-ctx.Done()
			})
		}
		// The height is reached when all have an answer, or those that are left wait.
		for last, since := int64(0), time.Now(); ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			now := answered.Load() + told.Load()
			if now != last {
				last, since = now, time.Now()
			}
			if now == int64(n) || now > 0 && time.Since(since) > 3*time.Second {
				break
			}
		}
		begun()
		clients.Wait()
		t.Logf("%d of %d answered, %d refused", answered.Load(), n, told.Load())
		if answered.Load() == 0 {
			t.Error("none was answered")
		}
	}
}

// watches are opened by one client over HTTP/2, which reads them, from now on, and asks again
// for those that are refused when it is told to.
func watches(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	images, err := imageclient.New(s.Config)
	if err != nil {
		t.Error(err)
		return
	}
	list, err := images.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Error(err)
		return
	}
	query := "watch=1&resourceVersion=" + list.ResourceVersion
	client := s.attacker(t)
	client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	var served, told atomic.Int64
	var clients sync.WaitGroup
	for range n {
		clients.Go(func() {
			for ctx.Err() == nil {
				resp, err := client.Do(s.request(ctx, t, query, plainJSON, ""))
				if err != nil {
					continue
				}
				wait := 0
				switch resp.StatusCode {
				case http.StatusOK:
					served.Add(1)
					_, _ = io.Copy(io.Discard, resp.Body) // until the flood is over
				case http.StatusTooManyRequests:
					told.Add(1)
					begun()
					if wait, err = strconv.Atoi(resp.Header.Get("Retry-After")); err != nil {
						t.Errorf("a watch too many: %v", resp.Header)
					}
				default:
					t.Errorf("a watch: %s", resp.Status)
				}
				resp.Body.Close()
				select {
				case <-time.After(time.Duration(wait) * time.Second):
				case <-ctx.Done():
				}
			}
		})
	}
	clients.Wait()
	t.Logf("%d watches served, %d refused", served.Load(), told.Load())
	if served.Load() == 0 || told.Load() == 0 {
		t.Errorf("%d watches served, %d refused", served.Load(), told.Load())
	}
}

// pagesOf are asked for by n clients, about two of the Images. Each reads its page and asks for it
// again, or reads nothing of a raw one.
func pagesOf(page string) func(context.Context, *testing.T, *process, int, func()) {
	return func(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
		images, err := imageclient.New(s.Config)
		if err != nil {
			t.Error(err)
			return
		}
		list, err := images.List(ctx, metav1.ListOptions{Limit: 2})
		if err != nil {
			t.Error(err)
			return
		}
		names := []any{list.Items[0].Name, list.Items[1].Name}
		path, isRaw := fmt.Sprintf(page, names[:strings.Count(page, "%s")]...), strings.Contains(page, "/raw?")
		client := s.attacker(t)
		var served, told atomic.Int64
		var clients sync.WaitGroup
		for range n {
			clients.Go(func() {
				for ctx.Err() == nil {
					resp, err := client.Do(s.get(ctx, t, path))
					if err != nil {
						continue // its connection was cut off
					}
					if isRaw && resp.StatusCode == http.StatusOK {
						served.Add(1)
						begun()
						<-ctx.Done()
					}
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
					switch {
					case resp.StatusCode == http.StatusOK && err == nil:
						served.Add(1)
						begun()
					case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "1":
						told.Add(1)
						select {
						case <-time.After(time.Second):
						case <-ctx.Done():
						}
					case ctx.Err() == nil:
						t.Errorf("a page: %s, %v", resp.Status, err)
					}
				}
			})
		}
		clients.Wait()
		t.Logf("%d pages served, %d refused", served.Load(), told.Load())
		if served.Load() == 0 {
			t.Error("no page was served")
		}
	}
}

// get asks for a path.
func (p *process) get(ctx context.Context, t *testing.T, path string) *http.Request {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Config.Host+path, nil)
	if err != nil {
		t.Error(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Config.BearerToken)
	return r
}

// livePages are n pages that follow Events, while one client creates Events, every second one of
// 2.9 MB and the others as large as such a page shows.
func livePages(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	config := restclient.CopyConfig(s.Config)
	config.ContentType = plainJSON
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Error(err)
		return
	}
	list, err := kube.CoreV1().Events("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Error(err)
		return
	}
	client := s.attacker(t)
	var clients sync.WaitGroup
	var answered sync.WaitGroup // every client has its answer, or an error
	var open, refused, large, shown atomic.Int64
	answered.Add(n)
	for range n {
		clients.Go(func() {
			done := sync.OnceFunc(answered.Done)
			defer done()
			resp, err := client.Do(s.get(ctx, t, "/console/activity/live?after="+list.ResourceVersion))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusTooManyRequests {
				refused.Add(1)
				return
			}
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a live page: %s", resp.Status)
			}
			open.Add(1)
			done()
			for lines := bufio.NewReader(resp.Body); ; {
				line, err := lines.ReadString('\n')
				if err != nil {
					return // the flood is over
				}
				switch {
				case strings.Contains(line, "too large"):
					large.Add(1)
				case strings.Contains(line, "<tr"):
					shown.Add(1)
				}
			}
		})
	}
	answered.Wait()
	for i := 0; ctx.Err() == nil; i++ {
		size := 2_900_000
		if i%2 == 1 {
			size = 60_000
		}
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", GenerateName: "flood-"},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "flood"}, Reason: "Flood", Message: strings.Repeat("x", size),
		}
		if _, err := kube.CoreV1().Events("default").Create(ctx, event, metav1.CreateOptions{}); err != nil && ctx.Err() == nil && !apierrors.IsTooManyRequests(err) {
			t.Error(err)
			return
		}
		if all := open.Load(); large.Load() >= all && shown.Load() >= all {
			begun()
		}
	}
	clients.Wait()
	t.Logf("%d pages and %d refused: %d rows, and %d for large Events", open.Load(), refused.Load(), shown.Load(), large.Load())
	if large.Load() == 0 || shown.Load() == 0 || open.Load() != 64 {
		t.Errorf("%d pages: %d rows, and %d for large Events", open.Load(), shown.Load(), large.Load())
	}
}

// idleConnections opens n connections and leaves them idle, some of them behind
// a TLS handshake, some with half a request. Whoever comes meanwhile is served.
func idleConnections(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	// The attacker holds more than the server does, and no more than its own
	// descriptors allow.
	const kept, every = 600, 1000
	address := strings.TrimPrefix(s.Config.Host, "https://")
	tlsConfig, err := restclient.TLSConfigFor(s.Config)
	if err != nil {
		t.Error(err)
		return
	}
	honest := func(when string) {
		// A new connection each time.
		transport := &http.Transport{TLSClientConfig: tlsConfig.Clone(), ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport, Timeout: 2 * time.Minute}
		resp, err := client.Do(s.request(t.Context(), t, "limit=1", plainJSON, ""))
		if err != nil {
			t.Errorf("%s: %v", when, err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", when, resp.Status)
		}
	}
	held := make([]net.Conn, kept)
	defer func() {
		for _, conn := range held {
			if conn != nil {
				conn.Close()
			}
		}
	}()
	for i := range n {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Errorf("connection %d: %v", i, err)
			return
		}
		switch i % 10 {
		case 0:
			// What the server thinks of it is not the attacker's concern.
			conn = tls.Client(conn, tlsConfig.Clone())
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
		case 1:
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1})
		}
		if old := held[i%kept]; old != nil {
			old.Close()
		}
		held[i%kept] = conn
		if i == kept {
			begun()
		}
		if i%every == every-1 {
			honest(fmt.Sprintf("after %d idle connections", i+1))
		}
	}
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err == nil && len(open) > 400 {
		t.Errorf("the server holds %d of 512 descriptors; some are to be left for its files", len(open))
	}
	log, err := os.ReadFile(s.cmd.Stderr.(*os.File).Name())
	if err != nil {
		t.Error(err)
	}
	if bytes.Contains(log, []byte("too many open files")) || !bytes.Contains(log, []byte("reached its limit of connections")) {
		t.Errorf("the log:\n%s", log)
	}
}

const imageIndex = "application/vnd.oci.image.index.v1+json"

const hookSecret = "a-secret-of-a-test"

// receiver configures one of webhooks.
func receiver(t *testing.T) []string {
	config := servertest.WriteConfig(t, "receivers: [{name: harbour, type: distribution, hosts: [quay.io], secretFile: secret}]\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), "secret"), []byte(hookSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--config", config}
}

// idleSenders announce bodies that do not come.
func idleSenders(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	config, err := restclient.TLSConfigFor(s.Config)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range n {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(s.Config.Host, "https://"), config.Clone())
		if err == nil {
			defer conn.Close()
			_, err = fmt.Fprintf(conn, "POST /hooks/harbour HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000000\r\n\r\n{", hookSecret)
		}
		if err != nil {
			t.Errorf("sender %d: %v", i, err)
			return
		}
	}
	begun()
	for range 100 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.Config.Host+"/hooks/harbour", strings.NewReader(`{"events":[]}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+hookSecret)
		resp, err := s.client.Do(req)
		if err != nil {
			t.Errorf("an honest delivery: %v", err)
			return
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("an honest delivery: %s", resp.Status)
		}
	}
}

// podLogs is an empty directory of them.
func podLogs(t *testing.T) []string { return []string{"--pod-logs-dir", t.TempDir()} }

// endlessLines reads the log of a pod that has written a line without end.
func endlessLines(ctx context.Context, t *testing.T, s *process, n int, begun func()) {
	client, err := kubernetes.NewForConfig(s.Config)
	if err != nil {
		t.Error(err)
		return
	}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "chatty"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example.com/app"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	args := s.cmd.Args
	file := filepath.Join(args[slices.Index(args, "--pod-logs-dir")+1], fmt.Sprintf("default_chatty_%s", pod.UID), "app", "0.log")
	err = errors.Join(os.MkdirAll(filepath.Dir(file), 0o755),
		os.WriteFile(file, []byte("2026-01-01T00:00:01.000000000Z stdout F begins"), 0o644), os.Truncate(file, 4<<30))
	if err != nil {
		t.Error(err)
		return
	}
	attacker := s.attacker(t)
	var readers sync.WaitGroup
	for i := range n {
		readers.Go(func() {
			leaving, leave := context.WithCancel(ctx)
			defer leave()
			r := s.request(leaving, t, "", plainJSON, "")
			r.URL.Path, r.URL.RawQuery = "/api/v1/namespaces/default/pods/chatty/log", [...]string{"", "", "limitBytes=6"}[i%3]
			resp, err := attacker.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a log: %s", resp.Status)
			}
			begins := make([]byte, 6)
			if _, err := io.ReadFull(resp.Body, begins); err != nil || string(begins) != "begins" {
				t.Errorf("%q, %v", begins, err)
			}
			switch i % 3 {
			case 0: // leaves
			case 1: // reads no more
				<-ctx.Done()
			case 2:
				if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
					t.Errorf("after limitBytes: %q, %v", rest, err)
				}
			}
		})
	}
	begun()
	readers.Wait()
}

const floodsBegin, floodsEnd = "<!-- floods -->\n", "<!-- /floods -->"

// floodsTable is the table of floods by how they end.
func floodsTable() string {
	table := "| What becomes of it | What comes at once |\n|---|---|\n"
	ends := map[string][]string{}
	for _, f := range floods {
		ends[f.ends] = append(ends[f.ends], f.behaviour)
	}
	for _, end := range slices.Sorted(maps.Keys(ends)) {
		table += "| " + end + " | " + strings.Join(ends[end], "; ") + " |\n"
	}
	return table
}

// checkFloods compares the table with the document's, or writes it.
func checkFloods(t *testing.T, document string, write bool) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), floodsBegin)
	old, tail, closed := strings.Cut(rest, floodsEnd)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", document)
	}
	table := floodsTable()
	if write {
		if err := os.WriteFile(document, []byte(head+floodsBegin+table+floodsEnd+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if old != table {
		t.Errorf("%s does not have these floods; write them with -flood-table:\n%s", document, table)
	}
}
