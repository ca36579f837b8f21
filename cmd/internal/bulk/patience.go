package bulk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// MaxAway is how long an import waits for an API server that has answered before and no longer
// does.
const MaxAway = 5 * time.Minute

// APIRetry makes an import wait for its API server. It does not wait for a server that has never
// answered.
type APIRetry struct {
	Clock clock.Clock
	// Print prints the message that the import waits for the server.
	Print func(string)

	mu         sync.Mutex
	answered   bool
	lastNotice time.Time // when the last message about this was printed
}

// Images returns images that wait while their API server is away. They keep tags if images does.
func (p *APIRetry) Images(images importer.Images) importer.Images {
	patient := retriedImages{images, p}
	if tagged, ok := images.(importer.Tagged); ok {
		return retriedTagged{patient, tagged}
	}
	return patient
}

// do calls f again, with pauses, while the server is away. A failed f may have had its effect;
// repeating it does an import no harm.
func (p *APIRetry) do(ctx context.Context, f func() error) error {
	began := p.Clock.Now()
	for pause := time.Second; ; pause = min(2*pause, 15*time.Second) {
		err := f()
		if ctx.Err() != nil || !p.Waits(err, began) {
			return err
		}
		select {
		case <-p.Clock.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// Waits reports whether a call that first began at began should be tried again. If so, it prints a
// message, at most once in MaxAway.
func (p *APIRetry) Waits(err error, began time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.Clock.Now()
	switch {
	case !IsAway(err):
		p.answered = true
		return false
	case !p.answered || now.Sub(began) >= MaxAway:
		return false
	case p.lastNotice.IsZero() || now.Sub(p.lastNotice) >= MaxAway:
		p.lastNotice = now
		p.Print(fmt.Sprintf("the API server does not answer; the import waits for it, up to %s: %v", MaxAway, err))
	}
	return true
}

// IsAway reports whether an error comes from a server that is stopped, starting, overloaded or
// silent, or from a proxy before it. The caller has not given up.
func IsAway(err error) bool {
	for _, gone := range []error{syscall.EPIPE, syscall.ECONNABORTED, syscall.EHOSTUNREACH, syscall.ENETUNREACH, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		switch answer.Status().Code {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return apierrors.IsServerTimeout(err)
	}
	return utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		utilnet.IsTimeout(err) || utilnet.IsProbableEOF(err)
}

type retriedImages struct {
	importer.Images
	retry *APIRetry
}

// Get implements importer.Images.
func (i retriedImages) Get(ctx context.Context, name string, o metav1.GetOptions) (image *imagev1.Image, err error) {
	err = i.retry.do(ctx, func() error { image, err = i.Images.Get(ctx, name, o); return err })
	return image, err
}

// Create implements importer.Images.
func (i retriedImages) Create(ctx context.Context, in *imagev1.Image, o metav1.CreateOptions) (image *imagev1.Image, err error) {
	err = i.retry.do(ctx, func() error { image, err = i.Images.Create(ctx, in, o); return err })
	return image, err
}

// Update implements importer.Images.
func (i retriedImages) Update(ctx context.Context, in *imagev1.Image, o metav1.UpdateOptions) (image *imagev1.Image, err error) {
	err = i.retry.do(ctx, func() error { image, err = i.Images.Update(ctx, in, o); return err })
	return image, err
}

// retriedTagged is retriedImages for an API that keeps tags.
type retriedTagged struct {
	retriedImages
	tagged importer.Tagged
}

var _ importer.Tagged = retriedTagged{}

// Record implements importer.Recorder.
func (i retriedTagged) Record(ctx context.Context, item *record.Item) (result *record.Result, err error) {
	recorder, ok := i.tagged.(importer.Recorder)
	if !ok {
		return nil, record.ErrUnsupported
	}
	if slot, ok := ctx.Value(slotKey{}).(*slot); ok {
		defer slot.leave(item)()
	}
	err = i.retry.do(ctx, func() error { result, err = recorder.Record(ctx, item); return err })
	return result, err
}

// List implements importer.Tagged.
func (i retriedTagged) List(ctx context.Context, o metav1.ListOptions) (list *imagev1.ImageList, err error) {
	err = i.retry.do(ctx, func() error { list, err = i.tagged.List(ctx, o); return err })
	return list, err
}

// GetTag implements importer.Tagged.
func (i retriedTagged) GetTag(ctx context.Context, name string, o metav1.GetOptions) (tag *imagev1.ImageTag, err error) {
	err = i.retry.do(ctx, func() error { tag, err = i.tagged.GetTag(ctx, name, o); return err })
	return tag, err
}

// UpdateTag implements importer.Tagged.
func (i retriedTagged) UpdateTag(ctx context.Context, in *imagev1.ImageTag, o metav1.UpdateOptions) (tag *imagev1.ImageTag, err error) {
	err = i.retry.do(ctx, func() error { tag, err = i.tagged.UpdateTag(ctx, in, o); return err })
	return tag, err
}

// ListTags implements importer.Tagged.
func (i retriedTagged) ListTags(ctx context.Context, o metav1.ListOptions) (list *imagev1.ImageTagList, err error) {
	err = i.retry.do(ctx, func() error { list, err = i.tagged.ListTags(ctx, o); return err })
	return list, err
}

// ConfirmTags implements importer.Confirmer. It does not wait for the server: if it fails, only the
// times of the last checks stay older.
func (i retriedTagged) ConfirmTags(ctx context.Context, checks []tags.Check) error {
	if c, ok := i.tagged.(importer.Confirmer); ok {
		return c.ConfirmTags(ctx, checks)
	}
	return nil
}
