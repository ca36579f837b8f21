package importer

import (
	"context"
	"errors"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tidewaiter/imageapi/manifest"
)

func (h Hint) isDelete() bool { return h.Action == HintDelete }

// do asks the registry what is true of what the hints name, and makes the Images
// agree. Doing it again changes nothing.
//
// Hints come late, twice and out of order, so only the registry knows where a tag
// points: it is asked first. Digests that were pushed and that the tag does not
// lead to, any more or yet, are imported as well.
func (w *Worker) do(ctx context.Context, j Job) error {
	hints := j.Hints
	repository, tag := Reference{Host: hints[0].Host, Repository: hints[0].Repository}, hints[0].Tag
	if tag != "" && signatureTag.MatchString(tag) {
		return w.resign(ctx, repository.withDigest(subjectOfTag(tag)))
	}
	pushed, deleted := digestsOf(hints, HintPush), slices.ContainsFunc(hints, Hint.isDelete)
	if j.Attempt == 1 {
		for _, digest := range pushed {
			w.pushReceived(ctx, digest, hints[0])
		}
	}

	var missing error // NotFound of something that was pushed
	if tag != "" {
		ref := repository
		ref.Tag = tag
		digest, err := w.importOne(ctx, ref, hints[0])
		switch {
		case ReasonOf(err) == NotFound && deleted:
			err = w.gone(ctx, ref, hints)
		case ReasonOf(err) == NotFound:
			missing, err = err, nil
		}
		if err != nil {
			return err
		}
		pushed = slices.DeleteFunc(pushed, func(d string) bool { return d == digest })
	}
	stored := false
	for _, digest := range pushed {
		switch _, err := w.importOne(ctx, repository.withDigest(digest), hints[0]); {
		case err == nil:
			stored = true
		case ReasonOf(err) == NotFound && (deleted || tag != ""):
			// Replaced or deleted since.
		case ReasonOf(err) == NotFound:
			missing = err
		default:
			return err
		}
	}
	if !deleted {
		if stored && j.Attempt >= doubtfulAttempts {
			return nil // the tag was deleted without a word; the Image is there
		}
		return missing // not visible yet, perhaps
	}
	for _, digest := range digestsOf(hints, HintDelete) {
		if err := w.gone(ctx, repository.withDigest(digest), hints); err != nil {
			return err
		}
	}
	if tag == "" && hints[0].Digest == "" {
		return w.goneRepository(ctx, repository)
	}
	return nil
}

// digestsOf are the digests in the hints of an action, each once.
func digestsOf(hints []Hint, action string) []string {
	var digests []string
	for _, h := range hints {
		if h.Action == action && h.Digest != "" && !slices.Contains(digests, h.Digest) {
			digests = append(digests, h.Digest)
		}
	}
	return digests
}

// importOne imports what ref leads to, be it an image or what belongs to one, and
// returns its digest if it is an image.
func (w *Worker) importOne(ctx context.Context, ref Reference, hint Hint) (digest string, err error) {
	result, err := w.Importer.Import(ctx, ref.String(), w.Images)
	if ReasonOf(err) == NotAnImage {
		return "", w.resignSubject(ctx, ref)
	}
	if err != nil {
		return "", err
	}
	root := result.Images[0]
	for _, i := range result.Images {
		if err := w.back(ctx, i.Image, ref, ref.withDigest(i.Image.Name)); err != nil {
			return "", err
		}
	}
	if hint.Digest == "" {
		w.pushReceived(ctx, result.Digest, hint) // only now it is known of what
	}
	message := "Imported " + ref.String()
	if root.Action == Unchanged {
		message = ref.String() + " had been imported before"
	}
	w.notify(ctx, Notice{Reason: NoticeImported, Image: result.Digest, Reference: hint.Key(), Message: message})
	// An image may say that it belongs to another.
	if m, err := manifest.Parse([]byte(root.Image.DockerImageManifest), root.Image.DockerImageManifestMediaType); err == nil && m.Subject != nil {
		return result.Digest, w.resign(ctx, ref.withDigest(m.Subject.Digest))
	}
	return result.Digest, nil
}

func (w *Worker) pushReceived(ctx context.Context, digest string, hint Hint) {
	if !hint.isDelete() {
		w.notify(ctx, Notice{Reason: NoticePushReceived, Image: digest, Reference: hint.Key(), Message: "The registry says that " + hint.Key() + " was pushed"})
	}
}

// resignSubject finds out which image the artifact belongs to, if any, and has
// its signatures looked for again.
func (w *Worker) resignSubject(ctx context.Context, ref Reference) error {
	s, err := w.Importer.session(ctx, ref)
	if err != nil {
		return describe(ref, err)
	}
	identifier := ref.Digest
	if identifier == "" {
		identifier = ref.Tag
	}
	m, err := s.manifest(ctx, identifier, ref.Digest)
	if err != nil {
		return describe(ref, err)
	}
	if m.Subject == nil {
		return nil // a chart, a policy, …: none of ours
	}
	return w.resign(ctx, ref.withDigest(m.Subject.Digest))
}

// resign looks for the signatures of an image again, as every import does. A
// signature of what is not in the registry is of no interest.
func (w *Worker) resign(ctx context.Context, subject Reference) error {
	result, err := w.Importer.Import(ctx, subject.String(), w.Images)
	var bad *ReferenceError
	switch reason := ReasonOf(err); {
	case reason == NotFound, reason == NotAnImage, errors.As(err, &bad): // sha512, for one
		return nil
	case err != nil:
		return err
	}
	if result.Images[0].Action != Unchanged {
		w.notify(ctx, Notice{Reason: NoticeImported, Image: result.Digest, Reference: subject.String(), Message: "Found signatures or attestations of " + subject.String()})
	}
	return nil
}

// subjectOfTag is the digest in a tag that signatureTag matches.
func subjectOfTag(tag string) string {
	algorithm, hex, _ := strings.Cut(tag, "-")
	hex, _, _ = strings.Cut(hex, ".")
	return algorithm + ":" + hex
}

// doubtfulAttempts is how often something is tried that will hardly change, but
// may: an image that is not visible yet, credentials that are being replaced.
const doubtfulAttempts = 6

// failure says what is to come of a job that failed.
func failure(err error, attempt int) JobFailure {
	f := JobFailure{Error: err.Error()}
	var e *Error
	switch {
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) || errors.Is(err, errPanic):
		f.Permanent = true
	case !errors.As(err, &e) || temporary(err): // the API's, or the network's: it gets better
	case e.Reason == InvalidImage || e.Reason == TooLarge:
		f.Permanent = true
	default:
		f.Permanent = attempt >= doubtfulAttempts
	}
	if e != nil {
		f.After = e.RetryAfter
	}
	return f
}

// temporary reports whether any error in the tree is: one child of an index may
// have failed for good and another for now.
func temporary(err error) bool {
	switch e := err.(type) {
	case *Error:
		return e.Temporary()
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), temporary)
	case interface{ Unwrap() error }:
		return temporary(e.Unwrap())
	}
	return false
}

func (w *Worker) notify(ctx context.Context, n Notice) {
	if w.Notifier != nil {
		w.Notifier.Notify(ctx, n)
	}
}

// notifyFailure tells of a failure on every Image that the hints name; a tag's
// alone is nobody's.
func (w *Worker) notifyFailure(ctx context.Context, j Job, f JobFailure) {
	images := map[string]bool{}
	for _, h := range j.Hints {
		images[h.Digest] = true
	}
	for image := range images {
		if image == "" && len(images) > 1 {
			continue
		}
		w.notify(ctx, Notice{Reason: NoticeImportFailed, Warning: true, Image: image, Reference: j.Hints[0].Key(), Message: f.Error})
	}
}
