package queue

import (
	"cmp"
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// doRunning imports what pods of a cluster use, with the credentials of one pod after the other,
// and then with those of the importer alone. It goes on to the next credentials if the registry
// hides the image from these: a pod may name an image that its own credentials cannot read, and
// that must not keep out another pod's.
func (w *Worker) doRunning(ctx context.Context, cluster string, j *push.Job) error {
	ref := j.Events[0].Reference()
	var keychains []authn.Keychain
	var unread error
	if w.Pods != nil {
		var err error
		if keychains, unread, err = w.Pods.Keychains(ctx, cluster, ref); err != nil {
			return fmt.Errorf("reading the pull secrets of the pods that use %s: %w", ref, err)
		}
	}
	own, importers := w.Importer(), make([]*importer.Importer, 0, len(keychains)+1)
	for _, k := range keychains {
		importers = append(importers, own.With(k))
	}
	var failed error
	for _, im := range append(importers, own) {
		result, err := w.importShown(ctx, im, ref)
		if err == nil {
			w.notifyFound(ctx, result, ref, fmt.Sprintf("Pods of cluster %s use %s", cluster, ref))
			return nil
		}
		if failed == nil {
			failed = err // later failures are those of further guesses
		}
		if !isHidden(err) {
			return err
		}
	}
	if unread != nil {
		failed = fmt.Errorf("%w; pull secrets were not used, because %w", failed, unread)
	}
	return failed
}

// importShown imports what the registry shows to im. It looks first: an image that is hidden from
// some credentials must not be recorded as gone.
func (w *Worker) importShown(ctx context.Context, im *importer.Importer, ref reference.Reference) (*importer.Result, error) {
	switch digest, err := im.Resolve(ctx, ref); {
	case err != nil:
		return nil, err
	case digest == "":
		return nil, &pull.Error{Reason: pull.NotFound, Host: ref.Host, Repository: ref.Repository, Reference: ref.String(), Message: "the registry does not have it, or denies it to the pods that use it"}
	}
	return w.importPresent(ctx, im, ref, w.Images)
}

// checkRunning asks the registry whether it still has an image that pods run, and searches the
// image's signatures again. What it does not show to the server, it is asked for with the pull
// secrets of the pods: an image is gone if nobody who may pull it is shown it. An image that is not
// stored is left to its import.
func (w *Worker) checkRunning(ctx context.Context, ref reference.Reference, clusters []string) error {
	if _, err := w.Images.Get(ctx, ref.Digest, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	im := w.Importer()
	shown, own := w.shows(ctx, im, ref)
	if shown {
		return own
	}
	var unknown error // why it may be there all the same
	secrets := false
	for _, cluster := range clusters {
		if w.Pods == nil {
			break
		}
		keychains, unread, err := w.Pods.Keychains(ctx, cluster, ref)
		if unread = cmp.Or(err, unread); unread != nil {
			unknown = fmt.Errorf("reading the pull secrets of the pods of cluster %s that use it: %w", cluster, unread)
		}
		for _, k := range keychains {
			shown, err := w.shows(ctx, im.With(k), ref)
			if shown {
				return err
			}
			if secrets = true; pull.ReasonOf(err) != pull.NotFound {
				unknown = err
			}
		}
	}
	if !secrets && pull.ReasonOf(own) != pull.NotFound {
		unknown = cmp.Or(unknown, own)
	}
	if unknown != nil {
		return unknown
	}
	return w.markGone(ctx, ref.Digest, ref)
}

// shows reports whether the registry shows an image to im, or may do so later: err is then why not
// everything could be read. Otherwise err is why the registry hides it.
func (w *Worker) shows(ctx context.Context, im *importer.Importer, ref reference.Reference) (shown bool, err error) {
	result, err := w.importPresent(ctx, im, ref, w.Images)
	return err == nil || result != nil || !isHidden(err), err
}

// isHidden reports whether other credentials may show what these do not.
func isHidden(err error) bool {
	switch pull.ReasonOf(err) {
	case pull.Unauthorized, pull.Denied, pull.Misconfigured, pull.NotFound:
		return true
	}
	return false
}

// notifyFound reports what was imported without a push, if it is new.
func (w *Worker) notifyFound(ctx context.Context, result *importer.Result, ref reference.Reference, message string) (isNew bool) {
	for _, i := range result.Images {
		if i.Action != importer.Unchanged {
			w.notify(ctx, Notice{Reason: NoticeImported, Image: result.Digest, Reference: ref.String(), Message: message})
			return true
		}
	}
	return false
}
