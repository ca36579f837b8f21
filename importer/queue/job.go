package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func isDeletion(e push.Event) bool { return e.Action == push.Deleted }

// do asks the registry about the references of a job's events, and makes the Images agree with its
// answers. It is idempotent.
//
// Events come late, twice and out of order, so only the registry knows where a tag leads. They also
// come early: distribution reports a push before it has moved the tag. So do imports a push by its
// digest, and then reads the tag until it leads there, or until Options.Settle is over.
func (w *Worker) do(ctx context.Context, j *push.Job) error {
	switch j.Source.Kind {
	case push.Cluster:
		return w.doRunning(ctx, j.Source.Name, j)
	case push.Streams:
		return w.doFollowed(ctx, j)
	}
	for i := range j.Events {
		j.Events[i].Source = j.Source // which is not stored with each
	}
	first := j.Events[0]
	repository := first.Reference().Bare()
	tag := repository.WithTag(first.Tag)
	pushed, deleted := digestsOf(j.Events, push.Pushed), digestsOf(j.Events, push.Deleted)
	if !slices.ContainsFunc(j.Events, isDeletion) {
		ctx = importer.Pushed(ctx, pushed)
	}
	if subject, ok := importer.SubjectOfTag(first.Tag); ok {
		expected := func(digest string) bool { return len(pushed) == 0 || slices.Contains(pushed, digest) }
		if !slices.ContainsFunc(j.Events, func(e push.Event) bool { return !isDeletion(e) }) {
			expected = func(digest string) bool { return digest == "" }
		}
		if _, err := w.settle(ctx, tag, j.Latest, expected); err != nil {
			return err
		}
		return w.searchSignatures(ctx, repository.WithDigest(subject))
	}
	if j.Attempts == 1 {
		for _, digest := range pushed {
			w.pushReceived(ctx, digest, first, actors(j.Events, digest))
		}
	}
	switch {
	case first.Tag == "" && first.Digest == "":
		return w.goneRepository(ctx, repository, &askedOf{references: map[reference.Reference]bool{}})
	case first.Tag == "":
		return w.doDigest(ctx, repository.WithDigest(first.Digest), j)
	}
	unsearched := w.doTag(ctx, tag, pushed, j)
	if unsearched != nil && !importer.Unsearched(unsearched) {
		return unsearched
	}
	for _, digest := range deleted {
		if _, err := w.gone(ctx, repository.WithDigest(digest), nil, j.Latest); err != nil {
			return err
		}
	}
	return unsearched
}

// ended returns the error with which a failed job ends: err, or [runner.ErrGone] if the pushed
// manifest has been deleted since. It checks that after a few attempts, and only if a registry
// reported the push. An index is not gone if the registry has it and lacks its images.
func (w *Worker) ended(ctx context.Context, j *push.Job, err error) error {
	if j.Source.Kind == push.Cluster || j.Source.Kind == push.Streams || pull.ReasonOf(err) != pull.NotFound || j.Attempts < runner.DoubtfulAttempts {
		return err
	}
	first := j.Events[0]
	ref, pushed := first.Reference(), digestsOf(j.Events, push.Pushed)
	if ref.Tag != "" {
		ref.Digest = ""
	}
	for _, digest := range pushed {
		if now, lookErr := w.Importer().Resolve(ctx, ref.WithDigest(digest)); lookErr != nil || now != "" {
			return err
		}
	}
	if gone, lookErr := w.gone(ctx, ref, pushed, j.Latest); lookErr != nil || !gone {
		return err
	}
	if w.OfScript(j.Source) {
		return err
	}
	for _, digest := range append(pushed, "")[:max(1, len(pushed))] {
		w.notify(ctx, Notice{Reason: NoticeGoneFromRegistry, Image: digest, Reference: first.Key(), Message: first.Key() + " was pushed, but the registry no longer had it when it was to be imported"})
	}
	return runner.ErrGone
}

// doDigest handles the events about one digest.
func (w *Worker) doDigest(ctx context.Context, ref reference.Reference, j *push.Job) error {
	if slices.ContainsFunc(j.Events, isDeletion) {
		switch gone, err := w.gone(ctx, ref, nil, j.Latest); {
		case err != nil:
			return err
		case gone:
			return w.searchSigned(ctx, ref)
		}
		// It was deleted and pushed again, or the event was wrong.
	}
	_, err := w.importOne(ctx, ref, j.Events[0])
	return err
}

// doTag handles the events about one tag. pushed are the digests to which it leads according to the
// events. If a search for signatures fails, doTag does the rest and then returns the error.
func (w *Worker) doTag(ctx context.Context, tag reference.Reference, pushed []string, j *push.Job) error {
	var unsearched error
	importOne := func(ref reference.Reference) (string, error) {
		digest, err := w.importOne(ctx, ref, j.Events[0])
		if importer.Unsearched(err) {
			unsearched, err = err, nil
		}
		return digest, err
	}
	isDeleted := slices.ContainsFunc(j.Events, isDeletion)
	if isDeleted && !slices.ContainsFunc(j.Events, func(e push.Event) bool { return !isDeletion(e) }) {
		if gone, err := w.gone(ctx, tag, digestsOf(j.Events, push.Deleted), j.Latest); err != nil || gone {
			return err
		}
	}
	now, err := importOne(tag)
	missing := err
	if err != nil && pull.ReasonOf(err) != pull.NotFound {
		return err
	}
	stored := false
	pushed = slices.DeleteFunc(slices.Clone(pushed), func(digest string) bool { return w.isContent(ctx, now, digest) })
	for _, digest := range pushed {
		if digest == now {
			continue
		}
		switch _, err := importOne(tag.WithDigest(digest)); {
		case err == nil:
			stored = true
		case pull.ReasonOf(err) != pull.NotFound: // else it was replaced or deleted since
			return err
		}
	}
	if len(pushed) > 0 && !slices.Contains(pushed, now) && !isDeleted {
		later, err := w.awaitTag(ctx, tag, pushed, j.Latest)
		if err != nil {
			return err
		}
		if later != "" && later != now {
			_, missing = importOne(tag)
		}
	}
	switch {
	case missing == nil:
		return unsearched
	case isDeleted:
		if _, err := w.gone(ctx, tag, digestsOf(j.Events, push.Deleted), j.Latest); err != nil {
			return err
		}
		return unsearched
	case stored && j.Attempts >= runner.DoubtfulAttempts:
		return unsearched // the tag was deleted without an event; the Image is there
	}
	return missing
}

// isContent reports whether a digest is another digest of the stored Image, by an
// algorithm that the registry does not use to name it.
func (w *Worker) isContent(ctx context.Context, image, digest string) bool {
	if by, _, _ := strings.Cut(digest, ":"); image == "" || strings.HasPrefix(image, by+":") {
		return false
	}
	stored, err := w.Images.Get(ctx, image, metav1.GetOptions{})
	return err == nil && stored.DockerImageManifest != "" && manifest.VerifyDigest([]byte(stored.DockerImageManifest), digest) == nil
}

// awaitTag waits until a tag leads to one of pushed, or long enough, and returns the
// digest that it leads to.
func (w *Worker) awaitTag(ctx context.Context, tag reference.Reference, pushed []string, then time.Time) (string, error) {
	return w.settle(ctx, tag, then, func(digest string) bool { return len(pushed) == 0 || slices.Contains(pushed, digest) })
}

// settle resolves a tag or digest again and again until ok accepts the digest, or until
// Options.Settle after the event's time then is over. It returns the last digest, or "" for none.
func (w *Worker) settle(ctx context.Context, ref reference.Reference, then time.Time, ok func(digest string) bool) (string, error) {
	for delay := w.Settle / 32; ; delay *= 2 {
		digest, err := w.Importer().Resolve(ctx, ref)
		isEarly := pull.IsHidden(err) // perhaps: the repository may be about to be made
		if err != nil && !isEarly || err == nil && ok(digest) || w.Clock.Since(then)+delay > w.Settle {
			return digest, err
		}
		select {
		case <-w.Clock.After(delay):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// digestsOf returns the digests in the events of an action, each once.
func digestsOf(events []push.Event, action push.Action) []string {
	var digests []string
	for _, e := range events {
		if e.Action == action && e.Digest != "" && !slices.Contains(digests, e.Digest) {
			digests = append(digests, e.Digest)
		}
	}
	return digests
}

// importOne imports what ref leads to, an image or an artifact that belongs to one, and
// returns its digest, also with an error for which [importer.Unsearched] holds.
func (w *Worker) importOne(ctx context.Context, ref reference.Reference, event push.Event) (digest string, err error) {
	result, err := w.importPresent(ctx, w.Importer(), ref, w.Images)
	if pull.ReasonOf(err) == pull.NotAnImage {
		return w.searchSubject(ctx, ref)
	}
	if result == nil {
		return "", err
	}
	root := result.Images[0]
	if err != nil && root.Action == importer.Unchanged {
		return result.Digest, err // the notice was sent when it was stored
	}
	if event.Digest == "" {
		w.pushReceived(ctx, result.Digest, event, event.Actor) // only now the pushed image is known
	}
	message := "Imported " + ref.String()
	if root.Action == importer.Unchanged {
		message = ref.String() + " had been imported before"
	}
	w.notify(ctx, Notice{Reason: NoticeImported, Image: result.Digest, Reference: event.Key(), Message: message})
	if err != nil {
		return result.Digest, err
	}
	// An image may name another as its subject.
	if m, err := manifest.Parse([]byte(root.Image.DockerImageManifest), root.Image.DockerImageManifestMediaType); err == nil && m.Subject != nil {
		return result.Digest, w.searchSignatures(ctx, ref.WithDigest(m.Subject.Digest))
	}
	return result.Digest, nil
}

func (w *Worker) pushReceived(ctx context.Context, digest string, event push.Event, by string) {
	if by != "" {
		by = " by " + by
	}
	switch {
	case event.Source == push.OfPeople:
		w.notify(ctx, Notice{Reason: NoticeImportAsked, Image: digest, Reference: event.Key(), Message: "The import of " + event.Key() + " was asked for" + by})
	case !isDeletion(event):
		w.notify(ctx, Notice{Reason: NoticePushReceived, Image: digest, Reference: event.Key(), Message: "The registry says that " + event.Key() + " was pushed" + by})
	}
}

// searchSubject finds the image that an artifact belongs to, if any, and has its
// signatures searched again. It returns the artifact's digest.
func (w *Worker) searchSubject(ctx context.Context, ref reference.Reference) (digest string, err error) {
	m, err := w.Importer().Manifest(ctx, ref)
	if err != nil {
		return "", err
	}
	if m.Subject == nil {
		return m.Digest, nil // a chart, a policy, …: of no interest
	}
	return m.Digest, w.searchSignatures(ctx, ref.WithDigest(m.Subject.Digest))
}

// searchSignatures searches the signatures of an image again, as every import does. A
// signature of an image that is not in the registry is of no interest.
func (w *Worker) searchSignatures(ctx context.Context, subject reference.Reference) error {
	im := w.Importer() // the one that forgets searches
	im.ForgetSignatures(subject)
	result, err := im.Import(ctx, subject, w.Images)
	var bad *reference.Error
	switch reason := pull.ReasonOf(err); {
	case reason == pull.NotFound, reason == pull.Incomplete, reason == pull.NotAnImage, errors.As(err, &bad):
		return nil
	case err != nil:
		return err
	}
	if result.Images[0].Action != importer.Unchanged {
		w.notify(ctx, Notice{Reason: NoticeImported, Image: result.Digest, Reference: subject.String(), Message: "Found signatures or attestations of " + subject.String()})
	}
	return nil
}

// notifyFailure reports a failure on every Image that the events name. A failure of a tag
// alone has no Image.
func (w *Worker) notifyFailure(ctx context.Context, j *push.Job, f job.Failure) {
	images := map[string]bool{}
	for _, e := range j.Events {
		images[e.Digest] = true
	}
	for image := range images {
		if image == "" && len(images) > 1 {
			continue
		}
		w.notify(ctx, Notice{Reason: NoticeImportFailed, Warning: true, Image: image, Reference: j.Key, Message: f.Error})
	}
}
