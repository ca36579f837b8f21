package imageapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// promoting are storages, with images that are judged by their names for the pods of the namespace
// team.
type promoting struct {
	*tagStorages
	streams *imagestream.StoredStreams
	judged  map[string]annotation.Verdict
	told    []string // of the guarded tags
	broken  error    // of the next verdicts
	marked  int
}

var (
	trusted  = annotation.Verdict{Verified: "True", Policy: "prod"}
	unsigned = annotation.Verdict{Verified: "Unsigned", Policy: "prod", Message: "it has no signature there"}
)

func newPromoting(t *testing.T, options imageapi.Options) *promoting {
	p := &promoting{judged: map[string]annotation.Verdict{}}
	options.Guarded, options.Answerer.Policies = p, p
	p.tagStorages = newTagStoragesOf(t, options)
	p.streams = p.all.StoredStreams
	return p
}

// Guarded is part of imagestream.Guarded.
func (p *promoting) Guarded(stream *imagev1.ImageStream, waits bool, message string) {
	p.told = append(p.told, fmt.Sprint(stream.Namespace, " ", waits, " ", message))
}

// Set is part of answers.Policies.
func (*promoting) Set(context.Context) (*policy.Set, error) { return nil, nil }

// Judge is part of answers.Policies.
func (p *promoting) Judge(_ context.Context, q answers.Asked) (answers.Judgement, error) {
	if q.Namespace != "team" || q.Reference.Digest != q.Image.Name || q.Reference.Tag != "" {
		return answers.Judgement{}, fmt.Errorf("asked about %s for namespace %q", q.Reference, q.Namespace)
	}
	j := answers.Judgement{Verdict: p.judged[q.Image.Name]}
	if j.Verdict.Policy != "" {
		j.Covering = []*policy.Policy{{Name: j.Verdict.Policy}}
	}
	return j, p.broken
}

// image stores the nth image in a repository, with a verdict.
func (p *promoting) image(n int, repository string, v annotation.Verdict) string {
	p.t.Helper()
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(n)}, DockerImageReference: repository + "@" + digestOf(n)}
	if _, err := p.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		p.t.Fatal(err)
	}
	p.judged[image.Name] = v
	return image.Name
}

// moves has a tag of a registry lead to an image, and the streams that follow it looked at, as a
// push does.
func (p *promoting) moves(tag *imagev1.ImageTag, image string) {
	p.t.Helper()
	ref, _ := tags.Reference(tag)
	now, err := p.tags.Get(p.inTags(), tag.Name, &metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	tags.Lead(now.(*imagev1.ImageTag), ref, image, metav1.Now())
	if _, err := p.update(p.status, now.(*imagev1.ImageTag)); err != nil {
		p.t.Fatal(err)
	}
	p.marked++
	if err := p.streams.MarkStream(context.Background(), "team", "app", fmt.Sprint(1_000_000+p.marked)); err != nil {
		p.t.Fatal(err)
	}
}

// verified has a policy verify an image, and the tags that wait for it looked at.
func (p *promoting) verified(image string) {
	p.t.Helper()
	p.judged[image] = trusted
	if err := p.streams.Promote(context.Background(), image); err != nil {
		p.t.Fatal(err)
	}
}

// want checks where a tag of the stream app leads, by all that show it, and why it waits; "" is
// that it does not.
func (p *promoting) want(when, tag, image, why string) {
	p.t.Helper()
	app := p.stream("app")
	var leads string
	waits := tags.Failed(imagestream.HistoryOf(app, tag))
	if h := imagestream.HistoryOf(app, tag); imagestream.Leads(h) {
		leads = h.Items[0].Image
	}
	said := ""
	if waits != nil {
		said = waits.Reason + ": " + waits.Message
	}
	if leads != image || (why == "") != (said == "") || !strings.Contains(said, why) {
		p.t.Errorf("%s %s leads to %q and waits because of %q, want %q and %q", when, tag, leads, said, image, why)
	}
	one, err := p.streamTag("team", "app:"+tag)
	if image == "" {
		if err == nil {
			p.t.Errorf("%s the ImageStreamTag %s leads to %s", when, tag, one.Image.Name)
		}
		return
	}
	if err != nil || one.Image.Name != image {
		p.t.Errorf("%s the ImageStreamTag %s: %v, %v", when, tag, one, err)
	}
}

func guarded(tag *imagev1.TagReference) *imagev1.TagReference {
	tag.Annotations = map[string]string{imagestream.PromotionAnnotation: imagestream.PromotionVerified}
	return tag
}

// pushedTag is a tag that its stream's repository moves.
func pushedTag(name string) *imagev1.TagReference {
	tag := &imagev1.TagReference{Name: name}
	imagestream.SetTagDefaults(tag)
	return tag
}

// A guarded tag of a stream moves only to what a policy verifies. What it follows may lead
// elsewhere: it waits, with the reason, and moves by itself.
func TestGuardedTagsWait(t *testing.T) {
	t.Parallel()
	p := newPromoting(t, imageapi.Options{})
	first, second, third := p.image(1, repository, trusted), p.image(2, repository, unsigned), p.image(3, repository, annotation.Verdict{Verified: "Unknown", Policy: "prod", Message: "the registry did not answer"})
	stable, pushed := p.knownAs(repository, "stable", first), p.knownAs(repository, "v1", first)
	app := stream("app", repository, "prod", "DockerImage/"+repository+":stable", "free", "ImageStreamTag/prod", "live", "ImageStreamTag/free")
	guarded(&app.Spec.Tags[0])
	guarded(&app.Spec.Tags[2])
	app.Spec.Tags = append(app.Spec.Tags, *guarded(pushedTag("v1")))
	p.mustCreateStream(app)
	all := []string{"prod", "free", "live", "v1"}
	each := func(when, image, why string) {
		t.Helper()
		for _, tag := range all {
			if tag == "free" { // it follows a tag that waits
				p.want(when, tag, image, "")
			} else {
				p.want(when, tag, image, why)
			}
		}
	}
	each("at first", first, "")

	p.moves(stable, second)
	p.moves(pushed, second)
	each("after pushes", first, "NotVerified: the tag moves only to what a policy verifies (tidewaiter.dev/promotion): "+repository+"@"+second+" is Unsigned: it has no signature there")
	if len(p.told) != 3 || !strings.HasPrefix(p.told[0], "team true app:prod waits: the tag moves only to") {
		t.Errorf("told of what waits: %q", p.told)
	}
	version := p.stream("app").ResourceVersion
	if err := p.streams.Promote(context.Background(), ""); err != nil || p.stream("app").ResourceVersion != version {
		t.Errorf("a look that changes nothing writes: %v", err)
	}
	p.verified(second)
	each("once it is verified", second, "")
	if got := history(p.stream("app"), "prod"); got != "2 1" {
		t.Errorf("the history of prod is %s", got)
	}
	if len(p.told) != 6 || p.told[3] != "team false app:prod leads to "+repository+"@"+second+", which a policy verifies" {
		t.Errorf("told of what moved: %q", p.told)
	}

	// An unknown verdict waits, and so does what cannot be judged; a tag that is led back meanwhile
	// waits for nothing.
	p.moves(stable, third)
	p.moves(pushed, third)
	each("while the verdict is unknown", second, "is Unknown: the registry did not answer")
	p.broken = errors.New("no policies")
	if err := p.streams.Promote(context.Background(), third); err == nil || !strings.Contains(err.Error(), "no policies") {
		t.Errorf("without policies: %v", err)
	}
	p.broken = nil
	p.moves(stable, second)
	p.moves(pushed, second)
	each("led back", second, "")
	p.moves(stable, digestOf(9))
	p.moves(pushed, digestOf(9))
	each("while the image is not imported", second, "@"+digestOf(9)+" is not imported")
	p.image(9, repository, unsigned)
	p.verified(digestOf(9))
	each("imported and verified", digestOf(9), "")

	// A tag that the registry loses leads nowhere. It comes back when it is verified.
	p.moves(stable, "")
	p.want("without the registry's tag", "prod", "", "")
	p.moves(stable, third)
	p.want("pushed anew", "prod", "", "is Unknown")
	p.verified(third)
	p.want("verified", "prod", third, "")
	// What was verified once stays: the tag does not move.
	p.judged[third] = unsigned
	if err := p.streams.Promote(context.Background(), ""); err != nil {
		t.Fatal(err)
	}
	p.want("no longer verified", "prod", third, "")
	// Without the guard the tag shows all that the registry's tag led to.
	p.moves(stable, second)
	p.judged[first] = unsigned
	p.moves(stable, first)
	p.want("before the guard is off", "prod", second, "is Unsigned")
	off := p.stream("app")
	off.Spec.Tags[0].Annotations = nil
	if _, err := p.updateStream(p.tagStorages.streams, off); err != nil {
		t.Fatal(err)
	}
	p.want("without a guard", "prod", first, "")
	// A guard that is put on leaves the tag where it is.
	on := p.stream("app")
	guarded(&on.Spec.Tags[0])
	if _, err := p.updateStream(p.tagStorages.streams, on); err != nil {
		t.Fatal(err)
	}
	p.want("with a new guard", "prod", first, "")
	p.moves(stable, third)
	p.want("with a new guard", "prod", first, "is Unsigned")
}

// Each request that leads a guarded tag to an image that no policy verifies is refused, with the
// reason, and none takes the guard off but a change of the stream.
func TestGuardedTagsRefuse(t *testing.T) {
	t.Parallel()
	p := newPromoting(t, imageapi.Options{})
	first, second := p.image(1, repository, trusted), p.image(2, repository, unsigned)
	p.image(3, repository, annotation.Verdict{Verified: "True"})
	elsewhere := p.image(4, "registry.example.com/team/other", trusted)
	p.mustCreateStream(stream("other", "", "v1", "DockerImage/"+repository+"@"+second, "ok", "DockerImage/registry.example.com/team/other@"+elsewhere))
	app := stream("app", "", "prod", "DockerImage/"+repository+"@"+first, "dev", "DockerImage/"+repository+"@"+second)
	guarded(&app.Spec.Tags[0])
	p.mustCreateStream(app)

	refused := map[string]string{
		"DockerImage/" + repository + "@" + second:      repository + "@" + second + " is Unsigned: it has no signature there",
		"DockerImage/" + repository + "@" + digestOf(3): "no policy covers " + repository + "@" + digestOf(3),
		"DockerImage/" + repository + "@" + digestOf(7): repository + "@" + digestOf(7) + " is not imported",
		"DockerImage/" + repository + "@" + elsewhere:   repository + "@" + elsewhere + " is not imported",
		"ImageStreamTag/other:v1":                       "is Unsigned",
		"ImageStreamImage/app@" + second:                "is Unsigned",
	}
	by := map[string]func(spec *imagev1.TagReference) error{
		"ImageStreamTag": func(spec *imagev1.TagReference) error {
			tag := istag("app:prod", "DockerImage/a")
			tag.Tag = spec
			_, _, err := p.put(tag)
			return err
		},
		"ImageTag": func(spec *imagev1.TagReference) error {
			_, _, err := p.putImageTag(&imagev1.ImageTag{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "app:prod"}, Spec: spec})
			return err
		},
		"ImageStream": func(spec *imagev1.TagReference) error {
			app := p.stream("app")
			app.Spec.Tags[0] = *guarded(spec)
			_, err := p.updateStream(p.tagStorages.streams, app)
			return err
		},
		"a new ImageStreamTag": func(spec *imagev1.TagReference) error {
			tag := istag("app:new", "DockerImage/a")
			spec.Name = "new"
			tag.Tag, tag.Annotations = spec, guarded(spec).Annotations
			_, err := p.post(tag)
			return err
		},
		"a new ImageStream": func(spec *imagev1.TagReference) error {
			made := stream("made", "")
			made.Spec.Tags = []imagev1.TagReference{*guarded(spec)}
			_, err := p.createStream("team", made)
			return err
		},
	}
	for door, write := range by {
		for from, why := range refused {
			if strings.HasPrefix(from, "ImageStreamImage") && door == "a new ImageStream" {
				continue // of a stream's own history
			}
			spec := specTag("prod", from)
			if err := write(spec); err == nil || !strings.Contains(err.Error(), why) {
				t.Errorf("%s to %s: %v, want %q", door, from, err, why)
			}
		}
		unnamed := specTag("prod", "DockerImage/"+repository+":any")
		unnamed.Reference = true
		if err := write(unnamed); err == nil || !strings.Contains(err.Error(), "leads to no image") {
			t.Errorf("%s to a reference: %v", door, err)
		}
	}
	p.want("after all", "prod", first, "")
	if err := by["ImageStreamTag"](specTag("prod", "ImageStreamTag/other:ok")); err != nil {
		t.Fatal(err)
	}
	p.want("after oc tag", "prod", elsewhere, "")
	if err := by["ImageTag"](specTag("prod", "ImageStreamImage/app@"+first)); err != nil {
		t.Fatal(err)
	}
	p.want("led back", "prod", first, "")
	if !imagestream.IsGuarded(imagestream.SpecTag(p.stream("app"), "prod")) {
		t.Error("oc tag has taken the guard off")
	}
	p.judged[elsewhere] = unsigned
	if err := by["ImageStreamTag"](specTag("prod", "ImageStreamImage/app@"+elsewhere)); err == nil || !strings.Contains(err.Error(), "is Unsigned") {
		t.Errorf("led back to what is no longer verified: %v", err)
	}

	// A tag that follows another of the stream waits.
	if err := by["ImageStreamTag"](specTag("prod", "ImageStreamTag/dev")); err != nil {
		t.Fatal(err)
	}
	p.want("while it follows dev", "prod", first, "is Unsigned")
	p.verified(second)
	p.want("once dev is verified", "prod", second, "")

	for _, err := range []error{p.remove("team", "app:prod", nil), func() error {
		_, _, err := p.all.Tags.Delete(inNamespace("team", p.asUser), "app:prod", rest.ValidateAllObjectFunc, nil)
		return err
	}()} {
		if err == nil || !strings.Contains(err.Error(), "take the annotation tidewaiter.dev/promotion off it in the stream first") {
			t.Errorf("a guarded tag is deleted: %v", err)
		}
	}
	wrong := p.stream("app")
	wrong.Spec.Tags[0].Annotations[imagestream.PromotionAnnotation] = "always"
	if _, err := p.updateStream(p.tagStorages.streams, wrong); err == nil || !strings.Contains(err.Error(), `supported values: "verified"`) {
		t.Errorf("an unknown guard: %v", err)
	}
	off := p.stream("app")
	off.Spec.Tags[0].Annotations = nil
	if _, err := p.updateStream(p.tagStorages.streams, off); err != nil {
		t.Fatal(err)
	}
	if err := p.remove("team", "app:prod", nil); err != nil {
		t.Errorf("without a guard: %v", err)
	}
}

// A push to OpenShift's registry is stored, and can be signed there, before a guarded tag leads to
// it.
func TestPushesToGuardedTagsWait(t *testing.T) {
	t.Parallel()
	p := newPromoting(t, imageapi.Options{Registry: ownRegistry})
	app := stream("app", "")
	app.Spec.Tags = []imagev1.TagReference{*guarded(pushedTag("v1"))}
	p.mustCreateStream(app)
	push := func(n int) string {
		p.mustMap(pushed(t, "app", "v1", n))
		p.marked++
		if err := p.streams.MarkStream(context.Background(), "team", "app", fmt.Sprint(1_000_000+p.marked)); err != nil {
			t.Fatal(err)
		}
		return digestOf(n)
	}
	p.judged[digestOf(1)], p.judged[digestOf(2)], p.judged[digestOf(3)] = unsigned, unsigned, unsigned
	first := push(1)
	p.want("pushed", "v1", "", "is Unsigned")
	if _, err := p.streamImage("app@" + first); err != nil {
		t.Errorf("what waits cannot be read by its digest: %v", err)
	}
	if _, ok := p.layers("app").Images[first]; !ok {
		t.Error("the registry does not give out what waits")
	}
	p.verified(first)
	p.want("signed", "v1", first, "")
	second := push(2)
	p.want("pushed again", "v1", first, "is Unsigned")
	p.verified(second)
	p.want("signed again", "v1", second, "")
	if _, _, err := p.put(istag("app:v1", "ImageStreamImage/app@"+first)); err != nil {
		t.Fatal(err)
	}
	p.want("led back", "v1", first, "")
	if now, _ := tags.Now(p.imageTagOf(ownRegistry + "/team/app:v1")); now != first {
		t.Errorf("the registry has %s", now)
	}
	push(3)
	p.want("pushed anew", "v1", first, "is Unsigned")
}

// Imports that a request asks for, and those of tags, move a guarded tag only to what is verified.
func TestImportsOfGuardedTags(t *testing.T) {
	t.Parallel()
	by := &holder{}
	p := newPromoting(t, imageapi.Options{Importer: by})
	imports := p.all.TagImports
	first, second := p.image(1, repository, trusted), p.image(2, repository, unsigned)
	tag := p.knownAs(repository, "v1", first)
	app := stream("app", "", "prod", "DockerImage/"+repository+":v1", "fixed", "DockerImage/"+repository+"@"+digestOf(5))
	guarded(&app.Spec.Tags[0])
	guarded(&app.Spec.Tags[1])
	app.Spec.Tags[0].ImportPolicy.Scheduled = true
	p.mustCreateStream(app)
	p.want("before the import", "prod", first, "")
	p.want("before the import", "fixed", "", "is not imported")
	if got := toImport(t, imports); !strings.Contains(got, "v1") || !strings.Contains(got, digestOf(5)) {
		t.Errorf("to import: %s", got)
	}
	settle := func(name string) {
		t.Helper()
		ref, err := reference.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := imports.Imported(context.Background(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.image(5, repository, unsigned)
	settle(repository + ":v1")
	settle(repository + "@" + digestOf(5))
	p.want("imported", "prod", first, "")
	p.want("imported", "fixed", "", "is Unsigned")
	if got := toImport(t, imports); got != "" {
		t.Errorf("to import again: %s", got)
	}
	p.verified(digestOf(5))
	p.want("verified", "fixed", digestOf(5), "")

	p.moves(tag, second) // a scheduled import
	settle(repository + ":v1")
	p.want("imported again", "prod", first, "is Unsigned")

	by.image = p.judgedImage(second)
	for _, from := range []string{repository + ":v1", repository + "@" + second} {
		asked := importing("app", "fixed", from)
		done, err := p.imported(asked)
		if strings.Contains(from, "@") {
			if err == nil || !strings.Contains(err.Error(), "is Unsigned") {
				t.Errorf("an import of %s: %v, %v", from, done, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		p.want("asked to import", "fixed", digestOf(5), "is Unsigned")
	}
	p.verified(second)
	for _, tag := range []string{"prod", "fixed"} {
		p.want("verified", tag, second, "")
	}
}

func (p *promoting) judgedImage(name string) *imagev1.Image {
	p.t.Helper()
	obj, err := p.images.Get(requestContext(), name, &metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return obj.(*imagev1.Image)
}

func (p *promoting) imageTagOf(name string) *imagev1.ImageTag {
	p.t.Helper()
	ref, err := reference.Parse(name)
	if err != nil {
		p.t.Fatal(err)
	}
	obj, err := p.tags.Get(p.inTags(), tags.Name(ref), &metav1.GetOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	return obj.(*imagev1.ImageTag)
}

func (p *promoting) inTags() context.Context { return inNamespace(tags.Namespace, p.asUser) }

// A guard of many tags that follow each other in a circle ends.
func TestGuardedTagsInACircle(t *testing.T) {
	t.Parallel()
	p := newPromoting(t, imageapi.Options{})
	app := stream("app", "", "a", "ImageStreamTag/b", "b", "ImageStreamTag/a")
	for i := range app.Spec.Tags {
		guarded(&app.Spec.Tags[i])
	}
	p.mustCreateStream(app)
	if got := p.stream("app").Status.Tags; len(got) != 0 {
		t.Errorf("a circle leads to %v", got)
	}
}
