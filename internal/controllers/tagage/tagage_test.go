package tagage_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/internal/controllers/tagage"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// client lists tags, two at a time.
type client struct {
	tags []imagev1.ImageTag
	err  error
}

func (c *client) ListTags(_ context.Context, o metav1.ListOptions) (*imagev1.ImageTagList, error) {
	at := 0
	if o.Continue != "" {
		if c.err != nil {
			return nil, c.err
		}
		if _, err := fmt.Sscan(o.Continue, &at); err != nil {
			return nil, err
		}
	}
	end := min(at+2, len(c.tags))
	list := &imagev1.ImageTagList{Items: c.tags[at:end]}
	if end < len(c.tags) {
		list.Continue = fmt.Sprint(end)
	}
	return list, nil
}

var now = time.Date(2026, 11, 24, 2, 0, 0, 0, time.UTC)

// lead adds a tag that leads to a digest since a while; it may have been confirmed since.
func (c *client) lead(t *testing.T, name, digest string, since, confirmed time.Duration) {
	t.Helper()
	ref, err := reference.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	tag := tags.New(ref)
	tags.Lead(tag, ref, digest, metav1.NewTime(now.Add(-since)))
	if confirmed != 0 {
		tags.Confirm(tag, now.Add(-confirmed), now)
	}
	c.tags = append(c.tags, *tag)
}

type meterTest struct {
	*tagage.Meter
	ages, unknown *metrics.GaugeVec
	registry      metrics.KubeRegistry
}

func newMeter(c *client) *meterTest {
	m := &meterTest{ages: tagage.NewAges(), unknown: tagage.NewUnknown(), registry: metrics.NewKubeRegistry()}
	m.registry.MustRegister(m.ages, m.unknown)
	m.Meter = tagage.New(tagage.Options{Client: c, Clock: clocktesting.NewFakeClock(now), Ages: m.ages, Unknown: m.unknown})
	return m
}

// value is a metric's value; NaN if there is none.
func (m *meterTest) value(t *testing.T, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, one := range f.GetMetric() {
			if testutil.LabelsMatch(one, labels) {
				return one.GetGauge().GetValue()
			}
		}
	}
	return math.NaN()
}

func (m *meterTest) age(t *testing.T, registry, share string) float64 {
	return m.value(t, "tidewaiter_tag_checked_age_seconds", map[string]string{"registry": registry, "share": share})
}

func (m *meterTest) measure(t *testing.T) {
	t.Helper()
	if again, err := m.Reconcile(t.Context(), struct{}{}); err != nil || again != 5*time.Minute {
		t.Fatal(again, err)
	}
}

// The ages are of tags that lead somewhere, by what was confirmed last. What the clock makes
// unknown is counted apart, and a registry without tags has no metric.
func TestAges(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("1", 64)
	c := &client{}
	for i := range 97 {
		c.lead(t, fmt.Sprintf("a.example.com/app:%d", i), digest, 30*24*time.Hour, time.Hour+time.Duration(i)*time.Second)
	}
	for i := range 3 {
		c.lead(t, fmt.Sprintf("a.example.com/old:%d", i), digest, time.Duration(40+i)*24*time.Hour, 0)
	}
	c.lead(t, "a.example.com/gone:1", digest, 90*24*time.Hour, 0)
	ref, _ := tags.Reference(&c.tags[len(c.tags)-1])
	tags.Lead(&c.tags[len(c.tags)-1], ref, "", metav1.NewTime(now.Add(-80*24*time.Hour)))
	c.lead(t, "b.example.com/app:1", digest, -time.Hour, 0) // the clock was set back
	m := newMeter(c)
	m.measure(t)
	for share, want := range map[string]time.Duration{"0.5": time.Hour + 49*time.Second, "0.95": time.Hour + 94*time.Second, "1": 42 * 24 * time.Hour} {
		if got := m.age(t, "a.example.com", share); math.Abs(got-want.Seconds()) > 0.1*want.Seconds() || share == "1" && got != want.Seconds() {
			t.Errorf("share %s is %v s, want about %v", share, got, want.Seconds())
		}
	}
	if got := m.age(t, "b.example.com", "1"); !math.IsNaN(got) {
		t.Errorf("an unknown age is %v s", got)
	}
	unknown := func(registry string) float64 {
		return m.value(t, "tidewaiter_tag_checked_age_unknown_tags", map[string]string{"registry": registry})
	}
	if a, b := unknown("a.example.com"), unknown("b.example.com"); a != 0 || b != 1 {
		t.Errorf("%v and %v tags have an unknown age", a, b)
	}
	before := m.age(t, "a.example.com", "0.5")
	c.err = errors.New("the database is away")
	if _, err := m.Reconcile(t.Context(), struct{}{}); err == nil || m.age(t, "a.example.com", "0.5") != before {
		t.Errorf("after half a list: %v, %v s", err, m.age(t, "a.example.com", "0.5"))
	}
	c.err, c.tags = nil, c.tags[len(c.tags)-1:]
	m.measure(t)
	if got := m.age(t, "a.example.com", "0.5"); !math.IsNaN(got) {
		t.Errorf("without tags, the age is %v s", got)
	}
}

// Whoever pushes images under many hosts makes no more metrics than there is room for.
func TestManyRegistries(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("1", 64)
	c := &client{}
	for i := range 2000 {
		c.lead(t, fmt.Sprintf("r%d.example.com/app:1", i), digest, time.Duration(i)*time.Second, 0)
	}
	c.lead(t, "r7.example.com/app:2", digest, time.Hour, 0)
	m := newMeter(c)
	m.measure(t)
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if n := len(f.GetMetric()); n > (tagage.MaxRegistries+1)*len(tagage.Shares) {
			t.Errorf("%s has %d series", f.GetName(), n)
		}
	}
	if got := m.age(t, "r7.example.com", "1"); got != 3600 {
		t.Errorf("the registry with the most tags: %v s", got)
	}
	if got := m.age(t, tagage.Others, "1"); got != 1999 {
		t.Errorf("the others: %v s", got)
	}
}
