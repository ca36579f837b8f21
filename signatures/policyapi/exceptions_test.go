package policyapi

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// An exception is reported a week before it ends and when it has ended: once each in the log, in a
// metric and in the policy's condition.
func TestEndsOfExceptionsAreTold(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	start := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	clock := clocktesting.NewFakeClock(start)
	document := signaturestest.Document("demo", `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "") + "  exceptions:\n"
	for i, end := range []time.Duration{30 * 24 * time.Hour, 10 * 24 * time.Hour, -time.Hour} {
		document += fmt.Sprintf("  - {images: [registry.example.com/app:v%d], until: %q, by: ann, reason: why}\n", i, start.Add(end).Format(time.RFC3339))
	}
	set := signaturestest.SetFrom(t, document)
	registry := metrics.NewKubeRegistry()
	k := newKeeper(Options{Live: signatures.NewLive(set, clock), Clock: clock, Changed: func() {}, Registerer: registry})
	for _, step := range []struct {
		after                    time.Duration
		log                      string // words in its only line; "" if there is none
		inForce, endsSoon, ended int
		next                     time.Duration
		condition                string
	}{
		{0, "", 2, 0, 1, 3*24*time.Hour + 1, "True InForce 2 in force; the next ends at 2026-03-14T05:06:07Z: registry.example.com/app:v1, by ann: why"},
		{3 * 24 * time.Hour, "", 2, 0, 1, 1, "True InForce"},
		{1, "An exception of a policy ends soon|policy=demo|until=2026-03-14T05:06:07Z|app:v1, by ann: why", 1, 1, 1, 7*24*time.Hour - 1, "True EndsSoon 2 in force; the next ends at 2026-03-14"},
		{0, "", 1, 1, 1, 7*24*time.Hour - 1, "True EndsSoon"},
		{7*24*time.Hour - 1, "An exception of a policy has ended|app:v1", 1, 0, 2, 13*24*time.Hour + 1, "True InForce 1 in force; the next ends at 2026-04-03T05:06:07Z: registry.example.com/app:v0"},
		{20 * 24 * time.Hour, "An exception of a policy has ended|app:v0", 0, 0, 3, 0, "False Ended the last ended at 2026-04-03T05:06:07Z: remove them"},
	} {
		clock.Step(step.after)
		log.Reset()
		if next := k.reportExceptions(set.Policies()); next != step.next {
			t.Errorf("at %s the next moment is in %s, want %s", clock.Now(), next, step.next)
		}
		lines := strings.Count(log.String(), "\n")
		if (step.log == "") != (lines == 0) || lines > 1 {
			t.Errorf("at %s the log has %q, want %q", clock.Now(), log.String(), step.log)
		}
		for word := range strings.SplitSeq(step.log, "|") {
			if !strings.Contains(log.String(), word) {
				t.Errorf("at %s the log has %q, want %q", clock.Now(), log.String(), word)
			}
		}
		want := fmt.Sprintf(`# HELP tidewaiter_policy_exceptions [ALPHA] Exceptions of policies by state: in_force, ends_soon (within a week), ended.
# TYPE tidewaiter_policy_exceptions gauge
tidewaiter_policy_exceptions{state="ended"} %d
tidewaiter_policy_exceptions{state="ends_soon"} %d
tidewaiter_policy_exceptions{state="in_force"} %d
`, step.ended, step.endsSoon, step.inForce)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "tidewaiter_policy_exceptions"); err != nil {
			t.Errorf("at %s: %v", clock.Now(), err)
		}
		said := ""
		k.excepts(set.Policies()[0], &[]metav1.Condition{}, func(_ string, status metav1.ConditionStatus, reason, message string) {
			said = fmt.Sprintf("%s %s %s", status, reason, message)
		})
		if !strings.HasPrefix(said, step.condition) {
			t.Errorf("at %s the condition is %q, want %q", clock.Now(), said, step.condition)
		}
	}
}
