package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/runner"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// doRunning imports an image that pods of a cluster use. It tries the pull secrets of one pod after
// the other, and then the server's own credentials. Users who create pods choose the pull secrets,
// so a pull secret counts only if the registry shows the image to it: the job ends with the answer
// to the server's own credentials. If a failure may be the registry's own, doRunning tries the
// server's credentials at once, and stops if they fail in the same way.
func (w *Worker) doRunning(ctx context.Context, cluster string, j *push.Job) error {
	ref := j.Events[0].Reference()
	var keychains []authn.Keychain
	var unread, away error
	if w.Pods != nil {
		keychains, unread, away = w.Pods.Keychains(ctx, cluster, ref)
	}
	own := w.Importer()
	try := func(im *importer.Importer) (settled bool, err error) {
		result, settled, err := w.importShown(ctx, im, ref)
		if err == nil {
			w.notifyFound(ctx, result, ref, fmt.Sprintf("Pods of cluster %s use %s", cluster, ref))
		}
		return settled || ctx.Err() != nil, err
	}
	var failed, borrowed error // of the server's own credentials, and of the first others
	for _, k := range keychains {
		settled, err := try(own.With(k))
		if settled {
			return err
		}
		borrowed = cmp.Or(borrowed, err)
		if !runner.Temporary(err) || failed != nil {
			continue
		}
		if settled, failed = try(own); settled {
			return failed
		}
		if runner.Temporary(failed) {
			return failed
		}
	}
	if failed == nil {
		var settled bool
		if settled, failed = try(own); settled || runner.Temporary(failed) {
			return failed
		}
	}
	if away != nil {
		return fmt.Errorf("reading the pull secrets of the pods that use %s: %w", ref, away)
	}
	// what is not wrapped does not decide
	if borrowed != nil && borrowed.Error() != failed.Error() {
		failed = fmt.Errorf("%w; with pull secrets: %v", failed, borrowed)
	}
	if unread != nil {
		failed = fmt.Errorf("%w; pull secrets were not used, because %v", failed, unread)
	}
	return failed
}

// importShown imports what the registry shows to im. It looks first: an image that is hidden from
// some credentials must not be recorded as gone. settled is false if other credentials may do more.
func (w *Worker) importShown(ctx context.Context, im *importer.Importer, ref reference.Reference) (result *importer.Result, settled bool, err error) {
	switch digest, err := im.Resolve(ctx, ref); {
	case err != nil:
		return nil, false, err
	case digest == "":
		return nil, false, &pull.Error{Reason: pull.NotFound, Host: ref.Host, Repository: ref.Repository, Reference: ref.String(), Message: "the registry does not have it, or denies it to the pods that use it"}
	}
	result, err = w.importPresent(ctx, im, ref, w.Images)
	return result, !isHidden(err), err
}

// checkRunning asks the registry whether it still has an image that pods run, and searches the
// image's signatures again. If the registry does not show the image to the server, checkRunning
// asks with the pull secrets of the pods. The image is gone if the registry shows it to none of the
// credentials that may pull it; credentials that the registry refuses do not count. checkRunning
// skips an image that is not stored, with errNotStored, because its import will ask. If the image
// is gone, the caller records that.
func (w *Worker) checkRunning(ctx context.Context, ref reference.Reference, clusters []string) (gone bool, err error) {
	if _, err := w.Images.Get(ctx, ref.Digest, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return false, errNotStored
	} else if err != nil {
		return false, err
	}
	im := w.Importer()
	result, own := w.importPresent(ctx, im, ref, w.Images)
	if own == nil || result != nil || !isHidden(own) {
		return false, own
	}
	var unknown error // why it may be there all the same
	absent := pull.ReasonOf(own) == pull.NotFound
	for _, cluster := range clusters {
		if w.Pods == nil {
			break
		}
		keychains, unread, err := w.Pods.Keychains(ctx, cluster, ref)
		if unread = cmp.Or(err, unread); unread != nil {
			unknown = fmt.Errorf("reading the pull secrets of the pods of cluster %s that use it: %w", cluster, unread)
		}
		for _, k := range keychains {
			result, err := w.importPresent(ctx, im.With(k), ref, w.Images)
			switch reason := pull.ReasonOf(err); {
			case err == nil || result != nil:
				return false, err
			case reason == pull.NotFound:
				absent = true
			case !isHidden(err) && reason != pull.Unexpected:
				unknown = err
			}
		}
	}
	if !absent {
		unknown = cmp.Or(unknown, own)
	}
	if unknown != nil {
		return false, unknown
	}
	return true, nil
}

// errNotStored ends the check of an image that is not stored.
var errNotStored = errors.New("the image is not stored")

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
