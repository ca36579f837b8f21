package kubestore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/tidewaiter/tidewaiter/db"
)

// internalServerError is the HTTP status for an object that cannot be read.
const internalServerError = 500

// This file follows KEP-3926 (handling undecryptable resources): with the feature
// AllowUnsafeMalformedObjectDeletion on, errors name an object that cannot be read, and a user with
// the right to unsafe deletions can delete it.

// maxCorrupt bounds the unreadable objects one list reports.
const maxCorrupt = 100

func unsafeDeletionEnabled() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
}

type corruptKind string

const (
	untransformable corruptKind = "data from the storage is not transformable"
	undecodable     corruptKind = "object not decodable"
	damaged         corruptKind = "data in the storage is damaged"
)

// corruptError marks an error that one object's stored bytes cause, not the request or the
// database.
type corruptError struct {
	kind corruptKind
	rev  int64
	err  error
}

func (e *corruptError) Error() string {
	message := fmt.Sprintf("%s revision=%d: %v", e.kind, e.rev, e.err)
	if d, ok := errors.AsType[*db.DamagedError](e.err); ok && (!d.Copy || d.InStore) {
		// a plain deletion would read it, too
		message += "; to delete it, set ignoreStoreReadErrorWithClusterBreakingPotential=true"
	}
	return message
}
func (e *corruptError) Unwrap() error { return e.err }

// markUndecodable marks the error of a codec, when the feature is on.
func markUndecodable(err error, rev int64) error {
	if !unsafeDeletionEnabled() {
		return err
	}
	return &corruptError{kind: undecodable, rev: rev, err: err}
}

// markDamaged marks an error of the database about one object's bytes.
func markDamaged(err error, rev int64) error {
	var d *db.DamagedError
	if !unsafeDeletionEnabled() || !errors.As(err, &d) {
		return err
	}
	return &corruptError{kind: damaged, rev: rev, err: err}
}

// markingTransformer marks errors of reading. It wraps the configured transformer when the feature
// is on.
type markingTransformer struct{ value.Transformer }

// TransformFromStorage implements value.Transformer.
func (m markingTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	out, stale, err := m.Transformer.TransformFromStorage(ctx, data, dataCtx)
	if err != nil {
		err = &corruptError{kind: untransformable, err: err}
	}
	return out, stale, err
}

// corruptDeletedError ends a watch that must send a deletion and cannot read the deleted object.
type corruptDeletedError struct{ err error }

func (e *corruptDeletedError) Error() string {
	return fmt.Sprintf("saw a DELETED event, but object data is corrupt - %v", e.err)
}
func (e *corruptDeletedError) Unwrap() error { return e.err }

var errTooMany = errors.New("too many errors, the list is truncated")

// listErrors collects the unreadable objects of a list. With the feature off
// the first error of any kind ends the list.
type listErrors struct {
	corrupt []*storage.StorageError
	abort   error
}

// add returns true when the list must end.
func (l *listErrors) add(key string, err error) bool {
	var c *corruptError
	switch {
	case !unsafeDeletionEnabled() || !errors.As(err, &c):
		l.abort = err
	default:
		l.corrupt = append(l.corrupt, storage.NewCorruptObjError(key, c))
		if len(l.corrupt) >= maxCorrupt {
			l.abort = errTooMany
		}
	}
	return l.abort != nil
}

// err returns nil when nothing was added.
func (l *listErrors) err() error {
	if len(l.corrupt) == 0 {
		return l.abort
	}
	return &corruptListError{objects: l.corrupt, abort: l.abort}
}

// corruptListError is the result of a list with unreadable objects.
type corruptListError struct {
	objects []*storage.StorageError
	abort   error
	// next continues a list in pages after the last of objects.
	next string
}

func (e *corruptListError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "unable to transform or decode %d objects: {\n", len(e.objects))
	for _, err := range e.objects {
		fmt.Fprintf(&b, "\t%s\n", err)
	}
	b.WriteString("}")
	if e.abort != nil {
		fmt.Fprintf(&b, ", aborted: %v", e.abort)
	}
	return b.String()
}

// status names each unreadable object in the causes of an API status.
func (e *corruptListError) status(gr schema.GroupResource) *apierrors.StatusError {
	var causes []metav1.StatusCause
	for _, err := range e.objects {
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Field: err.Key, Message: err.Error()})
	}
	if e.abort != nil {
		cause := metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: e.abort.Error()}
		if errors.Is(e.abort, errTooMany) {
			cause.Type = metav1.CauseTypeTooMany
		}
		causes = append(causes, cause)
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %v", gr, e.objects[0])
	if more := len(e.objects) - 1; more > 0 {
		message = fmt.Sprintf("%s (and %d more)", message, more)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    internalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Details: &metav1.StatusDetails{Group: gr.Group, Kind: gr.Resource, Name: "list", Causes: causes},
		Message: message,
		// A continue token, as after a page that has expired. Kubernetes has no other way past such an
		// object.
		ListMeta: metav1.ListMeta{Continue: e.next},
	}}
}

// corruptReporter is a Store whose reads report unreadable objects in the form that the registry's
// unsafe deletion expects.
type corruptReporter struct{ *Store }

// Get implements storage.Interface.
func (s corruptReporter) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	err := s.Store.Get(ctx, key, opts, out)
	if c, ok := errors.AsType[*corruptError](err); ok {
		return storage.NewCorruptObjError(key, c)
	}
	return err
}

func asCorrupt(err error) (c *corruptError, ok bool) {
	ok = errors.As(err, &c)
	return c, ok
}
