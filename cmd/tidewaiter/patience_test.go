package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"

	"github.com/google/go-containerregistry/pkg/authn"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// awayImages are those of an API server that is away from a moment on, for a while.
type awayImages struct {
	registrytest.Images
	clock *clocktesting.FakeClock
	err   error

	mu         sync.Mutex
	creates    int
	from, till time.Time
}

func (i *awayImages) Create(ctx context.Context, image *imagev1.Image, o metav1.CreateOptions) (*imagev1.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.creates++; i.creates == 5 {
		i.from = i.clock.Now()
		i.till = i.from.Add(time.Minute)
		// What is answered with an error may have been done.
		if _, err := i.Images.Create(ctx, image, o); err != nil {
			return nil, err
		}
	}
	if i.clock.Now().Before(i.till) {
		return nil, i.err
	}
	return i.Images.Create(ctx, image, o)
}

// An import failed for each reference that was under way, or came after, while the API server was
// restarted.
func TestImportWaitsForTheAPIServer(t *testing.T) {
	t.Parallel()
	for _, err := range []error{
		fmt.Errorf("dial tcp 127.0.0.1:6443: %w", syscall.ECONNREFUSED),
		apierrors.NewServiceUnavailable("starting"),
		apierrors.NewGenericServerResponse(http.StatusBadGateway, "post", imagev1.Resource("images"), "", "", 0, true),
		fmt.Errorf("dial tcp 127.0.0.1:6443: %w", os.NewSyscallError("connect", syscall.EHOSTUNREACH)),
		&url.Error{Op: "Post", URL: "https://127.0.0.1:6443", Err: os.ErrDeadlineExceeded},
	} {
		registry, clock := registrytest.New(t), clocktesting.NewFakeClock(time.Now())
		images := &awayImages{clock: clock, err: err}
		var stdout, stderr servertest.LogBuffer
		progress := bulk.NewProgress(&stderr)
		r := bulk.NewReport("", "", &stdout, &stderr, progress)
		im, ierr := importer.New(importer.Options{Keychain: authn.NewMultiKeychain()})
		if ierr != nil {
			t.Fatal(ierr)
		}
		t.Cleanup(im.Close)
		patience := &bulk.APIRetry{Clock: clock, Print: progress.Note}
		b := bulk.New(im, func() importer.Images { return patience.Images(images) }, 4, &bulk.Selection{}, r, progress)
		var references []string
		for i := range 20 {
			registry.Push(fmt.Sprintf("team/app%d:1", i), servertest.SampleImage(t, fmt.Sprint(i)))
			references = append(references, fmt.Sprintf("%s/team/app%d:1", registry.Host, i))
		}
		ended := make(chan error)
		var jobs []bulk.Job
		for _, s := range references {
			one, err := bulk.ParseImage(s)
			if err != nil {
				t.Fatal(err)
			}
			jobs = append(jobs, one)
		}
		go func() { ended <- b.Run(t.Context(), jobs) }()
		for deadline := time.Now().Add(2 * time.Minute); ; {
			select {
			case err := <-ended:
				if err != nil || r.Done != 20 || r.Failed != 0 || len(images.Names()) != 20 {
					t.Errorf("%v: %d done, %d failed, %d stored:\n%s", err, r.Done, r.Failed, len(images.Names()), &stderr)
				}
				if n := strings.Count(stderr.String(), "the API server does not answer"); n != 1 {
					t.Errorf("it is said %d times:\n%s", n, &stderr)
				}
			case <-time.After(time.Millisecond):
				if time.Now().After(deadline) {
					t.Fatal("it does not end")
				}
				if clock.HasWaiters() {
					clock.Step(time.Second)
				}
				continue
			}
			break
		}
	}
}

// One that never answered, or stays away, is an error.
func TestPatienceHasAnEnd(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	p, began := &bulk.APIRetry{Clock: clock, Print: func(string) {}}, clock.Now()
	if p.Waits(syscall.ECONNREFUSED, began) {
		t.Error("a server that never answered is waited for")
	}
	if p.Waits(nil, began) || p.Waits(apierrors.NewNotFound(imagev1.Resource("images"), "x"), began) {
		t.Error("an answer is waited for")
	}
	if !p.Waits(syscall.ECONNREFUSED, began) {
		t.Error("it is not waited for")
	}
	clock.Step(bulk.MaxAway)
	if p.Waits(syscall.ECONNREFUSED, began) {
		t.Error("it is waited for without end")
	}
}

// A server that takes requests and answers nothing is away as well: its client gives up, in some
// way or other.
func TestASilentServerIsAway(t *testing.T) {
	t.Parallel()
	config := serve(t)
	proxy := newProxy(t, strings.TrimPrefix(config.Host, "https://"))
	secure, err := restclient.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	config = restclient.CopyConfig(config)
	config.Host = "https://" + proxy.address
	config.TLSClientConfig = restclient.TLSClientConfig{}
	// As client-go's, which sends a ping after 30 seconds and waits for its answer for 15.
	config.Transport = &http.Transport{TLSClientConfig: secure, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: time.Second, PingTimeout: 5 * time.Second}}
	images, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	get := func() error {
		_, err := images.Get(t.Context(), "sha256:"+strings.Repeat("0", 64), metav1.GetOptions{})
		return err
	}
	if err := get(); !apierrors.IsNotFound(err) {
		t.Fatalf("before: %v", err)
	}
	proxy.silent.Store(true)
	if err := get(); !bulk.IsAway(err) {
		t.Errorf("it is not away: %v", err)
	}
}

// proxy passes connections on, until it is silent.
type proxy struct {
	address string
	silent  atomic.Bool
}

func newProxy(t *testing.T, to string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	p := &proxy{address: l.Addr().String()}
	pass := func(to, from net.Conn) {
		defer to.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !p.silent.Load() {
				if _, err := to.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go pass(server, c)
			go pass(c, server)
		}
	}()
	return p
}
