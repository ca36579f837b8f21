package e2e

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// alertCase is a metric by which an alert fires, with its labels besides those of the scrape.
type alertCase struct {
	metric, labels string
	well, ill      string // values, a minute apart; "" for no series; a sum comes with a count of a thousand a minute
	carries, says  string // the label that the alert carries, and what its summary says
}

var alertCases = map[string]alertCase{
	"TidewaiterDown":             {"tidewaiter_db_revision", "", "1+1x200", "", "", "does not answer"},
	"TidewaiterReadOnly":         {"tidewaiter_db_writable", "", "1x200", "0x200", "", "cannot write"},
	"TidewaiterDiskFills":        {"tidewaiter_db_disk_free_bytes", "", "1073741824x200", "268435456x200", "", "has 256MiB left"},
	"TidewaiterDataDamaged":      {"tidewaiter_db_damaged_reads_total", "", "3x200", "0x170 1x30", "", "met damage"},
	"TidewaiterCopyBehind":       {"tidewaiter_db_copy_lag_seconds", "", "0x200", "0+60x200", "", "has not had all that etcd has"},
	"TidewaiterNoLeader":         {"tidewaiter_leader", "", "1x200", "0x200", "", "None of several servers"},
	"TidewaiterReadsWait":        {"tidewaiter_db_copy_barrier_seconds_sum", "", "0+1x200", "0+6000x200", "", "wait for etcd"},
	"TidewaiterBackupsFail":      {"tidewaiter_db_backup_failures_total", "", "3x200", "0x100 1x100", "", "backup of Tidewaiter failed"},
	"TidewaiterPoliciesBroken":   {"tidewaiter_policy_last_reload_successful", "", "1x200", "0x200", "", "Policy files of Tidewaiter cannot be read"},
	"TidewaiterClusterAway":      {"tidewaiter_cluster_current", `cluster="prod"`, "1x200", "0x200", "prod", "in the cluster prod now"},
	"TidewaiterImportsGivenUp":   {"tidewaiter_queue_jobs", `receiver="hub",state="dead"`, "0x200", "4x200", "hub", "4 jobs of hub failed"},
	"TidewaiterImportsWait":      {"tidewaiter_queue_oldest_job_age_seconds", `receiver="hub"`, "3000x200", "7200x200", "hub", "has waited for 2h 0m 0s"},
	"TidewaiterRegistriesParked": {"tidewaiter_queue_parked_registries", "", "0x200", "2x200", "", "2 registries do not answer"},
	"TidewaiterTagsUnchecked":    {"tidewaiter_tag_checked_age_seconds", `registry="r.example.com",share="0.5"`, "100x200", "5000x5 100x5 5000x5 100x5 100000x180", "r.example.com", "r.example.com confirmed its tags regularly"},
	"TidewaiterRegistryEmptied":  {"tidewaiter_sweep_lost_registries", "", "0x200", "1x200", "", "2 registries have nothing in most repositories"},
	"TidewaiterRunsUnverified":   {"tidewaiter_running_pods", `verified="Unsigned"`, "0x200", "3x200", "Unsigned", "verified=Unsigned"},
	"TidewaiterTagOverwritten":   {"tidewaiter_overwritten_tags", "", "0x200", "1x200", "", "1 tags that must not move have moved"},
	"TidewaiterRunningImageGone": {"tidewaiter_gone_running_images", "", "0x200", "5x200", "", "5 images that pods use are gone"},
}

// Each alert fires by the metric that the server has, with what its document says, and does not
// while all is well. Two servers of one store have the same numbers, which count once where an
// alert adds.
func TestAlerts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(deployed(t, "chart/alerts.yaml"))
	must(t, err)
	type rule struct {
		Alert, Expr         string
		Labels, Annotations map[string]string
	}
	var file struct{ Groups []struct{ Rules []rule } }
	must(t, yaml.Unmarshal(text, &file))
	document, err := os.ReadFile(filepath.Join(filepath.Dir(harness.ModuleDir(t)), "docs/reference/metrics.md"))
	must(t, err)

	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "alerts.yaml"), text, 0o600))
	type series struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	seriesOf := func(c alertCase, values string) (all []series) {
		for _, server := range []string{"a", "b"} {
			labels := strings.TrimPrefix(c.labels+`,job="tidewaiter",instance="`+server+`"`, ",")
			if values != "" {
				all = append(all, series{c.metric + "{" + labels + "}", values})
			}
			if of, isSum := strings.CutSuffix(c.metric, "_sum"); isSum {
				all = append(all, series{of + "_count{" + labels + "}", "0+1000x200"})
			}
		}
		return all
	}
	var well []series
	for _, name := range slices.Sorted(maps.Keys(alertCases)) {
		c := alertCases[name]
		well = append(well, seriesOf(c, c.well)...)
		var keys []string
		for _, label := range regexp.MustCompile(`(\w+)=`).FindAllStringSubmatch(c.labels, -1) {
			keys = append(keys, label[1])
		}
		shown := strings.TrimSuffix(c.metric, "_sum")
		if len(keys) > 0 {
			shown += "{" + strings.Join(keys, ",") + "}"
		}
		if !strings.Contains(string(document), "`"+shown+"`") {
			t.Errorf("%s: docs/reference/metrics.md has no %s", name, shown)
		}
	}
	var all []string
	for _, r := range file.Groups[0].Rules {
		c, ok := alertCases[r.Alert]
		if !ok {
			t.Errorf("no test has %s fire", r.Alert)
			continue
		}
		ill := seriesOf(c, c.ill)
		for _, one := range []struct {
			what   string
			series []series
			fires  bool
		}{{"all is well", well, false}, {"it is not", ill, true}} {
			// promtool compares what fires as a whole, so its own words are asked for first
			input, err := yaml.Marshal(map[string]any{
				"rule_files": []string{"alerts.yaml"}, "evaluation_interval": "1m",
				"tests": []any{map[string]any{"name": r.Alert + ", when " + one.what, "interval": "1m", "input_series": one.series,
					"alert_rule_test": []any{map[string]any{"eval_time": "190m", "alertname": r.Alert}}}},
			})
			must(t, err)
			path := filepath.Join(dir, "test.yaml")
			must(t, os.WriteFile(path, input, 0o600))
			got := harness.Run(t, harness.Command{Path: harness.Tool(t, "promtool"), Args: []string{"test", "rules", path}})
			said := got.Stdout + got.Stderr
			if fires := got.Code != 0; fires != one.fires {
				t.Errorf("%s fires %v when %s: %s", r.Alert, fires, one.what, said)
				continue
			}
			if one.fires && (!strings.Contains(said, c.says) || !strings.Contains(said, `severity="`+r.Labels["severity"]+`"`) || c.carries != "" && !strings.Contains(said, `="`+c.carries+`"`)) {
				t.Errorf("%s says %s, want %q", r.Alert, said, c.says)
			}
		}
		all = append(all, r.Alert)
		if !strings.HasSuffix(r.Annotations["runbook_url"], "docs/tasks/alerts.md#"+strings.ToLower(r.Alert)) {
			t.Errorf("%s leads to %s", r.Alert, r.Annotations["runbook_url"])
		}
	}
	if len(all) != len(alertCases) {
		t.Errorf("tested are %v", all)
	}
}
