package imageapi_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// listener has what Options.Pushed is told of.
type listener struct {
	refs []string
	fail error
}

func (p *listener) Pushed(_ context.Context, ref reference.Reference) error {
	p.refs = append(p.refs, strings.TrimPrefix(ref.String(), ownRegistry+"/team/"))
	return p.fail
}

func (p *listener) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if !slices.Equal(p.refs, want) {
		t.Errorf("%s: told of %q, want %q", what, p.refs, want)
	}
	p.refs = nil
}

// Of what the registry of streams stores somebody is told, who looks for signatures: of each
// mapping, and of a referrer that is pushed by digest, also if it is there. A push that nobody
// could be told of has failed.
func TestPushesAreTold(t *testing.T) {
	t.Parallel()
	var to listener
	s := newTagStoragesOf(t, imageapi.Options{Registry: ownRegistry, Pushes: &to})
	s.mustCreateStream(stream("app", ""))
	image := pushed(t, "app", "v1", 0)
	s.mustMap(image)
	to.expect(t, "a mapping", "app:v1@"+image.Image.Name)
	if err := s.mapped(image, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	to.expect(t, "a dry run")

	referrer := ofManifest(t, read(t, "sigstore-bundle.json"))
	m, err := manifest.Parse([]byte(referrer.DockerImageManifest), "")
	if err != nil {
		t.Fatal(err)
	}
	referrers := "app:" + strings.Replace(m.Subject.Digest, ":", "-", 1)
	post := func(image *imagev1.Image, dryRun ...string) error {
		_, err := s.images.(rest.Creater).Create(requestContext(), image.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	if err := post(referrer, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	to.expect(t, "a dry run of a referrer")
	to.fail = errors.New("the disk is full")
	if err := post(referrer); !errors.Is(err, to.fail) {
		t.Errorf("a referrer that nobody is told of: %v", err)
	}
	to.expect(t, "a referrer", referrers)
	if err := s.mapped(image); !errors.Is(err, to.fail) {
		t.Errorf("a mapping that nobody is told of: %v", err)
	}
	to.expect(t, "a mapping again", "app:v1@"+image.Image.Name)
	to.fail = nil
	if err := post(referrer); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a referrer again: %v", err)
	}
	to.expect(t, "a referrer again", referrers)
	s.mustMap(mappingOf("bundle", referrer))
	to.expect(t, "a mapping of a referrer", "app:bundle@"+referrer.Name)

	if err := post(ofManifest(t, read(t, "helm-chart.json"))); err != nil {
		t.Fatal(err)
	}
	to.expect(t, "a chart by digest")
	if err := post(bareImage(t, "notation-sig.json", "")); err != nil {
		t.Fatal(err)
	}
	to.expect(t, "a referrer elsewhere")
}

// The server asks no registry that it may not.
func TestPushesToARegistryThatIsNotAllowed(t *testing.T) {
	t.Parallel()
	for domain, want := range map[string][]string{"registry.example.com": nil, "registry.internal:5000": {"app:v1@" + digestOf(1)}} {
		var to listener
		s := newTagStoragesOf(t, imageapi.Options{Registry: ownRegistry, Pushes: &to, AllowedRegistries: []configv1.RegistryLocation{{DomainName: domain}}})
		s.mustCreateStream(stream("app", ""))
		s.mustMap(pushed(t, "app", "v1", 1))
		to.expect(t, "allowed is "+domain, want...)
	}
}
