package importer_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// short limits, for registries that never answer. Another import may fail with them, too,
// on a busy machine.
var short = pull.Limits{Stall: 50 * time.Millisecond, Request: time.Minute, Attempts: 1}

// slowClock has each wait for a registry take twenty seconds.
type slowClock struct{ skippingClock }

func (c *slowClock) AfterFunc(d time.Duration, f func()) clock.Timer {
	c.advance(20 * time.Second)
	return c.RealClock.AfterFunc(d, f)
}

func TestRegistryThatLies(t *testing.T) {
	for _, tc := range []struct {
		name, match string
		fault       registrytest.Fault
		want        pull.Reason
	}{
		{"manifest of another digest", "GET .*/manifests/", registrytest.Corrupt(), pull.DigestMismatch},
		{"config of another digest", "/blobs/", registrytest.Corrupt(), pull.DigestMismatch},
		{"manifest cut short", "GET .*/manifests/", registrytest.Truncate(), pull.Unreachable},
		{"config cut short", "/blobs/", registrytest.Truncate(), pull.Unreachable},
		{"config with a tail", "/blobs/", registrytest.Append(1, false), pull.DigestMismatch},
		{"manifest that says it is too large", "GET .*/manifests/", endless(true), pull.TooLarge},
		{"manifest that grows too large", "GET .*/manifests/", endless(false), pull.TooLarge},
		{"config that says it is too large", "/blobs/", registrytest.Append(manifest.MaxConfigSize, true), pull.TooLarge},
		{"config that grows too large", "/blobs/", registrytest.Append(manifest.MaxConfigSize, false), pull.TooLarge},
		{"manifest that is HTML", "GET .*/manifests/", html, pull.Unexpected},
		{"config that is missing", "/blobs/", registrytest.Status(404, "BLOB_UNKNOWN"), pull.Incomplete},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			registry.Push("team/app:v1", newImage(t, sample.Spec{}))
			registry.Inject(tc.match, 0, tc.fault)
			_, err := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}}).Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), images)
			e := wantReason(t, err, tc.want)
			if e.Host != registry.Host || e.Repository != "team/app" || e.Reference != registry.Host+"/team/app:v1" {
				t.Errorf("the error is about %s, %s, %s", e.Host, e.Repository, e.Reference)
			}
			if len(images.Writes()) != 0 {
				t.Errorf("stored %v", images.Writes())
			}
		})
	}
}

func html(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>please log in</html>") })
}

func TestConfigThatClaimsToBeTooLargeIsNotAskedFor(t *testing.T) {
	registry := registrytest.New(t)
	m, _ := newImage(t, sample.Spec{}).Manifest()
	m = m.DeepCopy()
	m.Config.Size = manifest.MaxConfigSize + 1
	raw, _ := json.Marshal(m)
	registry.PushManifest("app:v1", string(types.OCIManifestSchema1), manifest.Digest(raw), raw)
	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", &registrytest.Images{})
	if left, err := manifest.LeftOutOf(result.Images[0].Image); err != nil || left.Config == nil || left.Config.Size != m.Config.Size {
		t.Errorf("left out: %+v, %v", left, err)
	}
	if len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "its config of 8388609 bytes is left out: too large") {
		t.Errorf("the warnings are %q", result.Warnings)
	}
	if n := registry.Count("/blobs/"); n != 0 {
		t.Errorf("it was read nevertheless: %v", requests(registry))
	}
}

// A manifest that some programs run and that is not read here does not keep its image
// out of the inventory, nor the index that lists it, whether or not the registry tells
// digests in a HEAD.
func TestManifestThatCannotBeReadIsLeftOut(t *testing.T) {
	for name, tc := range map[string]struct{ raw, reason string }{
		"larger than registries take": {`{"schemaVersion":2,"x":"` + strings.Repeat("x", 5<<20) + `"}`, manifest.LeftOutTooLarge},
		"with two readings":           {`{"schemaVersion":2,"manifests":[],"config":{},"layers":[]}`, manifest.LeftOutAmbiguous},
		"with a key twice":            {`{"schemaVersion":2,"config":{},"config":{},"layers":[]}`, manifest.LeftOutAmbiguous},
		"with a key in another case":  {`{"schemaVersion":2,"config":{},"layers":[],"Layers":[]}`, manifest.LeftOutAmbiguous},
		"with a negative size": {`{"schemaVersion":2,"layers":[],"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"` + manifest.Digest(nil) + `","size":-1}}`,
			manifest.LeftOutUnreadable},
		"nested too deep": {`{"schemaVersion":2,"x":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`, manifest.LeftOutUnreadable},
	} {
		for _, head := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, told by HEAD %t", name, head), func(t *testing.T) {
				t.Parallel()
				registry, images := registrytest.New(t), &registrytest.Images{}
				raw := []byte(tc.raw)
				digest := manifest.Digest(raw)
				registry.PushManifest("app:v1", string(types.OCIManifestSchema1), digest, raw)
				good := newImage(t, sample.Spec{})
				registry.Push("app:good", good)
				goodRaw, _ := good.RawManifest()
				list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%[2]q,"digest":%[3]q,"size":%[4]d,"platform":{"os":"linux","architecture":"arm64"}},{"mediaType":%[2]q,"digest":%[5]q,"size":%[6]d}]}`,
					types.OCIImageIndex, types.OCIManifestSchema1, digest, len(raw), manifest.Digest(goodRaw), len(goodRaw))
				registry.PushManifest("app:list", string(types.OCIImageIndex), manifest.Digest(list), list)
				if !head {
					registry.Inject("HEAD ", 0, registrytest.Status(http.StatusMethodNotAllowed, "UNSUPPORTED"))
				}
				im := newImporter(t, importer.Options{})
				result := mustImport(t, im, registry.Host+"/app:v1", images)
				image := result.Images[0].Image
				left, err := manifest.LeftOutOf(image)
				if want := (manifest.LeftOutPart{Digest: digest, Size: int64(len(raw)), Reason: tc.reason}); err != nil || left.Manifest == nil || *left.Manifest != want {
					t.Errorf("left out: %+v, %v, want %+v", left.Manifest, err, want)
				}
				if image.Name != digest || image.DockerImageManifest != "" || image.DockerImageManifestMediaType != string(types.OCIManifestSchema1) || len(result.Warnings) != 1 {
					t.Errorf("the image is %+v, the warnings are %q", image, result.Warnings)
				}
				if again := mustImport(t, im, registry.Host+"/app:v1", images); again.Images[0].Action != importer.Unchanged {
					t.Errorf("imported again it is %s", again.Images[0].Action)
				}
				all := mustImport(t, im, registry.Host+"/app:list", images)
				if len(all.Images) != 3 || all.Images[1].Image.Name != digest || all.Images[1].Platform != "linux/arm64" {
					t.Errorf("the index led to %d images", len(all.Images))
				}
				if got, err := im.Resolve(t.Context(), parse(t, registry.Host+"/app:v1")); err != nil || got != digest {
					t.Errorf("resolved as %s, %v", got, err)
				}
			})
		}
	}
}

// What a registry does not call a manifest is none, and what nobody runs is not an image.
func TestWhatIsNoManifestIsNotStored(t *testing.T) {
	for _, mediaType := range []string{"text/html", "application/json", "", "application/vnd.example.manifest+json", string(types.DockerManifestSchema1), string(types.DockerManifestSchema1Signed)} {
		registry, images := registrytest.New(t), &registrytest.Images{}
		raw := []byte("<html>please log in</html>")
		registry.PushManifest("app:v1", mediaType, manifest.Digest(raw), raw)
		_, err := newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
		wantReason(t, err, pull.InvalidImage)
		if len(images.Writes()) != 0 {
			t.Errorf("%q: stored %v", mediaType, images.Writes())
		}
	}
}

// A child of an index whose content cannot be kept is there as well, and the index is.
func TestManifestThatIsNotUTF8IsLeftOut(t *testing.T) {
	registry := registrytest.New(t)
	image := newImage(t, sample.Spec{})
	registry.Push("app:v0", image)
	raw, _ := image.RawManifest()
	raw = bytes.Replace(raw, []byte(`"schemaVersion"`), []byte("\"x\":\"\xff\",\"schemaVersion\""), 1)
	registry.PushManifest("app:v1", string(types.OCIManifestSchema1), manifest.Digest(raw), raw)
	digest := manifest.Digest(raw)
	list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, types.OCIImageIndex, types.OCIManifestSchema1, digest, len(raw))
	registry.PushManifest("app:list", string(types.OCIImageIndex), manifest.Digest(list), list)
	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:list", &registrytest.Images{})
	if len(result.Images) != 2 {
		t.Fatalf("result is %+v", result)
	}
	child := result.Images[1].Image
	left, err := manifest.LeftOutOf(child)
	if err != nil || left.Manifest == nil || left.Manifest.Digest != digest || left.Manifest.Size != int64(len(raw)) || child.DockerImageManifest != "" {
		t.Errorf("left out: %+v, %v", left, err)
	}
	if len(child.DockerImageLayers) == 0 || child.DockerImageConfig == "" {
		t.Errorf("what is left: %+v", child)
	}
}

func TestRegistryThatStallsOrDripsIsCut(t *testing.T) {
	for _, tc := range []struct {
		name, match string
		fault       registrytest.Fault
		options     importer.Options
		says        string
	}{
		{"greeting stalls", "GET /v2/$", registrytest.StallHeaders(), importer.Options{Limits: short}, "sent nothing for"},
		{"HEAD stalls", "HEAD ", registrytest.StallHeaders(), importer.Options{Limits: short}, "sent nothing for"},
		{"manifest stalls", "GET .*/manifests/", registrytest.StallBody(), importer.Options{Limits: short}, "sent nothing for"},
		{"config stalls", "/blobs/", registrytest.StallBody(), importer.Options{Limits: short}, "sent nothing for"},
		{"layer stalls", "/blobs/", registrytest.StallBody(), importer.Options{Limits: short}, "sent nothing for"},
		{"manifest drips", "GET .*/manifests/", registrytest.Drip(20 * time.Millisecond), importer.Options{Limits: pull.Limits{Stall: time.Minute, Request: time.Hour, Attempts: 1}, Clock: &slowClock{}}, "less than 1024 a second"},
		{"config takes too long", "/blobs/", registrytest.Drip(5 * time.Millisecond), importer.Options{Limits: pull.Limits{Stall: time.Minute, Request: 100 * time.Millisecond, Attempts: 1}}, "took longer than"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := registrytest.New(t)
			images, ref := &registrytest.Images{}, registry.Host+"/app:v1"
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			mustImport(t, newImporter(t, importer.Options{}), ref, images)
			registry.Push("app:v1", newImage(t, sample.Spec{Name: "moved"}))
			registry.Inject(tc.match, 0, tc.fault)
			_, err := newImporter(t, tc.options).Import(t.Context(), parse(t, ref), images)
			if e := wantReason(t, err, pull.Timeout); !e.Temporary() || !strings.Contains(e.Message, tc.says) {
				t.Errorf("%v is temporary: %t; want it to say %q", e, e.Temporary(), tc.says)
			}
		})
	}
}

func TestErrorsByStatus(t *testing.T) {
	for _, tc := range []struct {
		status    int
		code      string
		want      pull.Reason
		temporary bool
	}{
		{401, "UNAUTHORIZED", pull.Unauthorized, false},
		{403, "DENIED", pull.Denied, false},
		{404, "MANIFEST_UNKNOWN", pull.NotFound, false},
		{404, "NAME_UNKNOWN", pull.NotFound, false},
		{418, "TEAPOT", pull.Unexpected, false},
		{429, "TOOMANYREQUESTS", pull.RateLimited, true},
		{500, "UNKNOWN", pull.Unavailable, true},
		{503, "UNAVAILABLE", pull.Unavailable, true},
		{504, "UNKNOWN", pull.Timeout, true},
	} {
		t.Run(fmt.Sprint(tc.status, tc.code), func(t *testing.T) {
			registry := registrytest.New(t)
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			registry.Inject("GET .*/manifests/", 0, registrytest.Status(tc.status, tc.code))
			_, err := newImporter(t, importer.Options{Limits: pull.Limits{Attempts: 1}}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
			e := wantReason(t, err, tc.want)
			if e.Temporary() != tc.temporary {
				t.Errorf("temporary is %t", e.Temporary())
			}
			if !strings.Contains(e.Error(), "injected "+tc.code) || !strings.Contains(e.Error(), registry.Host+"/app:v1") {
				t.Errorf("%q does not say what the registry said, or about what", e)
			}
		})
	}
}

func TestRateLimitNamesTheWait(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	registry.Inject("/manifests/", 1, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "120"))
	im := newImporter(t, importer.Options{})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.RateLimited); e.RetryAfter != 2*time.Minute || !strings.Contains(e.Error(), "try again in 2m0s") {
		t.Errorf("%v has RetryAfter %s", e, e.RetryAfter)
	}
	registry.Reset()
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/app:other"), &registrytest.Images{})
	if e := wantReason(t, err, pull.RateLimited); e.RetryAfter <= time.Minute || e.RetryAfter > 2*time.Minute {
		t.Errorf("%v has RetryAfter %s", e, e.RetryAfter)
	}
	if n := len(registry.AllRequests()); n != 0 {
		t.Errorf("the host was not left alone: %v", registry.AllRequests())
	}
}

func TestTLS(t *testing.T) {
	registry := registrytest.New(t, registrytest.WithTLS())
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	roots := x509.NewCertPool()
	roots.AddCert(registry.Server().Certificate())
	insecure := []pull.Registry{{Prefix: "example.com", Insecure: true}, {Prefix: "other.test", Insecure: true}}
	for _, tc := range []struct {
		name, host string
		options    importer.Options
		want       pull.Reason
	}{
		{"unknown authority", "example.com", importer.Options{}, pull.TLS},
		{"known authority", "example.com", importer.Options{RootCAs: roots}, ""},
		{"another host's certificate", "other.test", importer.Options{RootCAs: roots}, pull.TLS},
		{"insecure", "example.com", importer.Options{Registries: insecure}, ""},
		{"insecure and another host's certificate", "other.test", importer.Options{Registries: insecure}, ""},
		{"insecure elsewhere", "example.com", importer.Options{Registries: []pull.Registry{{Prefix: "example.com/team", Insecure: true}}}, pull.TLS},
		{"insecure here only", "example.com", importer.Options{Registries: []pull.Registry{{Prefix: "example.com/app", Insecure: true}}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			im := newImporter(t, tc.options)
			im.DialTo(registry.Host)
			_, err := im.Import(t.Context(), parse(t, tc.host+"/app:v1"), &registrytest.Images{})
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e := wantReason(t, err, tc.want); e.Message == "" {
				t.Error("it says nothing")
			}
		})
	}
}

// A registry that answers in clear, and credentials that must not be heard.
func TestPlainHTTPIsForLoopbackAndInsecureHostsOnly(t *testing.T) {
	for _, tc := range []struct {
		host    string
		entries []pull.Registry
		allowed bool
	}{
		{"localhost:5000", nil, true},
		{"127.0.0.1:5000", nil, true},
		{"127.1.2.3:5000", nil, true},
		{"[::1]:5000", nil, true},
		{"registry.example.com", nil, false},
		{"registry.example.com:5000", nil, false},
		{"10.1.2.3:5000", nil, false}, // go-containerregistry falls back to HTTP for these three
		{"172.16.0.1:5000", nil, false},
		{"192.168.0.1", nil, false},
		{"192.168.0.1", []pull.Registry{{Prefix: "192.168.0.1", Insecure: true}}, true},
		{"registry.example.com:5000", []pull.Registry{{Prefix: "registry.example.com:5000", Insecure: true}}, true},
		{"registry.example.com:5000", []pull.Registry{{Prefix: "registry.example.com", Insecure: true}}, false},
		{"registry.example.com:5000", []pull.Registry{{Prefix: "registry.example.com:5000/team", Insecure: true}}, false},
	} {
		t.Run(fmt.Sprint(tc.host, tc.entries), func(t *testing.T) {
			registry := registrytest.New(t)
			registry.Push("app:v1", newImage(t, sample.Spec{}))
			im := newImporter(t, importer.Options{Registries: tc.entries, Keychain: secret})
			im.DialTo(registry.Host)
			_, err := im.Import(t.Context(), parse(t, tc.host+"/app:v1"), &registrytest.Images{})
			if tc.allowed {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if e := wantReason(t, err, pull.TLS); !strings.Contains(e.Message, "insecure") {
				t.Errorf("%v does not say what to do", e)
			}
			if n := len(registry.AllRequests()); n != 0 {
				t.Errorf("the registry heard %v in clear", registry.AllRequests())
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	registry := registrytest.New(t)
	registry.Server().Close()
	_, err := newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	if e := wantReason(t, err, pull.Unreachable); !e.Temporary() {
		t.Error("it is not temporary")
	}
	_, err = newImporter(t, importer.Options{}).Import(t.Context(), parse(t, "registry.invalid/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.Unreachable)
}

func TestErrorsShowNoSecret(t *testing.T) {
	registry, other := registrytest.New(t), registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	// Blob storage is reached by signed URLs; what it says goes on for pages.
	registry.Inject("/blobs/", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, other.AliasURL()+"/storage?X-Amz-Signature=s3cr3t", http.StatusTemporaryRedirect)
		})
	})
	for name, fault := range map[string]registrytest.Fault{
		"status": registrytest.Status(403, "DENIED"),
		"body":   registrytest.Truncate(),
		"page": func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				w.WriteHeader(http.StatusForbidden)
				fmt.Fprintf(w, "\x1b[31m<pre>%s\n%s", req.URL, strings.Repeat("at com.example.Storage\n", 1000))
			})
		},
		"stall": registrytest.StallHeaders(),
		"loop":  registrytest.Redirect(307, other.AliasURL()),
	} {
		t.Run(name, func(t *testing.T) {
			other.Heal()
			other.Inject("/storage", 0, fault)
			_, err := newImporter(t, importer.Options{Limits: short, AllowedNetworks: loopback}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
			if err == nil {
				t.Fatal("no error")
			}
			text := err.Error()
			if strings.Contains(text, "s3cr3t") || strings.ContainsAny(text, "\n\x1b") || len(text) > 1024 {
				t.Errorf("%q", text)
			}
		})
	}
}

func TestRedirectToAPrivateAddressIsRefused(t *testing.T) {
	inside := registrytest.New(t)
	for _, tc := range []struct {
		name, to string
		entries  []pull.Registry
		want     pull.Reason
	}{
		{"unnamed", "https://10.0.0.1:9000", []pull.Registry{{Prefix: "registry.example.com", Insecure: true}}, pull.Denied},
		{"named", "http://10.0.0.1:9000", []pull.Registry{{Prefix: "registry.example.com", Insecure: true}, {Prefix: "10.0.0.1:9000", Insecure: true}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			image := newImage(t, sample.Spec{})
			inside.Reset()
			inside.Push("app:v1", image)
			inside.Inject("/blobs/", 1, registrytest.Redirect(307, tc.to))
			im := newImporter(t, importer.Options{Registries: tc.entries})
			im.DialTo(inside.Host)
			_, err := im.Import(t.Context(), parse(t, "registry.example.com/app:v1"), &registrytest.Images{})
			inside.Heal()
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantReason(t, err, tc.want)
			if n := inside.Count("/blobs/"); n != 1 {
				t.Errorf("the redirect was followed: %v", requests(inside))
			}
		})
	}
}

func TestRedirectToPlainHTTPIsRefused(t *testing.T) {
	registry, plain := registrytest.New(t, registrytest.WithTLS()), registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	roots := x509.NewCertPool()
	roots.AddCert(registry.Server().Certificate())
	registry.Inject("/blobs/", 0, registrytest.Redirect(307, "http://cdn.example.com"))
	im := newImporter(t, importer.Options{RootCAs: roots})
	im.DialTo(registry.Host)
	_, err := im.Import(t.Context(), parse(t, "example.com/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.Insecure)
	if n := len(plain.AllRequests()); n != 0 {
		t.Errorf("heard %v", plain.AllRequests())
	}
}

// A registry on this machine is not a licence to lead to others on it: the reference
// names a host and a port.
func TestRegistryDoesNotLeadToServicesOnThisMachine(t *testing.T) {
	inside := registrytest.New(t)
	for name, lead := range map[string]func(*registrytest.Registry){
		"HEAD redirects": func(r *registrytest.Registry) { r.Inject("HEAD ", 0, registrytest.Redirect(307, inside.URL)) },
		"manifest redirects": func(r *registrytest.Registry) {
			r.Inject("GET .*/manifests/", 0, registrytest.Redirect(302, inside.AliasURL()))
		},
		"config redirects":   func(r *registrytest.Registry) { r.Inject("/blobs/", 0, registrytest.Redirect(307, inside.URL)) },
		"greeting redirects": func(r *registrytest.Registry) { r.Inject("GET /v2/$", 0, registrytest.Redirect(302, inside.URL)) },
		"tags redirect":      func(r *registrytest.Registry) { r.Inject("/tags/", 0, registrytest.Redirect(302, inside.URL)) },
	} {
		t.Run(name, func(t *testing.T) {
			image, registry := newImage(t, sample.Spec{}), registrytest.New(t)
			registry.Push("app:v1", image)
			inside.Push("app:v1", image)
			images := &registrytest.Images{}
			if name == "HEAD redirects" { // known tags get one
				mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
			}
			lead(registry)
			im := newImporter(t, importer.Options{})
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
			if name == "tags redirect" {
				_, _, err = im.Tags(t.Context(), parse(t, registry.Host+"/app"))
			}
			if e := new(pull.Error); !errors.As(err, &e) || e.Reason != pull.Denied || !strings.Contains(e.Message, "allowedNetworks") {
				t.Errorf("error is %v, want a refusal that says what to do", err)
			}
			if heard := inside.AllRequests(); len(heard) > 0 {
				t.Errorf("heard %v", heard)
			}
		})
	}
}

// A realm on localhost gave what it answered, as a token, to the registry.
func TestRealmOnThisMachineGivesNothingToTheRegistry(t *testing.T) {
	inside := registrytest.New(t, registrytest.WithAuth(with("", func(a *registrytest.Auth) { a.Anonymous = true })))
	for _, realm := range []string{inside.URL, inside.AliasURL()} {
		registry := registrytest.New(t, registrytest.WithAuth(with("bearer", func(a *registrytest.Auth) { a.Realm = realm + "/token" })))
		registry.Push("app:v1", newImage(t, sample.Spec{}))
		_, err := newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
		if err == nil || realm == inside.AliasURL() && pull.ReasonOf(err) != pull.Denied {
			t.Errorf("error is %v", err)
		}
		if heard := inside.AllRequests(); len(heard) > 0 {
			t.Errorf("heard %v", heard)
		}
		for _, req := range registry.AllRequests() {
			if req.Authorization != "" {
				t.Errorf("%s came with %s", req, req.Authorization)
			}
		}
	}
}
