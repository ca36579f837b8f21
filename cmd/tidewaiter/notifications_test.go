package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// told is an event as a receiver gets it.
type told struct {
	ID, Type, Subject, Source, Sequence string
	Data                                struct {
		Message, Reference, Image, Before, By, Verified, VerifiedBefore, Policy, Reason, Cause, Namespace string
		References, Signers                                                                               []string
		Pods                                                                                              *int
	}
}

// ear is a receiver of notifications that keeps what it gets.
type ear struct {
	*httptest.Server
	t      *testing.T
	secret string

	mu    sync.Mutex
	all   []told
	heard chan struct{} // is closed and replaced with each event
}

func newEar(t *testing.T) *ear {
	e := &ear{t: t, secret: "0123456789abcdef0123456789abcdef", heard: make(chan struct{})}
	e.Server = httptest.NewServer(e)
	t.Cleanup(e.Close)
	return e
}

func (e *ear) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var event told
	if err == nil {
		err = json.Unmarshal(body, &event)
	}
	mac := hmac.New(sha256.New, []byte(e.secret))
	fmt.Fprintf(mac, "%s.%s.%s", r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp"), body)
	if signature := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)); err != nil || event.ID == "" || r.Header.Get("webhook-id") != event.ID || r.Header.Get("webhook-signature") != signature {
		e.t.Errorf("an event that is not signed as it is: %v, %v, %s", err, r.Header, body)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, event)
	close(e.heard)
	e.heard = make(chan struct{})
}

// await waits for the event of a kind about a subject, and returns it.
func (e *ear) await(kind, subject string) told {
	e.t.Helper()
	return e.awaitWith(kind, subject, func(told) bool { return true })
}

// awaitWith is await for an event of which is says so.
func (e *ear) awaitWith(kind, subject string, is func(told) bool) told {
	e.t.Helper()
	patience := time.After(time.Minute)
	for {
		e.mu.Lock()
		i, next := slices.IndexFunc(e.all, func(event told) bool {
			return event.Type == "dev.tidewaiter."+kind && event.Subject == subject && is(event)
		}), e.heard
		var found told
		if i >= 0 {
			found = e.all[i]
			e.all = slices.Delete(e.all, i, i+1)
		}
		e.mu.Unlock()
		if i >= 0 {
			return found
		}
		select {
		case <-next:
		case <-patience:
			e.t.Fatalf("nobody is told of %s %s, but of %+v", kind, subject, e.all)
		}
	}
}

// What happens to images, tags, verdicts and pods is told once, to who wants to know of their
// repository.
func TestNotifications(t *testing.T) {
	t.Parallel()
	q := &questions{
		harbour: &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}},
		cluster: clustertest.New(t), digests: map[string]string{},
	}
	e, dir, host := newEar(t), t.TempDir(), q.registry.Host
	for file, text := range map[string]string{
		"prod.kubeconfig": string(q.cluster.Kubeconfig()), "secret": "whsec_" + base64.StdEncoding.EncodeToString([]byte(e.secret)),
		"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\nnotify:\n- {name: ci, url: \"" + e.URL + "\", insecure: true, secretFile: secret, repositories: [" + host + "/team]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true}
	q.Config = serveWith(t, o, listen(t))
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	tag, digest := host+"/team/app:v1", ""
	q.image("other", "elsewhere/app:v1")
	q.importTag("elsewhere/app:v1")
	q.image("old", "team/app:v1")
	q.importTag("team/app:v1")
	digest = q.digests["old"]
	whole := host + "/team/app@" + digest
	imported := e.await("image.imported", whole)
	if imported.Data.Image != digest || imported.Data.Verified != "NoPolicy" || !slices.Contains(imported.Data.References, tag) || imported.Source != q.Config.Host || len(imported.Sequence) != 20 {
		t.Errorf("%+v", imported)
	}
	if moved := e.await("tag.moved", tag); moved.Data.Image != digest || moved.Data.Before != "" || moved.Data.By == "" {
		t.Errorf("%+v", moved)
	}
	q.runs("a", tag, digest)
	q.image("new", "team/app:v1")
	q.importTag("team/app:v1")
	if moved := e.await("tag.moved", tag); moved.Data.Image != q.digests["new"] || moved.Data.Before != digest {
		t.Errorf("%+v", moved)
	}
	if drifted := e.await("pods.drifted", tag); *drifted.Data.Pods != 1 || drifted.Data.Image != q.digests["new"] || !strings.Contains(drifted.Data.Message, "prod") {
		t.Errorf("%+v", drifted)
	}
	e.await("image.imported", host+"/team/app@"+q.digests["new"])
	dynamically, err := dynamic.NewForConfig(q.Config)
	if err != nil {
		t.Fatal(err)
	}
	key := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	policies{dynamically.Resource(policyapi.GroupVersion.WithResource("clusterimagepolicies")), t}.create(signaturestest.Document("ours", `["`+host+`/team"]`, key, ""))
	if turned := e.await("verdict.turned", whole); turned.Data.VerifiedBefore != "NoPolicy" || turned.Data.Verified != "Unsigned" || turned.Data.Policy != "ours" || turned.Data.Cause != "other policies cover it" || *turned.Data.Pods != 1 {
		t.Errorf("%+v", turned)
	}
	ref, err := reference.Parse(tag)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := q.images.GetTag(t.Context(), tags.Name(ref), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tags.Lead(stored, ref, "", metav1.Now())
	if _, err := q.images.UpdateTag(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if gone := e.await("reference.gone", tag); gone.Data.Image != q.digests["new"] || *gone.Data.Pods != 0 {
		t.Errorf("%+v", gone)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, event := range e.all {
		if event.Type != "dev.tidewaiter.verdict.turned" || event.Subject != host+"/team/app@"+q.digests["new"] {
			t.Errorf("told, too, is %+v", event)
		}
	}
}
