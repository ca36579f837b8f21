package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// streamImports imports for imagestreamimports, with the importer of pushes and its
// bounds.
type streamImports struct {
	importer func() *importer.Importer
	images   func() (*imageclient.Client, error)
}

func (s *Server) streamImports() *streamImports {
	return &streamImports{s.pushes.importer.Load, sync.OnceValues(func() (*imageclient.Client, error) { return imageclient.New(s.Web.ClientConfig()) })}
}

// Import is part of imageapi.Importer.
func (i *streamImports) Import(ctx context.Context, ref reference.Reference, dryRun bool) ([]*imagev1.Image, error) {
	client, err := i.images()
	if err != nil {
		return nil, err
	}
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		ctx = importer.WithCause(ctx, "import by "+user.GetName())
	}
	ctx = importer.WithWhole(ctx)
	defer limits.Pause(ctx)()
	var images importer.Images = client
	if dryRun {
		images = &importer.DryRun{Images: client}
	}
	result, err := i.importer().Import(ctx, ref, images)
	switch {
	case importer.Unsearched(err): // the image shows it, too, and the next import tries again
		warning.AddWarning(ctx, "", err.Error())
	case err != nil:
		return nil, importStatus(err)
	case result.Again != nil:
		warning.AddWarning(ctx, "", result.Again.Error())
	}
	out := make([]*imagev1.Image, 0, len(result.Images))
	for _, image := range result.Images {
		out = append(out, image.Image)
	}
	return out, nil
}

// Tags is part of imageapi.Importer.
func (i *streamImports) Tags(ctx context.Context, repository reference.Reference, most int) (listed, unlisted []string, err error) {
	client, err := i.images()
	if err != nil {
		return nil, nil, err
	}
	defer limits.Pause(ctx)()
	listed, warnings, err := i.importer().Tags(ctx, repository)
	for _, text := range warnings {
		warning.AddWarning(ctx, "", text)
	}
	if err != nil {
		return nil, nil, importStatus(err)
	}
	names := sets.New(listed...)
	err = importer.EachUnlisted(ctx, client, repository.Bare(), func(tag reference.Reference) bool { return names.Has(tag.Tag) }, func(tag reference.Reference, _ string) error {
		if len(unlisted) == most {
			return errEnough
		}
		unlisted = append(unlisted, tag.Tag)
		return nil
	})
	if errors.Is(err, errEnough) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s no longer lists more than %d known tags; a sweep asks for them all", repository.Name(), most))
		err = nil
	}
	return listed, unlisted, err
}

// errEnough ends the reading of a list early.
var errEnough = errors.New("no longer needed")

// Imported is part of queue.Streams.
func (t followedTags) Imported(ctx context.Context, ref reference.Reference, failed error) error {
	return t.TagImports.Imported(ctx, ref, importStatus(failed))
}

// importStatus is the error of an import in the words of the Kubernetes API, as
// OpenShift's importer reports it.
func importStatus(err error) error {
	var failure *pull.Error
	if !errors.As(err, &failure) {
		return err
	}
	status := metav1.Status{Status: metav1.StatusFailure, Message: failure.Error(), Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError}
	switch failure.Reason {
	case pull.NotFound:
		status.Code, status.Reason = http.StatusNotFound, metav1.StatusReasonNotFound
	case pull.Unauthorized:
		status.Code, status.Reason = http.StatusUnauthorized, metav1.StatusReasonUnauthorized
	case pull.Denied:
		status.Code, status.Reason = http.StatusForbidden, metav1.StatusReasonForbidden
	case pull.RateLimited:
		status.Code, status.Reason = http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(failure.RetryAfter / time.Second)}
	case pull.NotAnImage, pull.InvalidImage, pull.Incomplete, pull.TooLarge, pull.DigestMismatch:
		status.Code, status.Reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
	case pull.Timeout, pull.Canceled:
		status.Code, status.Reason = http.StatusGatewayTimeout, metav1.StatusReasonTimeout
	}
	return &apierrors.StatusError{ErrStatus: status}
}
