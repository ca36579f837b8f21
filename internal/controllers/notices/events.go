// Package notices turns changes of stored objects into notifications. It reads the history of
// changes from a stored position. So a notification is sent only after its change is stored, and no
// stored change is missed if the server stops in between.
package notices

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Runs knows what pods run.
type Runs interface {
	// Synced reports whether all stored pods are known.
	Synced() bool
	// Pods counts the pods that are known to run an image; complete is false if there may be more.
	Pods(digest string, image *imagev1.Image) (n int, complete bool)
	// PodsNaming counts the pods that run an image, name it by a place (a repository or a tag) and
	// have a verdict for what they name: the pods of a namespace or, with "", of all namespaces
	// without policies of their own.
	PodsNaming(ctx context.Context, image *imagev1.Image, place reference.Reference, namespace, verified string) (n int, complete bool, err error)
	// Drift returns a message about the pods that name a tag and run another image than it leads to;
	// "" if there are none. image is what the tag leads to.
	Drift(ctx context.Context, tag reference.Reference) (message, image string, pods int, err error)
	// Overwritten returns how a tag has moved although it must not; nil if it has not.
	Overwritten(ctx context.Context, tag *imagev1.ImageTag) (*answers.Overwritten, error)
}

// maker makes events.
type maker struct {
	runs Runs
	now  func() time.Time
}

// events returns the events for a change. It fails if the change, or something that its events
// depend on, cannot be read.
func (m *maker) events(ctx context.Context, c kubestore.Change) (all []notify.Event, err error) {
	if c.Err != nil {
		return nil, c.Err
	}
	switch after := c.After.(type) {
	case *imagev1.Image:
		before, _ := c.Before.(*imagev1.Image)
		all, err = m.ofImage(ctx, before, after)
	case *imagev1.ImageTag:
		before, _ := c.Before.(*imagev1.ImageTag)
		all, err = m.ofTag(ctx, before, after)
	}
	for i := range all {
		all[i].Sequence = c.Rev
	}
	return all, err
}

// id derives the ID of an event from its change, so the same change always gets the same ID.
func id(kind notify.Kind, of types.UID, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append([]string{string(kind), string(of)}, parts...), "\x00")))
	return hex.EncodeToString(sum[:16])
}

func (m *maker) ofImage(ctx context.Context, before, after *imagev1.Image) (all []notify.Event, err error) {
	if _, artifact := after.Annotations[annotation.ArtifactType]; artifact {
		return nil, nil
	}
	in := annotation.In(after.Annotations, after.DockerImageReference, after.Name)
	if before == nil {
		return []notify.Event{m.imported(after, in)}, nil
	}
	if all, err = m.turned(ctx, after, signatures.Changes(before, after), causesOf(before, after), after.ResourceVersion); err != nil {
		return nil, err
	}
	had := annotation.GoneFrom(before.Annotations, after.Name)
	for _, repository := range annotation.GoneFrom(after.Annotations, after.Name) {
		if slices.Contains(had, repository) {
			continue
		}
		all = append(all, m.gone(repository.WithDigest(after.Name), after.Name, after, id(notify.Gone, after.UID, repository.String(), after.ResourceVersion)))
	}
	return all, nil
}

// turned are the events of verdicts on an image that turned at a moment, with their causes.
func (m *maker) turned(ctx context.Context, image *imagev1.Image, changes []signatures.Change, of causes, moment string) (all []notify.Event, err error) {
	for _, c := range changes {
		place, namespace, _ := strings.Cut(c.Place, "#")
		ref, err := reference.Parse(place)
		if err != nil {
			continue // no policy covers it
		}
		whole := ref.String() + "@" + image.Name // with the tag, if the verdict is for one
		e := notify.Event{Kind: notify.Verdict, ID: id(notify.Verdict, image.UID, c.Place, moment), Time: m.now(), Subject: whole, In: []reference.Reference{ref.Bare()}, Data: notify.Data{
			Message: fmt.Sprintf("The verdict on %s turned from %s to %s", whole, c.Before, c.Verified), Reference: whole, Image: image.Name, Verified: c.Verified,
			VerifiedBefore: c.Before, Reason: c.Reason, Cause: of.cause(c), Policy: c.Policy, Namespace: namespace, Signers: c.Signers,
		}}
		if c.Verdict.Message != "" {
			e.Data.Message += ": " + c.Verdict.Message
		}
		n, complete, err := m.runs.PodsNaming(ctx, image, ref, namespace, c.Verified)
		if err != nil {
			return nil, err
		}
		e.Data.Pods, e.Data.PodsUnknown = &n, !complete
		all = append(all, e)
	}
	return all, nil
}

// causes has what causes of changed verdicts depend on beside the verdicts.
type causes struct {
	before, after map[string]string // the hashes of the policies that judged the image, by ID
	by            imageruns.By
}

// causesOf compares two states of an Image. A sweep, and nothing else, has an Image judged again
// without changing what verdicts depend on.
func causesOf(before, after *imagev1.Image) causes {
	of := causes{signatures.PoliciesOf(before), signatures.PoliciesOf(after), imageruns.BySweep}
	same := slices.EqualFunc(before.Signatures, after.Signatures, func(a, b imagev1.ImageSignature) bool { return a.Name == b.Name })
	for _, key := range []string{annotation.References, annotation.Gone, annotation.Repositories} {
		same = same && before.Annotations[key] == after.Annotations[key]
	}
	if !same {
		of.by = imageruns.ByWrite
	}
	return of
}

// cause returns why a verdict changed, in the words that ImageRuns use.
func (of causes) cause(c signatures.Change) string {
	record := func(v annotation.Verdict, hashes map[string]string) imageruns.RunVerdict {
		r := imageruns.RunVerdict{Verified: v.Verified, Reason: v.Reason, Signers: v.Signers, ExceptionUntil: v.Until}
		if v.Policy != "" {
			r.Policies = strings.Split(v.Policy, ",")
		}
		for _, id := range r.Policies {
			if hash, ok := hashes[id]; ok {
				r.PolicyVersions = append(r.PolicyVersions, hash)
			}
		}
		return r
	}
	before := record(c.Former, of.before)
	return imageruns.Cause(&before, record(c.Verdict, of.after), of.by)
}

// imported is the event of a new image.
func (m *maker) imported(image *imagev1.Image, in []reference.Reference) notify.Event {
	e := notify.Event{Kind: notify.Imported, ID: id(notify.Imported, image.UID), Time: image.CreationTimestamp.Time, In: in, Data: notify.Data{Image: image.Name}}
	for _, ref := range annotation.Known(image.Annotations) {
		e.Data.References = append(e.Data.References, ref.String())
	}
	e.Data.Reference = image.DockerImageReference
	if len(in) > 0 {
		e.Data.Reference = in[0].WithDigest(image.Name).String()
	}
	e.Subject = e.Data.Reference
	e.Data.Verified, e.Data.Signers, _ = signatures.Summary(image)
	e.Data.Message = fmt.Sprintf("Imported %s: %s", e.Subject, e.Data.Verified)
	return e
}

// gone is the event of a tag or digest that the registry no longer has.
func (m *maker) gone(ref reference.Reference, digest string, image *imagev1.Image, id string) notify.Event {
	e := notify.Event{Kind: notify.Gone, ID: id, Time: m.now(), Subject: ref.String(), In: []reference.Reference{ref.Bare()}, Data: notify.Data{Reference: ref.String(), Image: digest}}
	m.count(&e.Data, digest, image)
	e.Data.Message = fmt.Sprintf("%s is gone from its registry", ref)
	if *e.Data.Pods > 0 {
		e.Data.Message += fmt.Sprintf("; %s known to run %s", table.Clause(*e.Data.Pods, "pod", "are"), reference.ShortDigest(digest))
	}
	return e
}

// count sets how many pods run an image.
func (m *maker) count(d *notify.Data, digest string, image *imagev1.Image) {
	n, complete := m.runs.Pods(digest, image)
	d.Pods, d.PodsUnknown = &n, !complete
}

func (m *maker) ofTag(ctx context.Context, before, after *imagev1.ImageTag) (all []notify.Event, err error) {
	ref, ok := tags.Reference(after)
	now, known := tags.Now(after)
	was, had := tags.Now(before)
	if !ok || !known || had && now == was {
		return nil, nil
	}
	if now == "" && !had {
		return nil, nil // it has never led anywhere
	}
	if now == "" {
		return []notify.Event{m.gone(ref, was, nil, id(notify.Gone, after.UID, after.ResourceVersion))}, nil
	}
	e := notify.Event{Kind: notify.Moved, ID: id(notify.Moved, after.UID, after.ResourceVersion), Time: after.Status.Items[0].Created.Time, Subject: ref.String(), In: []reference.Reference{ref.Bare()}, Data: notify.Data{
		Message: fmt.Sprintf("%s leads to %s", ref, reference.ShortDigest(now)), Reference: ref.String(), Image: now, Before: was,
	}}
	if was != "" {
		e.Data.Message += ", and led to " + reference.ShortDigest(was)
	}
	if by := tags.Writers(after); len(by) > 0 {
		e.Data.By = by[0]
		e.Data.Message += ", by " + by[0]
	}
	all = append(all, e)
	how, err := m.runs.Overwritten(ctx, after)
	if err != nil {
		return nil, err
	}
	if how != nil {
		against := e
		against.Kind, against.ID = notify.Overwritten, id(notify.Overwritten, after.UID, after.ResourceVersion)
		against.Data.Message, against.Data.Before = how.Message, how.From
		all = append(all, against)
	}
	message, image, pods, err := m.runs.Drift(ctx, ref)
	if err == nil && image == now && pods > 0 {
		all = append(all, m.drift(after, ref, message, pods))
	}
	return all, err
}

// drift is the event of pods that run another image than a tag leads to. There is one for each move
// of the tag.
func (m *maker) drift(tag *imagev1.ImageTag, ref reference.Reference, message string, pods int) notify.Event {
	moved := tag.Status.Items[0]
	return notify.Event{Kind: notify.Drift, ID: id(notify.Drift, tag.UID, moved.Image, moved.Created.UTC().Format(time.RFC3339)), Time: m.now(), Subject: ref.String(), In: []reference.Reference{ref.Bare()}, Data: notify.Data{
		Message: message, Reference: ref.String(), Image: moved.Image, Pods: &pods,
	}}
}
