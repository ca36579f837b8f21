package queue_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// fakePods are pods with these credentials.
type fakePods struct {
	keychains   []authn.Keychain
	unread, err error
}

func (p fakePods) Keychains(_ context.Context, cluster string, _ reference.Reference) ([]authn.Keychain, error, error) {
	if cluster != "prod" {
		return nil, nil, errors.New("not this cluster")
	}
	return p.keychains, p.unread, p.err
}

// passwords are credentials for every registry.
type passwords struct{ user, password string }

func (p passwords) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig{Username: p.user, Password: p.password}), nil
}

// private makes the registry of a test one that wants credentials.
func (w *workerTest) private(scheme string) {
	w.registry = registrytest.New(w.t, registrytest.WithAuth(registrytest.Auth{Scheme: scheme, Username: "team", Password: "right"}))
}

// runs has a job about what pods use done.
func (w *workerTest) runs(receiver, event string, attempt int) ending {
	w.t.Helper()
	w.nextID++
	j := newJob(w.nextID, w.event("run "+event))
	j.Source, j.Attempts = push.ParseSource(receiver), attempt
	w.queue.add(j)
	return w.queue.await(w.t)
}

// What pods use is imported with the pull secrets of one that may have it. Those of others do not
// keep it out, and nobody else uses them afterwards.
func TestWhatRunsIsImportedWithItsPullSecrets(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"basic", "bearer"} {
		w, o := prepareWorker(t)
		w.private(scheme)
		pods := &fakePods{keychains: []authn.Keychain{passwords{"team", "wrong"}, passwords{"team", "right"}}}
		o.Pods = pods
		w.run(o)
		digest := w.push("team/app:1", "a")
		for _, event := range []string{"team/app:1", "team/app@" + digest} {
			if e := w.runs("cluster/prod", event, 1); e.How != "done" {
				t.Fatalf("%s: %s: %s: %+v", scheme, event, e.How, e.Failure)
			}
		}
		w.expect("imported", w.references(digest), []string{"team/app:1", "team/app@" + digest})
		// it is known by its digest now, too
		w.expect("told", w.notices.take(), []string{"Imported " + digest, "Imported " + digest})

		other := w.push("team/app:2", "b")
		if e := w.try(1, "push team/app:2@"+other); e.How != "failed" || !strings.Contains(e.Failure.Error, "unauthorized") {
			t.Errorf("%s: a push was imported with the pull secrets of pods: %s %+v", scheme, e.How, e.Failure)
		}
		pods.keychains, pods.unread = nil, errors.New("secrets are forbidden")
		e := w.runs("cluster/prod", "team/app:2", 1)
		if e.How != "failed" || !strings.Contains(e.Failure.Error, "unauthorized") || !strings.Contains(e.Failure.Error, "secrets are forbidden") || e.Failure.Permanent {
			t.Errorf("%s: without its secrets the job %s: %+v", scheme, e.How, e.Failure)
		}
		if e := w.runs("cluster/prod", "team/app:2", 6); !e.Failure.Permanent {
			t.Errorf("%s: it is not given up: %+v", scheme, e.Failure)
		}
		pods.err = errors.New("the cluster is away")
		if e := w.runs("cluster/prod", "team/app:2", 40); e.How != "failed" || e.Failure.Permanent || !strings.Contains(e.Failure.Error, "away") {
			t.Errorf("%s: while the cluster is away the job %s: %+v", scheme, e.How, e.Failure)
		}
	}
}

// A pod whose credentials the registry shows nothing to does not have a tag written down as gone.
func TestWrongPullSecretsRemoveNoTag(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	o.Pods = fakePods{keychains: []authn.Keychain{passwords{"mallory", "any"}}}
	w.run(o)
	digest := w.push("team/app:1", "a")
	w.do("push team/app:1@" + digest)
	w.registry.Inject(" /v2/team/app/", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusNotFound)
		})
	})
	e := w.runs("cluster/prod", "team/app:1", 6)
	if e.How != "failed" || !e.Failure.Permanent || !strings.Contains(e.Failure.Error, "not found") {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
	w.expect("marked", w.gone(digest), nil)
	w.expect("known", w.references(digest), []string{"team/app:1"})
}

// credentials are those of a pull secret, for every registry.
type credentials authn.AuthConfig

func (c credentials) Resolve(authn.Resource) (authn.Authenticator, error) {
	return authn.FromConfig(authn.AuthConfig(c)), nil
}

// oddTokens are what registries, their token servers, and HTTP have no use for.
var oddTokens = map[string]credentials{
	"a token that is no header": {RegistryToken: "a\nb"},
	"a token":                   {RegistryToken: "abc"},
	"a refresh token":           {IdentityToken: "abc"},
}

// answersRefreshTokens has the token server answer status to refresh tokens.
func (w *workerTest) answersRefreshTokens(status int) {
	w.registry.Inject("POST ", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(status) })
	})
}

// Whatever is wrong with a pod's pull secret, other credentials import the image, and if these are
// refused, too, the image is not unknown.
func TestBadPullSecretsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	for name, bad := range oddTokens {
		for _, scheme := range []string{"basic", "bearer"} {
			for _, status := range []int{http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusRequestEntityTooLarge, http.StatusInternalServerError} {
				if status != http.StatusBadRequest && (scheme == "basic" || bad.IdentityToken == "") {
					continue // it would not be asked
				}
				w, o := prepareWorker(t)
				w.private(scheme)
				w.answersRefreshTokens(status)
				pods := &fakePods{keychains: []authn.Keychain{bad, passwords{"team", "right"}}}
				o.Pods = pods
				w.run(o)
				w.push("team/app:1", "a")
				if e := w.runs("cluster/prod", "team/app:1", 1); e.How != "done" {
					t.Errorf("%s, %s, %d: %s: %+v", name, scheme, status, e.How, e.Failure)
				}
				w.push("team/app:2", "b")
				pods.keychains = []authn.Keychain{bad, passwords{"team", "wrong"}}
				if e := w.runs("cluster/prod", "team/app:2", 1); e.How != "failed" || e.Failure.Unread || !strings.Contains(e.Failure.Error, "unauthorized") {
					t.Errorf("%s, %s, %d, and nobody may have it: %s: %+v", name, scheme, status, e.How, e.Failure)
				}
			}
		}
		w, o := prepareWorker(t) // a public one
		o.Pods = fakePods{keychains: []authn.Keychain{bad}, err: errors.New("the cluster is away")}
		w.run(o)
		w.push("team/app:1", "a")
		if e := w.runs("cluster/prod", "team/app:1", 1); e.How != "done" {
			t.Errorf("%s, public: %s: %+v", name, e.How, e.Failure)
		}
	}
}

// A registry that is away is found to be with the credentials of one pod and the server's own.
func TestOfManyPullSecretsFewAreTriedWhileTheRegistryIsAway(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	o.Pods = fakePods{keychains: slices.Repeat([]authn.Keychain{passwords{"team", "any"}}, 8)}
	w.run(o)
	w.push("team/app:1", "a")
	w.registry.Inject("manifests", 0, registrytest.Status(http.StatusServiceUnavailable, "UNAVAILABLE"))
	one := w.try(1, "push team/app:1")
	alone := w.registry.Count("manifests")
	e := w.runs("cluster/prod", "team/app:1", 1)
	if n := w.registry.Count("manifests") - alone; e.How != "failed" || !e.Failure.Unread || n > 2*alone {
		t.Errorf("%d requests, %d without pods (%s): %s %+v", n, alone, one.How, e.How, e.Failure)
	}
}

// What is gone from the registry and still runs is a failure with a reason, not something that is
// done with.
func TestRunningImageThatIsGone(t *testing.T) {
	t.Parallel()
	w := startWorker(t, func(o *queue.Options) { o.Pods = fakePods{} })
	hash, err := newImage(t, sampleOf("a")).Digest()
	if err != nil {
		t.Fatal(err)
	}
	digest := hash.String()
	for _, event := range []string{"team/app:1", "team/app@" + digest} {
		if e := w.runs("cluster/prod", event, 6); e.How != "failed" || !e.Failure.Permanent || !strings.Contains(e.Failure.Error, "not found") {
			t.Errorf("%s: %s: %+v", event, e.How, e.Failure)
		}
	}
	if _, err := w.images.Get(t.Context(), digest, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the image: %v", err)
	}
}

func TestEventOfPodsIsStored(t *testing.T) {
	t.Parallel()
	e := push.Event{Action: push.Runs, Host: "registry.example.com", Repository: "app", Tag: "1"}
	if got, err := push.Decode(e.Encode()); got != e || err != nil {
		t.Errorf("%+v comes back as %+v, %v", e, got, err)
	}
	e.Tag = ""
	if _, err := push.Decode(e.Encode()); err == nil {
		t.Error("what runs has neither tag nor digest, and is taken")
	}
}

// fakeRunning is what pods run.
type fakeRunning struct {
	cluster string
	images  []reference.Reference
}

func (r *fakeRunning) EachRunning(_ context.Context, use func(string, reference.Reference) error) error {
	for _, image := range r.images {
		if err := use(r.cluster, image); err != nil {
			return err
		}
	}
	return nil
}

func (r *fakeRunning) PodsRunning(string) int { return 3 }

// running is an image of the test's registry by its digest.
func (w *workerTest) running(repository, digest string) reference.Reference {
	return reference.Reference{Host: w.registry.Host, Repository: repository, Digest: digest}
}

// A sweep finds what pods run and what is gone, and signatures that come and go, also where no tag
// leads and no repository is swept. What is not stored is left to its import.
func TestSweepChecksWhatRuns(t *testing.T) {
	t.Parallel()
	w, o := prepareWorker(t)
	a, stranger := w.push("team/app:1", "a"), w.push("team/app:2", "stranger")
	o.Running = &fakeRunning{"prod", []reference.Reference{w.running("team/app", a), w.running("team/app", a), w.running("team/app", stranger)}}
	o.Pods = fakePods{}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Importer().Import(t.Context(), w.running("team/app", a), w.images); err != nil {
		t.Fatal(err)
	}
	w.delete("team/app", "1") // the tag
	w.registry.Reset()
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), []string{a})
	w.expect("gone while it is there", w.gone(a), nil)
	if heads := w.registry.Count("^HEAD .*" + a); heads != 1 || w.registry.Count(stranger) != 0 {
		t.Errorf("%d HEADs, and %d requests for what is not stored", heads, w.registry.Count(stranger))
	}

	signature := strings.Replace(a, ":", "-", 1) + ".sig"
	w.push("team/app:"+signature, "signature")
	worker.SweepOnce(t.Context())
	if n := len(w.image(a).Signatures); n != 1 {
		t.Errorf("%d signatures are found", n)
	}
	w.delete("team/app", signature)
	worker.SweepOnce(t.Context())
	if n := len(w.image(a).Signatures); n != 0 {
		t.Errorf("%d signatures stay that were removed", n)
	}

	w.notices.take()
	w.delete("team/app", a)
	worker.SweepOnce(t.Context())
	w.expect("gone", w.gone(a), []string{"team/app@" + a})
	if got := w.notices.messages(queue.NoticeGoneFromRegistry); len(got) != 1 || !strings.HasSuffix(got[0], "is no longer in the registry, and 3 pods are known to run the image") {
		t.Errorf("told is %q", got)
	}
	w.notices.take()
	worker.SweepOnce(t.Context())
	w.expect("told again", w.notices.take(), nil)
	w.push("team/app:1", "a")
	worker.SweepOnce(t.Context())
	w.expect("gone after it came back", w.gone(a), nil)
}

// What only pods may pull is gone if none of them can pull it. A registry that hides it from the
// server has said nothing, and pull secrets that cannot be read could be the right ones.
func TestSweepAsksWithPullSecrets(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"basic", "bearer"} {
		w, o := prepareWorker(t)
		w.private(scheme)
		a := w.push("team/app:1", "a")
		pods := &fakePods{keychains: []authn.Keychain{passwords{"team", "right"}}}
		running := &fakeRunning{"prod", []reference.Reference{w.running("team/app", a)}}
		o.Pods, o.Running = pods, running
		worker, err := queue.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Importer().With(pods.keychains[0]).Import(t.Context(), running.images[0], w.images); err != nil {
			t.Fatal(err)
		}
		worker.SweepOnce(t.Context())
		w.expect("gone while it is there", w.gone(a), nil)
		w.registry.Inject("/v2/team/app/manifests/"+a, 0, func(next http.Handler) http.Handler {
			// to whom it would be shown, it is gone
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				shown := httptest.NewRecorder()
				if next.ServeHTTP(shown, r.Clone(r.Context())); shown.Code == http.StatusOK {
					registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN")(next).ServeHTTP(rw, r)
					return
				}
				next.ServeHTTP(rw, r)
			})
		})
		for _, unknown := range []func(){
			func() { pods.keychains = nil },
			func() { pods.keychains = []authn.Keychain{passwords{"team", "wrong"}} },
			func() { pods.unread = errors.New("secrets are forbidden") },
			func() { pods.unread, pods.err = nil, errors.New("the cluster is away") },
			func() { running.cluster = "" },
		} {
			unknown()
			worker.SweepOnce(t.Context())
			w.expect(scheme+": gone, although it is not known", w.gone(a), nil)
		}
		running.cluster, pods.err, pods.keychains = "prod", nil, []authn.Keychain{oddTokens["a token that is no header"], passwords{"team", "right"}, passwords{"team", "wrong"}}
		worker.SweepOnce(t.Context())
		w.expect(scheme+": gone", w.gone(a), []string{"team/app@" + a})
	}
}
