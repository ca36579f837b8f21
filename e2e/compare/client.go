package compare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
)

const imagesPath = "/apis/image.openshift.io/v1/images"

// A client asks for one kind of object, over HTTP/1.1 and TLS: a connection for each request under
// way. It asks each of several servers in turn, which share credentials.
type client struct {
	http        *http.Client
	collections []string // the URL of all objects, at each server
	turn        atomic.Uint64
	object      func(number int) object
}

func newClient(config *rest.Config, path string, object func(int) object) (*client, error) {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: tls, MaxIdleConnsPerHost: 1024, DisableCompression: true}
	authenticated, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return nil, err
	}
	return &client{http: &http.Client{Transport: authenticated}, collections: []string{config.Host + path}, object: object}, nil
}

// collection is the URL of all objects, at the server whose turn it is.
func (c *client) collection() string {
	return c.collections[c.turn.Add(1)%uint64(len(c.collections))]
}

// do sends a request and gives the answer's body to read.
func (c *client) do(ctx context.Context, method, url string, body []byte, encoding string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("Accept-Encoding", encoding)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		said, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, said)
	}
	if encoding != response.Header.Get("Content-Encoding") && encoding != "identity" {
		return fmt.Errorf("%s %s: the answer is not encoded with %s", method, url, encoding)
	}
	return read(response.Body)
}

func discard(body io.Reader) error {
	_, err := io.Copy(io.Discard, body)
	return err
}

func (c *client) create(ctx context.Context, o object) error {
	return c.do(ctx, http.MethodPost, c.collection(), o.body, "identity", discard)
}

func (c *client) get(ctx context.Context, name string) error {
	return c.do(ctx, http.MethodGet, c.collection()+"/"+name, nil, "identity", discard)
}

// list reads all objects at once.
func (c *client) list(ctx context.Context, encoding string) error {
	return c.do(ctx, http.MethodGet, c.collection(), nil, encoding, discard)
}

// revision is the resourceVersion of the collection.
func (c *client) revision(ctx context.Context) (string, error) {
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	err := c.do(ctx, http.MethodGet, c.collection()+"?limit=1", nil, "identity", func(body io.Reader) error { return json.NewDecoder(body).Decode(&list) })
	return list.Metadata.ResourceVersion, err
}

// watchList lists as client-go's informers do: it watches, and reads what exists until the bookmark
// that ends it. It returns how many objects there were.
func (c *client) watchList(ctx context.Context) (objects int, err error) {
	url := c.collection() + "?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=300"
	err = c.do(ctx, http.MethodGet, url, nil, "identity", func(body io.Reader) error {
		return eachLine(body, func(line []byte) (more bool) {
			// The bookmark is short; an object is not searched for its annotation.
			if len(line) < 2000 && bytes.Contains(line, []byte("k8s.io/initial-events-end")) {
				return false
			}
			objects++
			return true
		})
	})
	return objects, err
}

// watch has watchers see creations, one after the other, and returns how long all of that took.
func (c *client) watch(ctx context.Context, watchers int, created []object) (time.Duration, error) {
	since, err := c.revision(ctx)
	if err != nil {
		return 0, err
	}
	// The watchers end with the last event, so a failed creation must end them, too.
	watching, ctx := errgroup.WithContext(ctx)
	ready := make(chan struct{}, watchers)
	for range watchers {
		watching.Go(func() error {
			return c.do(ctx, http.MethodGet, c.collection()+"?watch=1&timeoutSeconds=300&resourceVersion="+since, nil, "identity", func(body io.Reader) error {
				ready <- struct{}{}
				left := len(created)
				return eachLine(body, func([]byte) bool { left--; return left > 0 })
			})
		})
	}
	var start time.Time
	watching.Go(func() error {
		for range watchers {
			select {
			case <-ready:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		start = time.Now()
		for _, o := range created {
			if err := c.create(ctx, o); err != nil {
				return err
			}
		}
		return nil
	})
	err = watching.Wait()
	return time.Since(start), err
}

// eachLine reads lines until there is enough; it is an error if they end before.
func eachLine(body io.Reader, line func([]byte) (more bool)) error {
	lines := bufio.NewReaderSize(body, 256<<10)
	for {
		text, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("the watch ended too early: %w", err)
		}
		if !line(text) {
			return nil
		}
	}
}

// concurrently calls do for 0 to n-1, a few at a time, until one fails.
func concurrently(n, atATime int, do func(i int) error) error {
	var group errgroup.Group
	var next atomic.Int64
	for range atATime {
		group.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return nil
				}
				if err := do(i); err != nil {
					next.Store(int64(n)) // the others need not go on
					return err
				}
			}
		})
	}
	return group.Wait()
}
