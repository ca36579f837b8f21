package reverify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
)

const (
	// pageSize is how many Images are read, and held in memory, at a time. An Image has up to 12
	// MiB, usually some 20 KiB.
	pageSize = 10
	// stretch is how many Images a sweep examines between two pauses.
	stretch = 100
	// writers is how many Images are judged and written at a time.
	writers = 4
	// DefaultResync is the longest time between two sweeps.
	DefaultResync = time.Hour
	// retryAfter is the time to the next sweep after one that failed for some Images.
	retryAfter = time.Minute
	// share is the part of its time that a sweep works. It pauses for the rest.
	share = 0.5
	// promptly is how many Images a requested sweep, for instance after a change of policies, examines
	// before its first pause.
	promptly = 1000
	// maxPause bounds one pause.
	maxPause = 5 * time.Second
)

// Images stores Images.
type Images interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*imagev1.Image, error)
	List(ctx context.Context, opts metav1.ListOptions) (*imagev1.ImageList, error)
	// ListBrief lists Images that may lack manifest, config and metadata.
	ListBrief(ctx context.Context, opts metav1.ListOptions) (*imagev1.ImageList, error)
	Update(ctx context.Context, image *imagev1.Image, opts metav1.UpdateOptions) (*imagev1.Image, error)
}

// Tally counts Images. A sweep passes it every Image that it examines, as the sweep leaves it.
// Between sweeps it gets the Images that have changed.
type Tally interface {
	// Begin begins a count of all Images.
	Begin()
	// Resume continues the last count. It returns false if there is none, or if the Tally no longer
	// knows what each Image added to it.
	Resume() bool
	// Count counts an Image. It replaces what was counted under this name before.
	Count(image *imagev1.Image)
	// Gone subtracts what was counted under a name.
	Gone(name string)
	// End ends the count. err is why some Images were not counted; nil means that all were.
	End(err error)
}

// Progress is how far a sweep has come.
type Progress struct {
	// Sweep counts sweeps since the start, from 1; 0 before the first.
	Sweep int64 `json:"sweep"`
	// Running is true until the sweep has ended.
	Running bool `json:"running"`
	// Total is how many Images there are, as far as is known.
	Total int64 `json:"total"`
	// Examined is how many Images were read. Of those, Changed were written with a new verdict, and
	// Failed should have been. Unreadable is how many times Images, one or several in a row, could
	// not be read.
	Examined   int64 `json:"examined"`
	Changed    int64 `json:"changed"`
	Failed     int64 `json:"failed"`
	Unreadable int64 `json:"unreadable,omitempty"`
	// Verified counts the Images examined by their verdict: True, ByIndex, False, Unknown,
	// Unsigned, NoPolicy, Excepted.
	Verified map[string]int64 `json:"verified"`
	// Verdicts counts their verdicts in each repository that they are in: Verified has only the worst
	// verdict of each Image.
	Verdicts map[string]int64 `json:"verdicts"`
	// Unimported is how many images pods run that are not imported, and so have no verdict. No sweep
	// counts them: a server does that when it is asked.
	Unimported int64 `json:"unimported,omitempty"`
	// Error is why the sweep was cut short.
	Error string `json:"error,omitempty"`
}

// Count counts an Image that was examined, with the verdicts that it has.
func (p *Progress) Count(image *imagev1.Image, changed bool) {
	verified, _, _ := signatures.Summary(image)
	p.Examined++
	p.Verified[verified]++
	for _, verdict := range signatures.Everywhere(image) {
		p.Verdicts[verdict]++
	}
	if changed {
		p.Changed++
	}
}

// Options of a Sweeper. Images and Policies are required.
type Options struct {
	Images Images
	// Policies are those in force. They show which Images may get another verdict than the stored one;
	// the server computes it when the Image is written.
	Policies *signatures.Live
	// Tally counts what each sweep examines.
	Tally Tally
	// Changes reports the Images that Tally counts again between sweeps.
	Changes Changes
	// Requests are those of other parts of the server; nil for none but the Sweeper's own.
	Requests *Requests
	// Clock is for tests; nil is the real one.
	Clock clock.WithTicker
	// Registerer gets the metrics; may be nil.
	Registerer meter.Registerer
}

// Sweeper keeps verdicts up to date. New makes one.
type Sweeper struct {
	*Requests
	images  Images
	judge   *signatures.Live
	tally   Tally
	changes Changes
	clock   clock.WithTicker
	tasks   *reconcile.Controller[task]
	metrics *sweepMetrics
	pending pending

	mu         sync.Mutex
	progress   Progress
	next       time.Time     // when the first verdict expires; zero for never
	ended      time.Time     // when the last sweep ended; zero if the first one of Run has not
	took       time.Duration // how long the last sweep took
	failed     bool          // the last sweep failed for some Images
	everything bool          // the next sweep judges all Images
}

// task is what a Sweeper does; one at a time.
type task string

const (
	sweep  task = "sweep"
	count  task = "count"  // Images that have changed
	follow task = "follow" // judge images whose index was judged
)

// New makes a Sweeper.
func New(o Options) *Sweeper {
	s := &Sweeper{
		Requests: o.Requests, images: o.Images, judge: o.Policies, tally: o.Tally, changes: o.Changes, clock: cmp.Or[clock.WithTicker](o.Clock, clock.RealClock{}),
		metrics: newMetrics(o.Registerer), pending: pending{names: map[string]struct{}{}, own: map[string]int64{}, cost: firstCost},
	}
	if s.Requests == nil {
		s.Requests = NewRequests()
	}
	tasks := reconcile.Options[task]{Task: "verifying signatures again", Retry: retryAfter, Clock: s.clock, Signals: map[task]<-chan struct{}{sweep: s.toSweep, follow: s.toFollow}}
	if s.changes != nil {
		tasks.Signals[count] = s.changes.Ready()
	}
	s.tasks = reconcile.New(s, tasks)
	return s
}

// Trigger requests a sweep that judges all Images, even those whose verdicts seem to be up to date.
// It returns the sweep's number and does not wait. It is always a new sweep, because a running one
// may be past Images that must be judged again.
func (s *Sweeper) Trigger() (number int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everything = true
	s.asked.Store(true)
	s.tasks.Add(sweep)
	return s.progress.Sweep + 1
}

// Progress returns how far the current sweep has come, or how the last one ended.
func (s *Sweeper) Progress() Progress {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.progress
	p.Verified, p.Verdicts = maps.Clone(p.Verified), maps.Clone(p.Verdicts)
	return p
}

// Run sweeps until ctx is done. Between sweeps it counts Images that change, and judges the images
// of indexes that have a new verdict.
func (s *Sweeper) Run(ctx context.Context) {
	s.mu.Lock()
	s.ended = time.Time{}
	s.mu.Unlock()
	s.asked.Store(false) // the first sweep judges by what is in force now
	s.tasks.Add(sweep)
	_ = s.tasks.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler].
func (s *Sweeper) Reconcile(ctx context.Context, what task) (again time.Duration, err error) {
	switch what {
	case follow:
		failed, err := s.judgeFollowers(ctx)
		if failed > 0 {
			s.mu.Lock()
			s.failed = true
			s.mu.Unlock()
			s.tasks.Add(sweep)
		}
		return 0, err
	case count:
		return s.countChanged(ctx), nil
	}
	if wait := s.untilSweep(); wait > 0 {
		return wait, nil
	}
	s.note(ctx)
	s.pending.forget()
	if err := s.Sweep(ctx, false); err != nil && !errors.Is(err, errUnreadable) { // an administrator has to mend that
		return 0, err
	}
	return s.untilSweep(), nil
}

// untilSweep is the time to the next sweep: an hour after the last one, or less if a verdict
// expires, if the last one failed, or if one was asked for.
func (s *Sweeper) untilSweep() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := s.ended.Add(DefaultResync)
	switch {
	case s.asked.Load():
		return 0
	case s.failed:
		at = s.ended.Add(retryAfter)
	case !s.next.IsZero() && s.next.Before(at):
		// At most once a second, even if an Image's recorded expiry is in the past.
		at = s.next
		if least := s.ended.Add(time.Second); at.Before(least) {
			at = least
		}
	}
	return at.Sub(s.clock.Now())
}

// errUnreadable is the error of a sweep that has examined all Images but those that cannot be read.
var errUnreadable = errors.New("images are damaged and keep their verdicts; the log names them")

// Sweep examines all Images once. With everything it also judges those whose verdicts seem to be up
// to date. When it judges an index, it also judges the images that the index lists, even if it has
// passed them. An error means that some or all Images were not examined or written.
func (s *Sweeper) Sweep(ctx context.Context, everything bool) error {
	s.mu.Lock()
	everything, s.everything = everything || s.everything, false
	asked := s.asked.Swap(false)
	s.progress = Progress{Sweep: s.progress.Sweep + 1, Running: true, Verified: map[string]int64{}, Verdicts: map[string]int64{}}
	s.next = time.Time{}
	clear(s.pending.own)
	s.mu.Unlock()

	started := s.clock.Now()
	if s.tally != nil {
		s.tally.Begin()
	}
	prompt := 0
	if asked {
		prompt = promptly
	}
	err := s.pages(ctx, everything, prompt)
	var failed int64
	if err == nil {
		failed, err = s.judgeFollowers(ctx)
	}
	if s.tally != nil {
		s.tally.End(err)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Running = false
	s.progress.Failed += failed
	s.ended, s.took = s.clock.Now(), s.clock.Since(started)
	if err == nil && s.progress.Failed > 0 {
		err = fmt.Errorf("%d of %s could not be written", s.progress.Failed, table.Quantity(s.progress.Examined, "image"))
	}
	s.failed = err != nil
	if err == nil && s.progress.Unreadable > 0 {
		err = errUnreadable
	}
	if err != nil {
		s.progress.Error = err.Error()
	}
	s.metrics.sweepEnded(err, s.ended, s.took)
	return err
}

// pages reads all Images. It pauses after each stretch, but not during the first prompt Images.
func (s *Sweeper) pages(ctx context.Context, everything bool, prompt int) error {
	began, since := s.clock.Now(), 0
	list := func(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageList, error) {
		list, err := s.images.List(ctx, options)
		if err != nil {
			err = fmt.Errorf("listing images: %w", err)
		}
		return list, err
	}
	return pages.EachReadable(ctx, metav1.ListOptions{Limit: pageSize}, list, func(list *imagev1.ImageList) error {
		s.counted(list)
		err := s.page(ctx, list.Items, everything)
		s.note(ctx)
		if err != nil || list.Continue == "" {
			return err
		}
		if s.followers.many() {
			failed, err := s.judgeFollowers(ctx)
			s.mu.Lock()
			s.progress.Failed += failed
			s.mu.Unlock()
			if err != nil {
				return err
			}
		}
		prompt -= len(list.Items)
		if since += len(list.Items); since < stretch {
			return nil
		}
		if prompt <= 0 {
			if err := s.pause(ctx, s.clock.Since(began)); err != nil {
				return err
			}
		}
		began, since = s.clock.Now(), 0
		return nil
	}, s.unreadable)
}

// page updates Images, a few at a time, so that writers share commits of the database.
func (s *Sweeper) page(ctx context.Context, images []imagev1.Image, everything bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range images {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return s.examine(ctx, &images[i], everything)
		})
	}
	return group.Wait()
}

// unreadable notes an Image that is skipped.
func (s *Sweeper) unreadable(err error) {
	slog.Error("Verifying signatures again skips images that cannot be read", "err", err)
	s.metrics.examined.WithLabelValues(resultUnreadable).Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Unreadable++
}

// pause waits in proportion to the time worked.
func (s *Sweeper) pause(ctx context.Context, worked time.Duration) error {
	d := min(time.Duration(float64(worked)*(1-share)/share), maxPause)
	if d <= 0 {
		return ctx.Err()
	}
	timer := s.clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// counted counts the Images of a page that was read, before they are judged.
func (s *Sweeper) counted(list *imagev1.ImageList) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Total = s.progress.Examined + pages.Total(list)
	s.metrics.remaining.Set(float64(s.progress.Total - s.progress.Examined))
}

// examine updates one Image. It returns an error only if ctx is done; it counts and logs other
// errors.
func (s *Sweeper) examine(ctx context.Context, image *imagev1.Image, everything bool) error {
	result := resultUnchanged
	image, changed, err := s.update(ctx, image, func(image *imagev1.Image) bool { return everything && isJudged(image) || s.judge.Stale(image) })
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		result = resultFailed
		slog.Error("Verifying signatures again failed", "image", image.Name, "err", err)
	case changed:
		result = resultChanged
	}
	s.check(image)
	if s.tally != nil {
		s.tally.Count(image)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress.Count(image, result == resultChanged)
	if result == resultChanged {
		s.wrote(image)
	}
	switch result {
	case resultFailed:
		s.progress.Failed++
	}
	s.expires(image)
	s.metrics.examined.WithLabelValues(result).Inc()
	s.metrics.remaining.Set(float64(s.progress.Total - s.progress.Examined))
	return nil
}

// isJudged reports whether an image has anything to judge again. An image without signatures has
// nothing: its verdict comes from its index, and is updated with the index.
func isJudged(image *imagev1.Image) bool {
	return len(image.Signatures) > 0 || image.Annotations[signatures.AnnotationPolicy] != ""
}

// update makes the server judge an Image again, if wanted returns true: it writes the Image with
// [signatures.AskAgain]. On a conflict, update reads the Image again. If the Image is gone, it does
// nothing.
func (s *Sweeper) update(ctx context.Context, image *imagev1.Image, wanted func(*imagev1.Image) bool) (_ *imagev1.Image, changed bool, err error) {
	read := true
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if !read {
			current, err := s.images.Get(ctx, image.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			image = current
		}
		read = false
		if !wanted(image) {
			return nil
		}
		asked := *image
		asked.Annotations = maps.Clone(image.Annotations)
		signatures.AskAgain(&asked)
		updated, err := s.images.Update(ctx, &asked, metav1.UpdateOptions{})
		if err != nil {
			return err
		}
		changed = !maps.Equal(updated.Annotations, image.Annotations) || !apiequality.Semantic.DeepEqual(updated.Signatures, image.Signatures)
		image = updated
		return nil
	})
	if apierrors.IsNotFound(err) {
		return image, false, nil
	}
	return image, changed && err == nil, err
}
