package clusters

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"sync"
	"testing"
	"time"
	"unique"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

// listedThen calls then once its keys are listed, before who asked sees them.
type listedThen struct {
	cache.Store
	then func()
}

func (s listedThen) ListKeys() []string {
	keys := s.Store.ListKeys()
	s.then()
	return keys
}

var install = sync.OnceValue(func() error { return Install(legacyscheme.Scheme) })

// newClusters follows one cluster, which nothing is connected to.
func newClusters(t *testing.T) *Clusters {
	t.Helper()
	if err := install(); err != nil {
		t.Fatal(err)
	}
	c, err := New(kubestore.NewGetter(dbtest.Open(t), legacyscheme.Codecs, kubestore.Options{}), legacyscheme.Scheme, Options{Sources: []Source{{Name: "prod"}}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A cluster is synced also if a pod is deleted, and the deletion handled, between the list of all
// pods and the comparison with those that are stored.
func TestPodIsGoneWhileAClusterBegins(t *testing.T) {
	t.Parallel()
	c := newClusters(t)
	ctx := genericapirequest.WithNamespace(t.Context(), metav1.NamespaceNone)
	w := newWriter(c.followers[0])
	handle := func() {
		for _, k := range []string{"team/deleted", "team/kept"} {
			if _, err := w.Reconcile(ctx, k); err != nil {
				t.Fatal(err)
			}
		}
	}
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	none := unique.Make("")
	deleted, kept := &pod{key: "team/deleted", node: none, account: none, owner: none}, &pod{key: "team/kept", node: none, account: none, owner: none}
	for _, p := range []*pod{deleted, kept} {
		if err := pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	w.OnAdd(kept, true)
	w.store = listedThen{pods, func() {
		if err := pods.Delete(deleted); err != nil {
			t.Fatal(err)
		}
		w.OnDelete(deleted)
		handle()
	}}
	w.begin(ctx)
	handle()
	if f := c.followers[0]; !f.isSynced() || f.pods != 1 {
		t.Errorf("synced is %v, with %d pods; still expected: %v", f.isSynced(), f.pods, w.initial)
	}
}

// A credential that ends soon is told of, a certificate's as a token's; one that something else
// renews has no end.
func TestCredentialEnds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 8, 0, 0, 0, time.UTC)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte("0123456789abcdef0123456789abcdef")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token := func(after time.Duration) string {
		signed, err := jwt.Signed(signer).Claims(jwt.Claims{Expiry: jwt.NewNumericDate(now.Add(after))}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	certificate := func(after time.Duration) restclient.TLSClientConfig {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(after)}
		der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return restclient.TLSClientConfig{CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	}
	const day = 24 * time.Hour
	for _, c := range []struct {
		config restclient.Config
		want   string
	}{
		{restclient.Config{}, "True NoEnd"},
		{restclient.Config{BearerToken: "opaque"}, "Unknown EndUnknown"},
		{restclient.Config{Username: "admin", Password: "secret"}, "Unknown EndUnknown"},
		{restclient.Config{BearerToken: "opaque", TLSClientConfig: certificate(15 * day)}, "True Valid"},
		{restclient.Config{BearerToken: token(100 * day)}, "True Valid"},
		{restclient.Config{BearerToken: token(14 * day)}, "True EndsSoon"},
		{restclient.Config{BearerToken: token(0)}, "False Ended"},
		{restclient.Config{BearerToken: token(time.Hour), BearerTokenFile: "/var/run/token"}, "True NoEnd"},
		{restclient.Config{TLSClientConfig: certificate(15 * day)}, "True Valid"},
		{restclient.Config{TLSClientConfig: certificate(day)}, "True EndsSoon"},
		{restclient.Config{TLSClientConfig: certificate(15 * day), BearerToken: token(-day)}, "False Ended"},
		{restclient.Config{TLSClientConfig: restclient.TLSClientConfig{CertData: []byte("none")}}, "True NoEnd"},
		{restclient.Config{TLSClientConfig: restclient.TLSClientConfig{CertFile: "/nowhere", KeyFile: "/nowhere"}}, "True NoEnd"},
	} {
		end, known := credentialEnd(&c.config)
		got := credentialCondition(end, known, now)
		if what := string(got.Status) + " " + got.Reason; what != c.want || got.Message == "" {
			t.Errorf("what ends at %s is %s %q, want %s", end, what, got.Message, c.want)
		}
	}
}

// Records are written only over those that the writer knows, so that a server which no longer leads
// writes nothing over its successor's.
func TestRecordsChangedElsewhere(t *testing.T) {
	t.Parallel()
	c := newClusters(t)
	at := func(hour int) ClusterRecords {
		return ClusterRecords{Since: metav1.NewTime(time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC))}
	}
	for i, one := range []struct {
		write ClusterRecords
		known []ClusterRecords
		want  error
	}{
		{at(1), []ClusterRecords{at(0)}, ErrRecordsChanged}, // none are stored
		{at(1), []ClusterRecords{{}}, nil},
		{at(2), []ClusterRecords{{}}, ErrRecordsChanged},
		{at(2), []ClusterRecords{at(0), at(1)}, nil},
		{at(3), []ClusterRecords{at(1)}, ErrRecordsChanged},
	} {
		if err := c.SetRecords(t.Context(), "prod", one.write, one.known...); !errors.Is(err, one.want) {
			t.Errorf("write %d: %v, want %v", i, err, one.want)
		}
	}
	stored, err := c.Records(t.Context())
	if got := stored["prod"]; err != nil || !got.Same(at(2)) {
		t.Errorf("%+v is stored, %v", got, err)
	}
}
