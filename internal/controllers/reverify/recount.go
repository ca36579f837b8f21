package reverify

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/signatures"
)

const (
	// settled is the pause after the last change of an Image before changed Images are counted, so
	// that counting does not slow an import.
	settled = time.Second
	// recountShare is the fraction of time that counting may take while Images keep changing.
	recountShare = 0.1
	// maxUncounted is the longest time that a change waits to be counted while Images keep changing.
	maxUncounted = 5 * time.Minute
	// maxPending bounds the changed Images that wait to be counted. If there are more, a sweep
	// counts all Images.
	maxPending = 10_000
	// firstCost is the assumed time to count an Image until it has been measured.
	firstCost = time.Millisecond
)

// Changes reports changes of Images, by any writer; kubestore.Changes does.
type Changes interface {
	// Since calls visit with each change since the previous call. lost is true if it may have missed
	// changes.
	Since(ctx context.Context, visit func(namespace, name string, rev int64)) (lost bool, err error)
	// Ready is signalled when Since may have changes to report.
	Ready() <-chan struct{}
}

// pending are the Images that have changed since they were counted. Only the tasks of Run use it,
// except own.
type pending struct {
	names map[string]struct{}
	// own maps each Image that the sweep wrote and counted to the revision that it wrote.
	// Sweeper.mu guards it.
	own   map[string]int64
	lost  bool          // other Images may have changed, too
	since time.Time     // when the oldest uncounted change was seen
	noted time.Time     // when changes were last collected
	cost  time.Duration // time to count one Image
}

// uncounted reports whether any change still has to be counted.
func (p *pending) uncounted() bool { return p.lost || len(p.names) > 0 }

// forget drops all pending changes: they are counted, or the sweep that begins now will count them.
func (p *pending) forget() { p.names, p.lost, p.since = map[string]struct{}{}, false, time.Time{} }

// wrote records that the sweep has written an Image, which it counts itself. The caller holds mu.
func (s *Sweeper) wrote(image *imagev1.Image) {
	if rev, err := strconv.ParseInt(image.ResourceVersion, 10, 64); err == nil && s.changes != nil {
		s.pending.own[image.Name] = rev
	}
}

// note collects the changes since its last call and reports whether there were any. It ignores the
// sweep's own writes, because the sweep counts those itself and may write more than maxPending.
func (s *Sweeper) note(ctx context.Context) (changed bool) {
	if s.changes == nil {
		return false
	}
	p := &s.pending
	s.mu.Lock()
	defer s.mu.Unlock()
	lost, err := s.changes.Since(ctx, func(_, name string, rev int64) {
		if p.own[name] == rev {
			delete(p.own, name)
			return
		}
		changed = true
		if _, known := p.names[name]; !known && len(p.names) >= maxPending {
			p.lost = true
			return
		}
		p.names[name] = struct{}{}
	})
	if err != nil && ctx.Err() == nil {
		slog.Error("Changes of images cannot be followed, so a sweep counts them", "err", err)
	}
	p.lost = p.lost || lost
	p.noted = s.clock.Now()
	if changed = changed || lost; changed && p.since.IsZero() {
		p.since = p.noted
	}
	return changed
}

// countChanged counts the Images that have changed, once that is due. It returns when to look
// again; 0 if no change waits.
func (s *Sweeper) countChanged(ctx context.Context) (again time.Duration) {
	p := &s.pending
	if wait := p.noted.Add(settled).Sub(s.clock.Now()); wait > 0 {
		return wait
	}
	if changing := s.note(ctx); p.uncounted() && s.due(changing) {
		if p.lost {
			s.Resync()
			return 0
		}
		s.recount(ctx)
		s.tasks.Add(sweep) // a verdict may expire earlier now
	}
	if p.uncounted() {
		return settled
	}
	return 0
}

// due reports whether to count the pending changes now: when Images have stopped changing, when the
// changes have waited for maxUncounted, or when counting them would stay within recountShare.
func (s *Sweeper) due(changing bool) bool {
	p := &s.pending
	waited := s.clock.Since(p.since)
	if p.lost {
		s.mu.Lock()
		defer s.mu.Unlock()
		rested := s.clock.Since(s.ended) >= time.Duration(float64(s.took)/recountShare)
		return rested && (!changing || waited >= maxUncounted)
	}
	return !changing || waited >= maxUncounted || time.Duration(float64(len(p.names))*float64(p.cost)/recountShare) <= waited
}

// recount counts the pending changes. If that fails, a sweep counts all Images.
func (s *Sweeper) recount(ctx context.Context) {
	p := &s.pending
	if s.tally == nil {
		p.forget()
		return
	}
	if p.lost = !s.tally.Resume(); p.lost {
		return
	}
	began, n := s.clock.Now(), len(p.names)
	err := s.countPending(ctx)
	s.tally.End(err)
	if err == nil {
		p.cost = max(s.clock.Since(began)/time.Duration(n), time.Microsecond)
		p.forget()
		return
	}
	if p.lost = true; ctx.Err() == nil {
		slog.Error("Counting images that have changed failed, so a sweep counts them", "err", err)
	}
}

func (s *Sweeper) countPending(ctx context.Context) error {
	for names := range slices.Chunk(slices.Collect(maps.Keys(s.pending.names)), pageSize) {
		if err := s.countNamed(ctx, names); err != nil {
			return err
		}
	}
	return nil
}

// countNamed counts the Images with the given names. It reads them with one list, or one by one if
// that fails: one of them may be damaged.
func (s *Sweeper) countNamed(ctx context.Context, names []string) error {
	if len(names) > 1 {
		list, err := s.images.ListBrief(ctx, metav1.ListOptions{FieldSelector: selectors.Digests(names)})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			gone := sets.New(names...)
			for i := range list.Items {
				gone.Delete(list.Items[i].Name)
				s.recounted(&list.Items[i])
			}
			for name := range gone {
				s.tally.Gone(name)
			}
			return nil
		}
	}
	for _, name := range names {
		image, err := s.images.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			s.tally.Gone(name)
		case ctx.Err() != nil:
			return ctx.Err()
		case apierrors.IsTooManyRequests(err), apierrors.IsServerTimeout(err), apierrors.IsTimeout(err):
			return err
		case err != nil: // a sweep skips it, too
			slog.Error("Counting images skips one that cannot be read", "image", name, "err", err)
			s.tally.Gone(name)
		default:
			s.recounted(image)
		}
	}
	return nil
}

func (s *Sweeper) recounted(image *imagev1.Image) {
	s.tally.Count(image)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expires(image)
}

// expires brings the next sweep forward to when an Image's verdict expires. The caller holds mu.
func (s *Sweeper) expires(image *imagev1.Image) {
	_, _, expiry := signatures.Summary(image)
	if !expiry.IsZero() && expiry.After(s.clock.Now()) && (s.next.IsZero() || expiry.Before(s.next)) {
		s.next = expiry
	}
}
