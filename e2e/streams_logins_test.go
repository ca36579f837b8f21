package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// playedRegistry goes by the rules of OpenShift's registry: it sends the same requests, with its
// own credential and with the token of whoever asks it.
type playedRegistry struct {
	t   *testing.T
	s   *harness.Server
	own streamCaller
}

// config reaches the server with a token, or without a credential.
func (r *playedRegistry) config(token string) *rest.Config {
	config := rest.AnonymousClientConfig(r.s.Config(r.t))
	config.BearerToken = token
	return config
}

// logsIn is what the registry answers a login and a request for a token: the user, or 401.
func (r *playedRegistry) logsIn(token string) (user string, code int) {
	r.t.Helper()
	client, err := kubernetes.NewForConfig(r.config(token))
	must(r.t, err)
	self, err := client.AuthenticationV1().SelfSubjectReviews().Create(r.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
		return "", http.StatusUnauthorized
	}
	must(r.t, err)
	return self.Status.UserInfo.Username, http.StatusOK
}

// may reports whether a user may do something with a repository; without a token, whether the API
// answers at all.
func (r *playedRegistry) may(token, verb, repository string) bool {
	r.t.Helper()
	client, err := kubernetes.NewForConfig(r.config(token))
	must(r.t, err)
	namespace, name, _ := strings.Cut(repository, "/")
	review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(r.t.Context(), &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: namespace, Verb: verb, Group: "image.openshift.io", Resource: "imagestreams/layers", Name: name},
	}}, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) {
		return false
	}
	must(r.t, err)
	return review.Status.Allowed
}

// has reports whether the registry gives a blob out as one of a repository.
func (r *playedRegistry) has(repository, blob string) bool {
	r.t.Helper()
	namespace, name, _ := strings.Cut(repository, "/")
	layers := r.own.must(r.t, http.StatusOK, "GET", "namespaces/"+namespace+"/imagestreams/"+name+"/layers", nil, nil)
	return at(layers, "blobs", blob) != nil || at(layers, "images", blob) != nil
}

// mounts is what the registry answers POST /v2/TO/blobs/uploads/?mount=BLOB&from=FROM: 201 if it
// mounts the blob, 202 if it has to be uploaded, and 401 to who may not push.
func (r *playedRegistry) mounts(token, blob, from, to string) int {
	r.t.Helper()
	switch {
	case !r.may(token, "update", to) || !r.may(token, "get", to):
		return http.StatusUnauthorized
	case r.may(token, "get", from) && r.has(from, blob):
		return http.StatusCreated
	}
	return http.StatusAccepted
}

// OpenShift's registry judges by this API who logs in, with the token of a service account, too,
// and what they may pull, push, mount from another repository, and sign.
func TestRegistryOfStreamsJudgesUsers(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, []byte("streams: {registry: "+streamRegistry+"}\n"), 0o600))
	s := harness.StartServer(t, "--config", config)
	r := &playedRegistry{t, s, streamCaller{restClient(t, as(s.Config(t), "registry"))}}
	s.Kubectl(t, "create", "clusterrolebinding", "registry", "--clusterrole=tidewaiter:registry", "--user=registry")
	s.Kubectl(t, "create", "clusterrolebinding", "signer", "--clusterrole=system:image-signer", "--serviceaccount=team:signer")
	tokens := map[string]string{"": ""}
	for _, namespace := range []string{"team", "other"} {
		s.Kubectl(t, "create", "namespace", namespace)
	}
	for name, roles := range map[string][]string{
		"puller": {"team puller"}, "pusher": {"team pusher"}, "both": {"team pusher", "other puller"}, "elsewhere": {"other pusher"}, "signer": {"team pusher"},
	} {
		s.Kubectl(t, "create", "serviceaccount", name, "-n", "team")
		for _, role := range roles {
			namespace, role, _ := strings.Cut(role, " ")
			s.Kubectl(t, "create", "rolebinding", name, "-n", namespace, "--clusterrole=system:image-"+role, "--serviceaccount=team:"+name)
		}
		tokens[name] = strings.TrimSpace(s.Kubectl(t, "create", "token", name, "-n", "team"))
	}
	imgs := images.Numbered(t, 2)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	blob := func(i int) string {
		t.Helper()
		config, err := imgs[i].ConfigName()
		must(t, err)
		return config.String()
	}
	admin := streamCaller{restClient(t, s.Config(t))}
	for i, repository := range []string{"team/app", "other/tool"} {
		namespace, name, _ := strings.Cut(repository, "/")
		admin.must(t, http.StatusCreated, "POST", "namespaces/"+namespace+"/imagestreams", nil, map[string]any{"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": name}})
		admin.must(t, http.StatusCreated, "POST", "namespaces/"+namespace+"/imagestreammappings", nil, map[string]any{"kind": "ImageStreamMapping", "apiVersion": "image.openshift.io/v1",
			"metadata": map[string]any{"namespace": namespace, "name": name}, "image": pushedImage(t, repository, imgs[i]), "tag": "v1"})
	}

	// The bindings take a moment.
	harness.Eventually(t, func() error {
		for _, who := range []string{"puller", "pusher", "both", "signer"} {
			if !r.may(tokens[who], "get", "team/app") {
				return fmt.Errorf("%s may not pull yet", who)
			}
		}
		if !r.may(tokens["both"], "get", "other/tool") || !r.may(tokens["elsewhere"], "update", "other/tool") {
			return fmt.Errorf("there are no rights in the other namespace yet")
		}
		if code, answer := r.own.send(t, "GET", "namespaces/team/imagestreams/app/layers", nil, nil); code != http.StatusOK {
			return fmt.Errorf("the registry may not: %v", answer)
		}
		return nil
	})

	t.Run("tokens", func(t *testing.T) {
		for who, want := range map[string][]bool{ // pull and push of team/app, pull and push of other/tool
			"puller": {true, false, false, false}, "pusher": {true, true, false, false}, "both": {true, true, true, false}, "elsewhere": {false, false, true, true}, "": {false, false, false, false},
		} {
			var got []bool
			for _, repository := range []string{"team/app", "other/tool"} {
				got = append(got, r.may(tokens[who], "get", repository), r.may(tokens[who], "update", repository))
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q may %v, want %v", who, got, want)
			}
			name, code := r.logsIn(tokens[who])
			if who == "" { // anonymous users may do nothing
				if code != http.StatusUnauthorized {
					t.Errorf("nobody logs in: %d", code)
				}
			} else if name != "system:serviceaccount:team:"+who {
				t.Errorf("%s logs in as %s (%d)", who, name, code)
			}
		}
		if _, code := r.logsIn("unknown"); code != http.StatusUnauthorized {
			t.Errorf("a token that nobody knows is answered %d", code)
		}
		// A pull secret is made from a token, where the pods are: this API keeps no Secrets.
		if got := s.TryKubectl(t, "create", "secret", "docker-registry", "pull", "-n", "team", "--docker-server="+streamRegistry, "--docker-username=puller", "--docker-password="+tokens["puller"]); got.Code == 0 || !strings.Contains(got.Stderr, "could not find the requested resource") {
			t.Errorf("a Secret: %d %s%s", got.Code, got.Stdout, got.Stderr)
		}
	})

	t.Run("mounts", func(t *testing.T) {
		for _, tt := range []struct {
			who, what      string
			blob, from, to string
			want           int
		}{
			{"both", "who may pull there and push here", blob(1), "other/tool", "team/app", http.StatusCreated},
			{"both", "the manifest", digest(1), "other/tool", "team/app", http.StatusCreated},
			{"pusher", "who may not pull there", blob(1), "other/tool", "team/app", http.StatusAccepted},
			{"both", "what the other repository does not have", blob(0), "other/tool", "team/app", http.StatusAccepted},
			{"puller", "who may not push", blob(1), "other/tool", "team/app", http.StatusUnauthorized},
			{"elsewhere", "who may push there alone", blob(1), "other/tool", "team/app", http.StatusUnauthorized},
			{"", "nobody", blob(1), "other/tool", "team/app", http.StatusUnauthorized},
		} {
			if got := r.mounts(tokens[tt.who], tt.blob, tt.from, tt.to); got != tt.want {
				t.Errorf("%s: %d, want %d", tt.what, got, tt.want)
			}
		}
		// The manifest that is pushed then makes the blobs those of the repository.
		if r.has("team/app", blob(1)) {
			t.Error("a blob is of a repository to which no manifest with it was pushed")
		}
		r.own.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, mapping(t, "app", "mounted", imgs[1]))
		if !r.has("team/app", blob(1)) || !r.has("other/tool", blob(1)) {
			t.Error("after the push, the blob is not of both repositories")
		}
	})

	// PUT /extensions/v2/team/app/signatures/DIGEST creates an ImageSignature with the token of the
	// user, and GET reads the image of the stream.
	t.Run("signatures", func(t *testing.T) {
		sign := func(who, name string) int {
			t.Helper()
			code, _ := streamCaller{restClient(t, r.config(tokens[who]))}.send(t, "POST", "imagesignatures", nil, map[string]any{
				"kind": "ImageSignature", "apiVersion": "image.openshift.io/v1", "type": "AtomicImageV1", "content": "AAAA", "metadata": map[string]any{"name": name}})
			return code
		}
		name := digest(0) + "@" + strings.Repeat("7", 32)
		for _, tt := range []struct {
			who, name string
			want      int
		}{
			{"pusher", name, http.StatusForbidden}, {"", name, http.StatusUnauthorized}, {"signer", name, http.StatusCreated}, {"signer", name, http.StatusConflict},
			{"signer", digestOf("nothing") + "@" + strings.Repeat("7", 32), http.StatusNotFound},
		} {
			if got := sign(tt.who, tt.name); got != tt.want {
				t.Errorf("%q signs %s: %d, want %d", tt.who, tt.name, got, tt.want)
			}
		}
		image := r.own.must(t, http.StatusOK, "GET", "namespaces/team/imagestreamimages/app@"+digest(0), nil, nil)
		signatures, _ := at(image, "image", "signatures").([]any)
		if len(signatures) != 1 || at(signatures[0], "metadata", "name") != name || at(signatures[0], "type") != "AtomicImageV1" || at(signatures[0], "content") != "AAAA" {
			t.Errorf("the registry gives out %v", signatures)
		}
	})

	t.Run("an account that is deleted", func(t *testing.T) {
		s.Kubectl(t, "delete", "serviceaccount", "puller", "-n", "team")
		harness.Eventually(t, func() error {
			if _, code := r.logsIn(tokens["puller"]); code != http.StatusUnauthorized || r.may(tokens["puller"], "get", "team/app") {
				return fmt.Errorf("its token is answered %d", code)
			}
			return nil
		})
	})
}
