//go:build containers_image_openpgp

package differential

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// What is asked about is a stored image, by one of its references: the tag that was signed, one
// that was moved or rolled back to it, its digest, a repository that it was promoted or copied to,
// another spelling. The signatures are those of the repository that is asked about. One policy
// covers it, or two that share a scope, both of which must be met. No answer is looser than that of
// containers/image to the same question.
func TestNeverLooserWhenAsked(t *testing.T) {
	t.Parallel()
	registry := newTheirs(t)
	digest := digestOf([]byte(manifest))
	names := []string{"registry.example.com/demo/app", "registry.example.com:5000/demo/app", "other.example.com/app", "docker.io/library/busybox"}
	roots, rules := roots(t), rules(t)
	ours, others := roots["key "+signaturestest.P256], roots["key "+signaturestest.RSA2048]
	both, neither, stricter := 0, 0, 0
	for _, rule := range slices.Sorted(maps.Keys(rules)) {
		match := rules[rule]
		for _, two := range []bool{false, true} {
			documents := signaturestest.Document("p", `["*"]`, ours.ours, match.ours)
			trusted := []root{ours}
			if two {
				documents += signaturestest.Document("q", `["*"]`, others.ours, match.ours)
				trusted = append(trusted, others)
			}
			set := signaturestest.SetFrom(t, documents)
			for _, signed := range []string{names[0] + ":v1", names[0] + ":v2", names[0], names[0] + "@" + digest, names[1] + ":v1", names[2] + ":v1", names[3] + ":v1", "vendor.example.com/app:v1", "vendor.example.com/app"} {
				for _, signers := range [][]root{{ours}, {others}, {ours, others}} {
					for _, name := range names {
						// the other spelling of one of them
						short := strings.Replace(name, "docker.io/library/", "", 1)
						for _, asked := range []string{name + ":v1", name + ":v2", name + "@" + digest, short + ":v1", name} {
							what := fmt.Sprintf("%s, two policies %v, signed as %s by %d, asked as %s", rule, two, signed, len(signers), asked)
							var contents [][]byte
							for _, by := range signers {
								contents = append(contents, by.sign([]byte(document(by.typ, signed, digest).String())))
							}
							pulled := asked
							if asked == name {
								pulled += ":latest" // as skopeo and podman complete it
							}
							refused := error(nil)
							for _, by := range trusted {
								requirement, err := by.theirs(match.theirs)
								if err != nil {
									t.Fatal(err)
								}
								some := errors.New("none of the signatures")
								for _, content := range contents {
									if err := registry.allow(t, requirement, pulled, []byte(manifest), digest, content); err == nil {
										some = nil
									}
								}
								refused = errors.Join(refused, some)
							}
							for _, judged := range []bool{false, true} {
								// by what the Image holds, too
								verdict := askStored(t, name, asked, digest, contents, func(image *imagev1.Image, ref reference.Reference) annotation.Verdict {
									if judged {
										signatures.VerifyImage(image, set, time.Now(), nil)
									}
									return signatures.Ask(image, ref, "", set, time.Now(), nil)
								})
								switch accepted := verdict.Verified == verdicts.VerifiedTrue; {
								case accepted && refused != nil:
									t.Errorf("looser: %s, judged before %v: %+v, and they say %v", what, judged, verdict, refused)
								case accepted:
									both++
								case refused != nil:
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
	t.Logf("%d accepted by both, %d by neither, %d by them alone", both, neither, stricter)
	if both < 200 || neither < 1000 {
		t.Error("the comparison says little")
	}
}

// askStored asks about an Image that is stored as in a repository, with signatures that were found
// there.
func askStored(t *testing.T, repository, asked, digest string, contents [][]byte, ask func(*imagev1.Image, reference.Reference) annotation.Verdict) annotation.Verdict {
	t.Helper()
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: repository + "@" + digest, DockerImageManifest: manifest}
	var found annotation.Repository
	for _, content := range contents {
		name := signatures.Name(digest, content)
		image.Signatures = append(image.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: signatures.TypeSimpleSigning, Content: content})
		found.Signatures = append(found.Signatures, name[len(digest)+1:])
	}
	references, err := json.Marshal([]string{repository + ":v1", repository + ":v2", repository + ":latest", repository + "@" + digest})
	if err != nil {
		t.Fatal(err)
	}
	image.Annotations = map[string]string{annotation.References: string(references)}
	annotation.SetFound(image.Annotations, map[string]annotation.Repository{repository: found})
	ref, err := reference.Parse(asked)
	if err != nil {
		t.Fatal(err)
	}
	return ask(image, ref.Pulled())
}
