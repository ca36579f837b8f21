package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// Reasons for which a server lacks a metric.
const (
	oneServer        = "there is one server"
	everyFiveMinutes = "tags are measured every five minutes"
)

// rare are the metrics of dashboards and alerts that a server has only once something happens which
// does not happen here.
var rare = map[string]string{
	"tidewaiter_admission_duration_seconds_bucket":           "no cluster asks about its pods",
	"tidewaiter_admission_reviews_total":                     "no cluster asks about its pods",
	"tidewaiter_cluster_current":                             "no cluster is followed",
	"tidewaiter_db_copy_barrier_seconds_bucket":              oneServer,
	"tidewaiter_db_copy_barrier_seconds_count":               oneServer,
	"tidewaiter_db_copy_barrier_seconds_sum":                 oneServer,
	"tidewaiter_db_copy_lag_seconds":                         oneServer,
	"tidewaiter_leader":                                      oneServer,
	"tidewaiter_gone_running_images":                         "no cluster is followed",
	"tidewaiter_outdated_pods":                               "no cluster is followed",
	"tidewaiter_policy_reloads_total":                        "no policy changes",
	"tidewaiter_refused_requests_total":                      "nobody asks too much",
	"tidewaiter_reverify_images_total":                       "no policy changes",
	"tidewaiter_spool_dropped_total":                         "no receiver is past its quota",
	"tidewaiter_sweep_tags_total":                            "no sweep begins",
	"tidewaiter_tag_checked_age_seconds":                     everyFiveMinutes,
	"tidewaiter_trusted_root_last_success_timestamp_seconds": "no trusted root is followed",
	"tidewaiter_webhook_refused_total":                       "no push is refused",
}

// metricName finds the metrics in an expression. Prometheus itself reads expressions as a whole.
var metricName = regexp.MustCompile(`\b(?:tidewaiter|apiserver|process|go|leader)_[a-z0-9_]+`)

// metricsOf are the metrics that texts name.
func metricsOf(texts ...string) []string {
	return slices.Compact(slices.Sorted(slices.Values(metricName.FindAllString(strings.Join(texts, "\n"), -1))))
}

// isOfReplicas reports whether only servers that share a store have a metric.
func isOfReplicas(name string) bool { return rare[name] == oneServer }

// alertRules are the expressions of the chart's alerts.
func alertRules(t *testing.T) (expressions []string) {
	t.Helper()
	text, err := os.ReadFile(deployed(t, "chart/alerts.yaml"))
	must(t, err)
	var file struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	must(t, yaml.Unmarshal(text, &file))
	for _, rule := range file.Groups[0].Rules {
		expressions = append(expressions, rule.Expr)
	}
	return expressions
}

// dashboard is the part of Grafana's format that is looked at.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr string }
	}
}

// Prometheus takes the alerts and answers every panel of the dashboards, whose metrics are those of
// a server; its own linter has nothing to say of them; and no panel covers another.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	h := startHooked(t, registry.Distribution, false)
	h.registry.Push(t, "team/app:v1", images.Numbered(t, 1)[0])
	h.awaitEmptySpool(t)

	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	var ours strings.Builder
	for line := range strings.Lines(h.Kubectl(t, "get", "--raw", "/metrics")) {
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "tidewaiter_") {
			ours.WriteString(line)
		}
	}
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "promtool"), Args: []string{"check", "metrics"}, Stdin: ours.String()})
	rules := deployed(t, "chart/alerts.yaml")
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "promtool"), Args: []string{"check", "rules", rules}})

	config := write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [%q]
scrape_configs:
- job_name: tidewaiter
  scheme: https
  authorization: {credentials_file: %q}
  tls_config: {ca_file: %q}
  static_configs: [{targets: [%q]}]
`, rules, write("token", h.Config(t).BearerToken), h.ca, h.Address(t)))
	base := "http://127.0.0.1:" + freePort(t)
	harness.Start(t, harness.Command{Path: harness.Tool(t, "prometheus"), Args: []string{"--config.file", config, "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", strings.TrimPrefix(base, "http://")}})
	ask := func(path string, into any) error {
		response, err := http.Get(base + path)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", response.Status, body)
		}
		if err != nil {
			return err
		}
		return json.Unmarshal(body, &struct{ Data any }{into})
	}

	expressions := alertRules(t)
	panels := 0
	var all []dashboard
	files, err := filepath.Glob(deployed(t, "chart/dashboards/*.json"))
	must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		var d dashboard
		must(t, json.Unmarshal(text, &d))
		all = append(all, d)
		covered := map[[2]int]int{}
		for _, p := range d.Panels {
			panels++
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := covered[[2]int{x, y}]; other != 0 || x >= 24 {
						t.Fatalf("%s: panel %d covers panel %d or the edge", d.Title, p.ID, other)
					}
					covered[[2]int{x, y}] = p.ID
				}
			}
			for _, target := range p.Targets {
				expressions = append(expressions, strings.NewReplacer("$job", ".*", "$__rate_interval", "1m").Replace(target.Expr))
			}
		}
		if d.UID != "tidewaiter-"+strings.TrimSuffix(filepath.Base(file), ".json") {
			t.Errorf("%s has the UID %s", file, d.UID)
		}
	}
	if len(files) != 5 || panels < 50 {
		t.Errorf("%d panels in %d dashboards", panels, len(files))
	}

	used := metricsOf(expressions...)
	harness.Eventually(t, func() error {
		var names []string
		if err := ask("/api/v1/label/__name__/values", &names); err != nil {
			return err
		}
		for _, name := range used {
			if rare[name] == "" && !slices.Contains(names, name) {
				return fmt.Errorf("the server has no %s", name)
			}
		}
		return nil
	})
	document, err := os.ReadFile(filepath.Join(filepath.Dir(harness.ModuleDir(t)), "docs/reference/metrics.md"))
	must(t, err)
	for name := range maps.Keys(rare) {
		if !slices.Contains(used, name) {
			t.Errorf("%s is rare, and nothing shows it", name)
		}
		if !regexp.MustCompile("`" + regexp.MustCompile("_(bucket|sum|count)$").ReplaceAllString(name, "") + "[`{]").Match(document) {
			t.Errorf("docs/reference/metrics.md has no %s", name)
		}
	}
	for _, expression := range expressions {
		// Each is asked once two scrapes have been made, so that a rate has a value.
		harness.Eventually(t, func() error {
			var answer struct{ Result []any }
			if err := ask("/api/v1/query?query="+url.QueryEscape(expression), &answer); err != nil {
				return fmt.Errorf("%s: %w", expression, err)
			}
			compares := regexp.MustCompile(`[<>=]=? [0-9]|absent|> 0|code=~`).MatchString(expression)
			if len(answer.Result) == 0 && !compares && !slices.ContainsFunc(metricsOf(expression), func(name string) bool { return rare[name] != "" }) {
				return fmt.Errorf("%s: no series", expression)
			}
			return nil
		})
	}
	harness.Eventually(t, func() error {
		var answer struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError string }
			}
		}
		if err := ask("/api/v1/rules", &answer); err != nil {
			return err
		}
		if len(answer.Groups) != 1 || len(answer.Groups[0].Rules) != len(alertRules(t)) {
			return fmt.Errorf("%+v", answer)
		}
		for _, rule := range answer.Groups[0].Rules {
			if rule.Health != "ok" {
				return fmt.Errorf("%s: %s %s", rule.Name, rule.Health, rule.LastError)
			}
		}
		return nil
	})
	if *dashboardPictures != "" {
		drawDashboards(t, h, all, ask)
	}
}
