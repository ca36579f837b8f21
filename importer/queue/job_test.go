package queue_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

func TestWorkerImportsAPush(t *testing.T) {
	w := startWorker(t)
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0@" + digest)
	w.expect("images", w.images.Names(), []string{digest})
	w.expect("references", w.references(digest), []string{"team/app:1.0"})
	w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest})
	w.expect("writes", w.images.Writes(), []string{"create " + digest})

	// The same again changes nothing.
	w.do("push team/app:1.0@" + digest)
	w.expect("writes", w.images.Writes(), []string{"create " + digest})
}

func TestWorkerImportsATagWithoutADigest(t *testing.T) {
	w := startWorker(t)
	digest := w.push("team/app:1.0", "a")
	w.do("push team/app:1.0")
	w.expect("images", w.images.Names(), []string{digest})
	w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest})
}

// TestWorkerAsksWhereTheTagPoints gets hints late and out of order.
func TestWorkerAsksWhereTheTagPoints(t *testing.T) {
	w := startWorker(t)
	a := w.push("team/app:1.0", "a")
	b := w.push("team/app:1.0", "b")
	w.do("push team/app:1.0@"+b, "push team/app:1.0@"+a)
	w.expect("images", w.images.Names(), sorted([]string{a, b}))
	w.expect("references of what the tag points to", w.references(b), []string{"team/app:1.0"})
	w.expect("references of what it pointed to", w.references(a), []string{"team/app@" + a})

	// What was pushed is gone by the time we look; the tag is elsewhere.
	c := w.push("team/app:1.0", "c")
	w.delete("team/app", c)
	d := w.push("team/app:1.0", "d")
	w.do("push team/app:1.0@" + c)
	w.expect("images", w.images.Names(), sorted([]string{a, b, d}))
}

// TestWorkerIsToldTooEarly gets the hint before the registry has written the tag,
// as distribution sends it: the first time the tag is missing, then it leads to
// what was there before.
func TestWorkerIsToldTooEarly(t *testing.T) {
	// so that it looks three times on a slow machine
	patient := func(o *queue.Options) { o.Settle = 10 * time.Second }
	t.Run("no tag yet", func(t *testing.T) {
		w := startWorker(t, patient)
		digest := w.push("team/app:1.0", "a")
		w.registry.Inject("/manifests/1.0$", 2, registrytest.Status(404, "MANIFEST_UNKNOWN"))
		w.do("push team/app:1.0@" + digest)
		w.expect("references", w.references(digest), []string{"team/app@" + digest, "team/app:1.0"})
		w.expect("notices", w.notices.take(), []string{"PushReceived " + digest, "Imported " + digest, "Imported " + digest})
	})
	t.Run("the previous tag", func(t *testing.T) {
		w := startWorker(t, patient)
		before := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + before)
		after := w.push("team/app:2.0", "b") // in the registry, and not under its tag
		looks := 0
		w.registry.Inject("HEAD .*/manifests/1.0$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.push("team/app:1.0", "b")
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("push team/app:1.0@" + after)
		if got := w.references(after); !slices.Contains(got, "team/app:1.0") {
			t.Errorf("references: %v, want the tag among them", got)
		}
	})
	t.Run("a signature", func(t *testing.T) {
		w := startWorker(t, patient)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		artifact, tag, looks := newArtifact(t), strings.Replace(digest, ":", "-", 1)+".sig", 0
		signature := w.registry.Push("team/app:other", artifact)
		w.registry.Inject("HEAD .*/manifests/"+tag+"$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.registry.Push("team/app:"+tag, artifact)
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("push team/app:" + tag + "@" + signature)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%d signatures, want 1", n)
		}
	})
	t.Run("a deletion", func(t *testing.T) {
		w := startWorker(t, patient)
		digest := w.push("team/app:1.0", "a")
		w.do("push team/app:1.0@" + digest)
		looks := 0
		w.registry.Inject("HEAD .*/manifests/1.0$", 0, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
				if looks++; looks == 3 {
					w.delete("team/app", "1.0")
				}
				next.ServeHTTP(rw, req)
			})
		})
		w.do("delete team/app:1.0")
		w.expect("marked", w.gone(digest), []string{"team/app:1.0"})
	})
}

func TestWorkerImportsAnIndex(t *testing.T) {
	w := startWorker(t)
	index := newIndex(t, sample.Spec{}, true, "linux/amd64", "linux/arm64")
	digest := w.registry.PushIndex("team/app:1.0", index)
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	// As distribution tells of it: the children by digest, then the index.
	for _, child := range m.Manifests {
		w.do("push team/app@" + child.Digest.String())
	}
	w.do("push team/app:1.0@" + digest)
	if got := w.images.Names(); len(got) != 3 || !slices.Contains(got, digest) {
		t.Errorf("images: %v, want the index and two platforms", got)
	}
}

// TestWorkerSeesSignaturesThatComeLater signs after the image was imported, in
// each of the ways to attach a signature.
func TestWorkerSeesSignaturesThatComeLater(t *testing.T) {
	for _, suffix := range []string{".sig", ".att", ""} {
		t.Run("tag"+suffix, func(t *testing.T) {
			w := startWorker(t)
			digest := w.push("team/app:1.0", "a")
			w.do("push team/app:1.0@" + digest)
			if n := len(w.image(digest).Signatures); n != 0 {
				t.Fatalf("%d signatures before there are any", n)
			}
			w.notices.take()
			tag := strings.Replace(digest, ":", "-", 1)
			artifact := newArtifact(t)
			signature := w.registry.Push("team/app:"+tag+suffix, artifact)
			w.registry.Push("team/app:"+tag+".sig", artifact) // where the test's finder looks
			w.do("push team/app:" + tag + suffix + "@" + signature)
			if n := len(w.image(digest).Signatures); n != 1 {
				t.Errorf("%d signatures, want 1", n)
			}
			w.expect("images", w.images.Names(), []string{digest})
			w.expect("notices", w.notices.take(), []string{"Imported " + digest})
		})
	}
	t.Run("subject", func(t *testing.T) {
		w := startWorker(t)
		image := newImage(t, sample.Spec{Name: "a"})
		digest := w.registry.Push("team/app:1.0", image)
		w.do("push team/app:1.0@" + digest)
		w.registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", newArtifact(t))
		subject, err := partialDescriptor(image)
		if err != nil {
			t.Fatal(err)
		}
		signature := w.registry.Push("team/app:any", mutate.Subject(newArtifact(t), subject).(v1.Image))
		w.do("push team/app@" + signature)
		if n := len(w.image(digest).Signatures); n != 1 {
			t.Errorf("%d signatures, want 1", n)
		}
		w.expect("images", w.images.Names(), []string{digest})
	})
	t.Run("before the image", func(t *testing.T) {
		w := startWorker(t)
		tag := "sha256-" + strings.Repeat("ab", 32) + ".sig"
		signature := w.registry.Push("team/app:"+tag, newArtifact(t))
		w.do("push team/app:" + tag + "@" + signature)
		w.expect("images", w.images.Names(), nil)
	})
	t.Run("an artifact of nothing", func(t *testing.T) {
		w := startWorker(t)
		chart := w.registry.Push("team/chart:1.0", newArtifact(t))
		w.do("push team/chart:1.0@" + chart)
		w.expect("images", w.images.Names(), nil)
		if n := w.registry.Count("manifests"); n != 2 {
			t.Errorf("%d requests, want two GETs: %v", n, w.registry.Requests())
		}
	})
}

// Signatures are deleted by their tag, or by the digest of the manifest that holds them, after
// which nobody can ask which image it was about. They go; those of a manifest that is still there
// stay.
func TestWorkerSeesSignaturesThatAreDeleted(t *testing.T) {
	for _, by := range []string{"tag", "digest"} {
		t.Run(by, func(t *testing.T) {
			w := startWorker(t)
			digest, other := w.push("team/app:1.0", "a"), w.push("team/app:2.0", "b")
			tag := strings.Replace(digest, ":", "-", 1) + ".sig"
			signature := w.registry.Push("team/app:"+tag, newArtifact(t))
			w.do("push team/app:1.0@" + digest)
			w.do("push team/app:2.0@" + other)
			event := "delete team/app:" + tag
			if by == "digest" {
				event = "delete team/app@" + signature
			}
			w.do(event) // a lie: it is there
			if n := len(w.image(digest).Signatures); n != 1 {
				t.Fatalf("%d signatures after a lie, want 1", n)
			}
			w.delete("team/app", tag)
			w.delete("team/app", signature)
			w.do(event)
			if n := len(w.image(digest).Signatures); n != 0 {
				t.Errorf("%d signatures, want none", n)
			}
			w.expect("marked", w.gone(digest), nil)
			w.expect("images", w.images.Names(), slices.Sorted(slices.Values([]string{digest, other})))
		})
	}
}

// The registry tells of a deletion before it has made it true: it is asked until it has.
func TestWorkerIsToldOfADeletionTooEarly(t *testing.T) {
	w := startWorker(t, func(o *queue.Options) { o.Settle = 10 * time.Second })
	digest := w.push("team/app:1.0", "a")
	tag := strings.Replace(digest, ":", "-", 1) + ".sig"
	signature := w.registry.Push("team/app:"+tag, newArtifact(t))
	w.do("push team/app:1.0@" + digest)
	looks := 0
	w.registry.Inject("HEAD .*/manifests/"+tag+"$", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			next.ServeHTTP(rw, req)
			if looks++; looks == 1 {
				w.delete("team/app", tag)
				w.delete("team/app", signature)
			}
		})
	})
	w.do("delete team/app:" + tag)
	if n := len(w.image(digest).Signatures); n != 0 {
		t.Errorf("%d signatures, want none", n)
	}
}

func newArtifact(t *testing.T) v1.Image {
	t.Helper()
	artifact, err := sample.Artifact("application/vnd.example.signature", []byte("signature"))
	if err != nil {
		t.Fatal(err)
	}
	return artifact
}

func partialDescriptor(image v1.Image) (v1.Descriptor, error) {
	digest, err := image.Digest()
	if err != nil {
		return v1.Descriptor{}, err
	}
	mediaType, err := image.MediaType()
	if err != nil {
		return v1.Descriptor{}, err
	}
	size, err := image.Size()
	return v1.Descriptor{MediaType: mediaType, Digest: digest, Size: size}, err
}

func TestWorkerFailures(t *testing.T) {
	tests := map[string]struct {
		fault         registrytest.Fault
		hint          string
		first, sixth  bool // permanent at that attempt
		after         time.Duration
		mustMention   string
		unread        bool // what the registry has is not known
		reasonOfEvent string
	}{
		"unavailable":  {registrytest.Status(503, "UNAVAILABLE"), "push team/app:1.0", false, false, 0, "unavailable", true, "ImportFailed "},
		"rate limited": {registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3600"), "push team/app:1.0", false, false, 3590 * time.Second, "rate limited", true, "ImportFailed "},
		"denied":       {registrytest.Status(403, "DENIED"), "push team/app:1.0", false, true, 0, "denied", false, "ImportFailed "},
		"too large":    {registrytest.Append(1<<30, true), "push team/app:1.0", true, true, 0, "too large", false, "ImportFailed "},
		"other bytes":  {registrytest.Corrupt(), "push team/app:1.0", false, true, 0, "digest mismatch", false, "ImportFailed "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for attempt, permanent := range map[int]bool{1: test.first, 6: test.sixth} {
				w := startWorker(t) // of its own: a registry that fails is paused
				w.push("team/app:1.0", "a")
				if test.fault != nil {
					w.registry.Inject("manifests", 0, test.fault)
				}
				e := w.try(attempt, test.hint)
				if e.How != "failed" || e.Failure.Permanent != permanent || e.Failure.After < test.after || e.Failure.Unread != test.unread || !strings.Contains(e.Failure.Error, test.mustMention) {
					t.Errorf("attempt %d: %s: %+v", attempt, e.How, e.Failure)
				}
				if got := w.notices.take(); !slices.Contains(got, test.reasonOfEvent) {
					t.Errorf("attempt %d: notices %v", attempt, got)
				}
			}
		})
	}
	t.Run("the API refuses the image", func(t *testing.T) {
		refusing := refusingImages{&registrytest.Images{}}
		w := startWorker(t, func(o *queue.Options) { o.Images = refusing })
		w.push("team/app:1.0", "a")
		if e := w.try(1, "push team/app:1.0"); e.How != "failed" || !e.Failure.Permanent || e.Failure.Unread {
			t.Errorf("%s: %+v, want it never to be tried again", e.How, e.Failure)
		}
	})
	t.Run("a tag without a trace", func(t *testing.T) {
		w := startWorker(t)
		digest := w.push("team/app:1.0", "a")
		w.delete("team/app", "1.0")
		if e := w.try(1, "push team/app:1.0@"+digest); e.How != "failed" || e.Failure.Permanent || e.Failure.Unread {
			t.Errorf("%s: %+v, want it to be tried again", e.How, e.Failure)
		}
		w.expect("images", w.images.Names(), []string{digest})
		if e := w.try(6, "push team/app:1.0@"+digest); e.How != "done" {
			t.Errorf("%s: %+v, want it done", e.How, e.Failure)
		}
	})
	t.Run("signatures cannot be read", func(t *testing.T) {
		w := startWorker(t)
		w.finder.fail = errors.New("the registry went away")
		digest := w.push("team/app:1.0", "a")
		if e := w.try(1, "push team/app:1.0@"+digest); e.How != "failed" || e.Failure.Permanent || !e.Failure.Unread {
			t.Errorf("%s: %+v, want it to be tried again", e.How, e.Failure)
		}
		w.expect("images", w.images.Names(), []string{digest})
	})
}

type refusingImages struct{ *registrytest.Images }

func (refusingImages) Create(_ context.Context, image *imagev1.Image, _ metav1.CreateOptions) (*imagev1.Image, error) {
	return nil, apierrors.NewInvalid(schema.GroupKind{Group: imagev1.GroupName, Kind: "Image"}, image.Name, nil)
}

func (panickingImages) Get(context.Context, string, metav1.GetOptions) (*imagev1.Image, error) {
	panic("at once")
}

// What goes over a budget would go over it again.
func TestWorkerGivesUpAJobThatIsOverBudget(t *testing.T) {
	w := startWorker(t, func(o *queue.Options) {
		o.Config = always(newImporter(t, importer.Options{Limits: pull.Limits{JobManifests: 2}}))
	})
	w.registry.PushIndex("team/app:1.0", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64"))
	if e := w.try(1, "push team/app:1.0"); e.How != "failed" || !e.Failure.Permanent || !strings.Contains(e.Failure.Error, "budget of 2 manifests") {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
	// The hints of one job share its budget.
	a, b, c := w.push("team/other:1.0", "a"), w.push("team/other:1.0", "b"), w.push("team/other:1.0", "c")
	if e := w.try(1, "push team/other:1.0@"+a, "push team/other:1.0@"+b, "push team/other:1.0@"+c); e.How != "failed" || !e.Failure.Permanent {
		t.Errorf("%s: %+v", e.How, e.Failure)
	}
}
