//go:build containers_image_openpgp

package differential

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

const repository = "registry.example.com/demo/app"

// index lists one platform, whose manifest is manifest.
var index = fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.docker.distribution.manifest.v2+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}}]}`, digestOf([]byte(manifest)), len(manifest))

// storedWith is an Image of the repository that two tags lead to, with signatures.
func storedWith(t *testing.T, raw string, contents [][]byte) *imagev1.Image {
	t.Helper()
	digest := digestOf([]byte(raw))
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: repository + "@" + digest, DockerImageManifest: raw}
	var found annotation.Repository
	for _, content := range contents {
		name := signatures.Name(digest, content)
		image.Signatures = append(image.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: signatures.TypeSimpleSigning, Content: content})
		found.Signatures = append(found.Signatures, name[len(digest)+1:])
	}
	references, err := json.Marshal([]string{repository + ":v1", repository + ":v2", repository + "@" + digest})
	if err != nil {
		t.Fatal(err)
	}
	image.Annotations = map[string]string{annotation.References: string(references)}
	annotation.SetFound(image.Annotations, map[string]annotation.Repository{repository: found})
	return image
}

// askPlatform asks about a platform of an index, both stored.
func askPlatform(t *testing.T, asked, namespace string, set *policy.Set, ofPlatform, ofIndex [][]byte) annotation.Verdict {
	t.Helper()
	platform, vouching := storedWith(t, manifest, ofPlatform), storedWith(t, index, ofIndex)
	signatures.VerifyImage(vouching, set, time.Now(), nil)
	ref, err := reference.Parse(asked)
	if err != nil {
		t.Fatal(err)
	}
	return signatures.Ask(platform, ref, namespace, set, time.Now(), func(key string) ([]*imagev1.Image, error) {
		if annotation.JudgedAnywhere(vouching.Annotations)[key].Verified == verdicts.VerifiedTrue {
			return []*imagev1.Image{vouching}, nil
		}
		return nil, nil
	})
}

// setOf are policies: those of the cluster in cluster, those of the namespace team in team.
func setOf(t *testing.T, cluster, team []string) *policy.Set {
	t.Helper()
	var all []*policy.Policy
	for namespace, documents := range map[string][]string{"": cluster, "team": team} {
		for _, text := range documents {
			var d policy.Document
			if err := yaml.Unmarshal([]byte(strings.TrimPrefix(text, "---\n")), &d); err != nil {
				t.Fatal(err)
			}
			p, err := policy.New(namespace, d.Metadata.Name, &d.Spec)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
	}
	set, err := policy.NewSet(all)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// situation is which policies there are, and whom they trust with what is asked about.
type situation struct {
	name          string
	cluster, team []string
	trusted       func(asked, namespace string) []root
	signed        bool // platforms have to be signed themselves
}

func situations(a, b root, identity string) []situation {
	document := func(name, scope string, by root) string {
		return signaturestest.Document(name, `["`+scope+`"]`, by.ours, identity)
	}
	everywhere, platform := document("a", "registry.example.com", a), repository+"@"+digestOf([]byte(manifest))
	always := func(all ...root) func(string, string) []root { return func(string, string) []root { return all } }
	inTeam := func(all ...root) func(string, string) []root {
		return func(_, namespace string) []root {
			if namespace == "team" {
				return all
			}
			return nil
		}
	}
	return []situation{
		{name: "one policy", cluster: []string{everywhere}, trusted: always(a)},
		{name: "platforms that have to be signed", cluster: []string{everywhere + "    platforms: Signed\n"}, trusted: always(a), signed: true},
		{name: "two policies", cluster: []string{everywhere, document("b", "registry.example.com", b)}, trusted: always(a, b)},
		{name: "a policy for the platform", cluster: []string{everywhere, document("b", platform, b)}, trusted: func(asked, _ string) []root {
			if asked == platform {
				return []root{b}
			}
			return []root{a}
		}},
		{name: "a policy for the index", cluster: []string{everywhere, document("b", repository+"@"+digestOf([]byte(index)), b)}, trusted: always(a)},
		{name: "a policy for one tag", cluster: []string{everywhere, document("b", repository+":v2", b)}, trusted: func(asked, _ string) []root {
			if asked == repository+":v2" {
				return []root{b}
			}
			return []root{a}
		}},
		{name: "a namespace's policy", team: []string{everywhere}, trusted: inTeam(a)},
		{name: "a namespace's policies", team: []string{everywhere, document("b", "registry.example.com", b)}, trusted: inTeam(a, b)},
		{name: "a namespace's policy beside the cluster's", cluster: []string{everywhere}, team: []string{document("b", "registry.example.com", b)}, trusted: always(a)},
	}
}

// What is asked about is a platform of an index, by its digest and by tags that were moved to it,
// by policies of the cluster and of a namespace. No answer is looser than that of containers/image
// to the same question; where the index vouches, not looser than that to the question about the
// index by the very policies that cover the platform.
func TestNeverLooserForPlatforms(t *testing.T) {
	t.Parallel()
	registry := newTheirs(t)
	digests := map[string]string{manifest: digestOf([]byte(manifest)), index: digestOf([]byte(index))}
	all := roots(t)
	a, b := all["key "+signaturestest.P256], all["key "+signaturestest.RSA2048]
	both, byIndex, neither, stricter := 0, 0, 0, 0
	for name, rule := range rules(t) {
		if name == "RemapIdentity" || name == "ExactRepository" { // no other names are in play here
			continue
		}
		refused := func(by []root, asked, raw string, contents [][]byte) (refused error) {
			for _, r := range by {
				requirement, err := r.theirs(rule.theirs)
				if err != nil {
					t.Fatal(err)
				}
				some := errors.New("none of the signatures")
				for _, content := range contents {
					if registry.allow(t, requirement, asked, []byte(raw), digests[raw], content) == nil {
						some = nil
					}
				}
				refused = errors.Join(refused, some)
			}
			return refused
		}
		sign := func(raw string, by []root, as string) (contents [][]byte) {
			for _, r := range by {
				contents = append(contents, r.sign([]byte(document(r.typ, as, digests[raw]).String())))
			}
			return contents
		}
		signers := [][]root{nil, {a}, {b}, {a, b}}
		for _, s := range situations(a, b, rule.ours) {
			set := setOf(t, s.cluster, s.team)
			for i, ofPlatform := range signers {
				for j, ofIndex := range signers {
					for _, as := range []string{repository + ":v1", repository + ":v2"} {
						signed := map[string][][]byte{manifest: sign(manifest, ofPlatform, as), index: sign(index, ofIndex, as)}
						for _, asked := range []string{repository + "@" + digests[manifest], repository + ":v1", repository + ":v2"} {
							for _, namespace := range []string{"", "team"} {
								trusted := s.trusted(asked, namespace)
								if trusted == nil {
									continue // no policy, no verdict
								}
								what := fmt.Sprintf("%s, %s, platform signed %d, index signed %d as %s, asked as %s in %q", name, s.name, i, j, as, asked, namespace)
								verdict := askPlatform(t, asked, namespace, set, signed[manifest], signed[index])
								err := refused(trusted, asked, manifest, signed[manifest])
								switch {
								case verdict.Verified == verdicts.VerifiedTrue && err != nil:
									t.Errorf("looser: %s: %+v, and they say %v", what, verdict, err)
								case verdict.Verified == verdicts.VerifiedTrue:
									both++
								case verdict.Verified == verdicts.ByIndex && s.signed:
									t.Errorf("looser: %s: %+v, where platforms have to be signed", what, verdict)
								case verdict.Verified == verdicts.ByIndex:
									if err := refused(trusted, repository+"@"+digests[index], index, signed[index]); err != nil {
										t.Errorf("looser: %s: %+v, and of the index they say %v", what, verdict, err)
									}
									byIndex++
								case err != nil:
									neither++
								default:
									stricter++
								}
							}
						}
					}
				}
			}
		}
	}
	t.Logf("%d accepted by both, %d by an index that they accept, %d by neither, %d by them alone", both, byIndex, neither, stricter)
	if both < 200 || byIndex < 50 || neither < 500 {
		t.Error("the comparison says little")
	}
}

// cosignRegistry serves the index, the platform and cosign's signatures of both.
type cosignRegistry struct {
	host  string
	files map[string][]byte // by path below the repository
}

func newCosignRegistry(t *testing.T) *cosignRegistry {
	r := &cosignRegistry{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		content, ok := r.files[strings.TrimPrefix(req.URL.Path, "/v2/demo/app/")]
		if req.URL.Path == "/v2/" {
			return
		}
		if !ok {
			http.NotFound(w, req)
			return
		}
		var typed struct{ MediaType string }
		if json.Unmarshal(content, &typed) == nil && strings.Contains(req.URL.Path, "/manifests/") {
			w.Header().Set("Content-Type", typed.MediaType)
			w.Header().Set("Docker-Content-Digest", digestOf(content))
		}
		_, _ = w.Write(content)
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// hold replaces what is there by an image, both by its digest and the tag v1, with signatures.
func (r *cosignRegistry) hold(t *testing.T, raw string, contents [][]byte) {
	t.Helper()
	digest := digestOf([]byte(raw))
	r.files = map[string][]byte{"manifests/" + digest: []byte(raw), "manifests/v1": []byte(raw)}
	const config = `{"architecture":"","created":"0001-01-01T00:00:00Z","os":"","rootfs":{"type":"layers","diff_ids":[]},"config":{}}`
	blob := func(mediaType string, content []byte, annotations map[string]string) map[string]any {
		r.files["blobs/"+digestOf(content)] = content
		return map[string]any{"mediaType": mediaType, "digest": digestOf(content), "size": len(content), "annotations": annotations}
	}
	layers := []any{}
	for _, content := range contents {
		b, err := payload.ParseBlob(content)
		if err != nil {
			t.Fatal(err)
		}
		layers = append(layers, blob(b.MediaType, b.Payload, b.Annotations))
	}
	if len(layers) == 0 {
		return
	}
	signed, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": blob("application/vnd.oci.image.config.v1+json", []byte(config), nil), "layers": layers})
	if err != nil {
		t.Fatal(err)
	}
	r.files["manifests/"+strings.Replace(digest, ":", "-", 1)+".sig"] = signed
}

// The same questions are put to cosign, which looks at signatures and no names: what is accepted
// here, cosign accepts by the key of each policy; where an index vouches, for the index.
func TestNeverLooserThanCosign(t *testing.T) {
	t.Parallel()
	program, err := filepath.Abs("../.tools/bin/cosign")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Skip("*** SKIPPED: cosign is not here. Build it with:  go run -C e2e ./tools cosign")
	}
	registry, dir := newCosignRegistry(t), t.TempDir()
	keys := map[string]*signaturestest.Key{"a": signaturestest.NewKey(t, signaturestest.P256), "b": signaturestest.NewKey(t, signaturestest.P256)}
	for name, key := range keys {
		if err := os.WriteFile(filepath.Join(dir, name+".pub"), key.PEM, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sign := func(raw, by string) (contents [][]byte) {
		digest := digestOf([]byte(raw))
		for _, one := range strings.Fields(by) {
			key, of := keys[one[:1]], digest
			if strings.HasSuffix(one, "-other") {
				of = "sha256:" + strings.Repeat("0", 64)
			}
			b := key.SimpleSigning(t, of, repository+":v1")
			if strings.HasSuffix(one, "-changed") { // after it was signed
				b.Payload = []byte(strings.Replace(string(b.Payload), ":v1", ":v2", 1))
			}
			contents = append(contents, signaturestest.Marshal(t, b))
		}
		return contents
	}
	accepts := func(key, raw string, contents [][]byte) bool {
		t.Helper()
		registry.hold(t, raw, contents)
		cmd := exec.CommandContext(t.Context(), program, "verify", "--key", filepath.Join(dir, key+".pub"), "--insecure-ignore-tlog=true", "--allow-http-registry", registry.host+"/demo/app@"+digestOf([]byte(raw)))
		cmd.Env = []string{"HOME=" + dir, "DOCKER_CONFIG=" + dir, "TUF_ROOT=" + dir}
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "signature") {
			t.Fatalf("cosign: %v: %s", err, out)
		}
		return err == nil
	}
	document := func(name string) string {
		return signaturestest.Document(name, `["registry.example.com"]`, signaturestest.TrustKey(keys[name], nil), "")
	}
	both, byIndex, neither, stricter := 0, 0, 0, 0
	for _, policies := range []string{"a", "a b"} {
		var documents []string
		for _, name := range strings.Fields(policies) {
			documents = append(documents, document(name))
		}
		set := setOf(t, documents, nil)
		all := func(raw string, contents [][]byte) bool {
			for _, key := range strings.Fields(policies) {
				if !accepts(key, raw, contents) {
					return false
				}
			}
			return true
		}
		for _, ofPlatform := range []string{"", "a", "b", "a b", "a-other", "a-changed", "b a-other b-changed"} {
			for _, ofIndex := range []string{"", "a b", "a-changed"} {
				platform, vouching := sign(manifest, ofPlatform), sign(index, ofIndex)
				verdict := askPlatform(t, repository+"@"+digestOf([]byte(manifest)), "", set, platform, vouching)
				what := fmt.Sprintf("policies %q, platform signed %q, index signed %q: %+v", policies, ofPlatform, ofIndex, verdict)
				accepted := all(manifest, platform)
				switch {
				case verdict.Verified == verdicts.VerifiedTrue && !accepted:
					t.Errorf("looser than cosign: %s", what)
				case verdict.Verified == verdicts.VerifiedTrue:
					both++
				case verdict.Verified == verdicts.ByIndex:
					if byIndex++; !all(index, vouching) {
						t.Errorf("looser than cosign of the index: %s", what)
					}
				case accepted:
					stricter++
				default:
					neither++
				}
			}
		}
	}
	t.Logf("%d accepted by both, %d by an index that cosign accepts, %d by neither, %d by cosign alone", both, byIndex, neither, stricter)
	if both < 6 || byIndex < 4 || neither < 10 {
		t.Error("the comparison says little")
	}
}
