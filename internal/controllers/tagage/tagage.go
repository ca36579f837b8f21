// Package tagage measures how long ago registries confirmed where tags lead. If a registry sends no
// webhook, a change of a tag is seen as late as this.
package tagage

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

const (
	every = 5 * time.Minute // between two measurements
	rest  = 10              // so many times as long as a measurement, there is none
	page  = 500             // tags read at a time

	// maxMeasured bounds the registries that are measured apart, some 2 MB. Those that come later
	// count as [Others].
	maxMeasured = 1000
	// MaxRegistries bounds the registries that have metrics of their own: those with the most tags.
	MaxRegistries = 100
	// Others is the label of the other registries, together.
	Others = "others"
)

// Shares are the shares of a registry's tags, those that were confirmed last, whose greatest age is
// measured.
var Shares = []float64{0.5, 0.95, 1}

// Client reads ImageTags.
type Client interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
}

// Options are all required.
type Options struct {
	Client Client
	Clock  clock.WithTicker
	// Ages has the ages in seconds, and Unknown the number of tags without a known age; see [NewAges]
	// and [NewUnknown].
	Ages, Unknown *metrics.GaugeVec
}

// Meter measures. Make one with New.
type Meter struct {
	Options
	tasks *reconcile.Controller[struct{}]
	shown map[string]bool // the registries with metrics
}

// NewAges returns gauges for [Options], which the caller registers.
func NewAges() *metrics.GaugeVec {
	return meter.GaugeVec("", "tag_checked_age_seconds", "How long ago the registry last confirmed where its tags lead: no longer ago than this for this share of its tags (within a tenth; exact for 1). Measured every five minutes. The registry is \"others\" for all but the 100 with the most tags.", "registry", "share")
}

// NewUnknown returns gauges for [Options], which the caller registers.
func NewUnknown() *metrics.GaugeVec {
	return meter.GaugeVec("", "tag_checked_age_unknown_tags", "Tags for which it is not known how long ago the registry confirmed them, because the server's clock was set back.", "registry")
}

// New returns a Meter. It measures nothing until Run.
func New(o Options) *Meter {
	m := &Meter{Options: o, shown: map[string]bool{}}
	m.tasks = reconcile.New(m, reconcile.Options[struct{}]{Task: "measuring how long ago registries confirmed tags", Clock: o.Clock})
	return m
}

// Run measures until ctx is done.
func (m *Meter) Run(ctx context.Context) error {
	m.tasks.Add(struct{}{})
	return m.tasks.Run(ctx)
}

// Reconcile implements [reconcile.Reconciler]. If it fails, the metrics stay as they were.
func (m *Meter) Reconcile(ctx context.Context, _ struct{}) (again time.Duration, err error) {
	began := m.Clock.Now()
	all := map[string]*ages{}
	err = pages.EachReadable(ctx, metav1.ListOptions{Limit: page}, m.Client.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			measure(all, &list.Items[i], m.Clock.Now())
		}
		return nil
	}, func(error) {}) // the read that met the damage has reported it
	if err != nil {
		return 0, err
	}
	m.show(fewer(all))
	return max(every, rest*m.Clock.Since(began)), nil
}

// measure adds a tag, unless it leads to nothing.
func measure(all map[string]*ages, tag *imagev1.ImageTag, now time.Time) {
	ref, ok := tags.Reference(tag)
	age, leads, known := tags.Age(tag, now)
	if !ok || !leads {
		return
	}
	registry := ref.Host
	if all[registry] == nil && len(all) >= maxMeasured {
		registry = Others
	}
	of := all[registry]
	if of == nil {
		of = &ages{}
		all[registry] = of
	}
	if !known {
		of.unknown++
		return
	}
	of.add(age)
}

// fewer puts all registries but those with the most tags together.
func fewer(all map[string]*ages) map[string]*ages {
	most := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b].tags(), all[a].tags()), cmp.Compare(a, b))
	})
	out := map[string]*ages{}
	for i, registry := range most {
		name := registry
		if i >= MaxRegistries {
			name = Others
		}
		if out[name] == nil {
			out[name] = &ages{}
		}
		out[name].merge(all[registry])
	}
	return out
}

// show sets the metrics. It removes those of registries that have no tags any more, and nothing
// before, so that no scrape finds a metric missing.
func (m *Meter) show(all map[string]*ages) {
	for registry, of := range all {
		m.shown[registry] = true
		m.Unknown.WithLabelValues(registry).Set(float64(of.unknown))
		for _, share := range Shares {
			if of.known > 0 {
				m.Ages.WithLabelValues(registry, label(share)).Set(of.oldestOf(share).Seconds())
			} else {
				m.Ages.DeleteLabelValues(registry, label(share))
			}
		}
	}
	for registry := range m.shown {
		if all[registry] != nil {
			continue
		}
		delete(m.shown, registry)
		m.Unknown.DeleteLabelValues(registry)
		for _, share := range Shares {
			m.Ages.DeleteLabelValues(registry, label(share))
		}
	}
}

func label(share float64) string { return strconv.FormatFloat(share, 'g', -1, 64) }

// perDoubling is how many classes of ages there are between an age and twice that.
const perDoubling = 8

// ages counts tags by age: each class reaches to 9 % more than the one before. The last one has
// everything above 136 years.
type ages struct {
	classes [32*perDoubling + 1]uint32
	known   int
	oldest  time.Duration
	unknown int
}

func (a *ages) tags() int { return a.known + a.unknown }

func (a *ages) add(age time.Duration) {
	class := int(math.Ceil(perDoubling * math.Log2(1+age.Seconds())))
	a.classes[min(class, len(a.classes)-1)]++
	a.known++
	a.oldest = max(a.oldest, age)
}

func (a *ages) merge(other *ages) {
	for i, n := range other.classes {
		a.classes[i] += n
	}
	a.known, a.unknown, a.oldest = a.known+other.known, a.unknown+other.unknown, max(a.oldest, other.oldest)
}

// oldestOf returns the greatest age in the share of the tags that were confirmed last: the end of
// its class.
func (a *ages) oldestOf(share float64) time.Duration {
	left := int(math.Ceil(share * float64(a.known)))
	for class, n := range a.classes {
		if left -= int(n); left <= 0 {
			end := time.Duration((math.Exp2(float64(class)/perDoubling) - 1) * float64(time.Second))
			return min(end, a.oldest)
		}
	}
	return a.oldest
}
