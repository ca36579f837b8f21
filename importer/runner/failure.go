package runner

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// DoubtfulAttempts is how often a job is tried whose failure will hardly go away, but
// may: an image that is not visible yet, credentials that are being replaced.
const DoubtfulAttempts = 6

// failure decides what becomes of a failed job.
func failure(err error, attempt int) job.Failure {
	f := job.Failure{Error: err.Error(), Unread: unread(err)}
	var e *pull.Error
	var bad *reference.Error // a name from a registry that we cannot ask for
	switch {
	case errors.As(err, &bad) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) || errors.Is(err, errPanic):
		f.Permanent = true
	case !errors.As(err, &e) || Temporary(err):
		// an error of the API or of the network, which goes away
	case e.Reason == pull.InvalidImage || e.Reason == pull.TooLarge || e.Reason == pull.OverBudget:
		f.Permanent = true
	default:
		f.Permanent = attempt >= DoubtfulAttempts
	}
	if e != nil {
		f.After = min(e.RetryAfter, pull.MaxPause)
	}
	return f
}

// unread reports whether an import failed for no other reason than that the registry, or the store
// of Images, could not be read. The error tree has no error about content
// that the registry has, lacks or refuses: users who may push, or create pods, can cause those.
func unread(err error) bool {
	var bad *reference.Error
	if errors.As(err, &bad) || errors.Is(err, errPanic) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err) {
		return false
	}
	switch e := err.(type) {
	case *pull.Error:
		return !e.Content()
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !unread(err) })
	case interface{ Unwrap() error }:
		return e.Unwrap() == nil || unread(e.Unwrap())
	}
	return true
}

// Temporary reports whether an error in the tree is temporary: one child of an index may
// have failed for good and another for now.
func Temporary(err error) bool {
	switch e := err.(type) {
	case *pull.Error:
		return e.Temporary()
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(e.Unwrap(), Temporary)
	case interface{ Unwrap() error }:
		return Temporary(e.Unwrap())
	}
	return false
}
