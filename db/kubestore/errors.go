package kubestore

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// The messages for a compacted revision. They are kube-apiserver's, on which clients and their
// tests depend.
const (
	expiredList  = "The resourceVersion for the provided list is too old."
	expiredWatch = "The resourceVersion for the provided watch is too old."
	expiredPage  = "The provided continue parameter is too old to display a consistent list result. " +
		"You can start a new list without the continue parameter, or use the continue token in this response to " +
		"retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - " +
		"objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
)

// interpret converts the engine's errors to API errors. A full or failing disk is 503 with what to
// do about it, a damaged file is 500 with the file's name, and a request that has ended is 504.
func (s *Store) interpret(err error) error {
	var unavailable *datafile.UnavailableError
	var corrupt *datafile.CorruptError
	var unknown *truth.UnknownError
	var large *truth.TooLargeError
	switch {
	case errors.As(err, &unknown):
		// an error after which clients do not retry automatically
		return apierrors.NewTimeoutError(unknown.Error(), 0)
	case errors.As(err, &large):
		return apierrors.NewRequestEntityTooLargeError(large.Error())
	case errors.As(err, &unavailable):
		e := apierrors.NewServiceUnavailable(unavailable.Error())
		e.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 5}
		return e
	case errors.Is(err, db.ErrClosed):
		return apierrors.NewServiceUnavailable("the server is shutting down")
	case errors.As(err, &corrupt):
		return apierrors.NewInternalError(corrupt)
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return ended(err)
	}
	return err
}

// ended converts the error of an ended context to an API error.
func ended(cause error) error {
	return endedError{apierrors.NewTimeoutError("the request ended before it was answered", 0), cause}
}

// endedError says that the client has gone or that the request's deadline has passed: 504, as in
// kube-apiserver. An API server logs other errors as its own faults.
type endedError struct {
	*apierrors.StatusError
	cause error
}

// Unwrap returns the context's error, for errors.Is.
func (e endedError) Unwrap() error { return e.cause }

// interpretList is interpret for a list at a given revision.
func (s *Store) interpretList(err error, rev int64, paging bool, continueKey, prefix string) error {
	switch {
	case errors.Is(err, db.ErrFutureRevision):
		return storage.NewTooLargeResourceVersionError(uint64(rev), uint64(s.db.Revision()), 0)
	case !errors.Is(err, db.ErrCompacted):
		return s.interpret(err)
	case !paging:
		return apierrors.NewResourceExpired(expiredList)
	}
	// Revision -1 in the token: continue at the newest revision.
	token, err := storage.EncodeContinue(continueKey, prefix, -1)
	if err != nil {
		return apierrors.NewResourceExpired(expiredList)
	}
	e := apierrors.NewResourceExpired(expiredPage)
	e.ErrStatus.ListMeta.Continue = token
	return e
}

// watchError converts the error that ends a watch to an API status.
func (s *Store) watchError(err error) *metav1.Status {
	var deleted *corruptDeletedError
	switch {
	case errors.Is(err, db.ErrCompacted):
		err = apierrors.NewResourceExpired(expiredWatch)
	case errors.As(err, &deleted):
		err = &apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    internalServerError,
			Reason:  metav1.StatusReasonStoreReadError,
			Message: deleted.Error(),
		}}
	default:
		err = s.interpret(err)
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	return &st
}
