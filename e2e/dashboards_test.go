package e2e

import (
	"flag"
	"fmt"
	"html"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

var dashboardPictures = flag.String("dashboards", "", "folder to write pictures of the dashboards to, with what TestPrometheus does; needs chromium")

// drawDashboards writes a picture of each dashboard, with what Prometheus answers for the last
// minute. Panels have the place, title and queries that Grafana, which is not here, would give
// them, but not its looks.
func drawDashboards(t *testing.T, h *hooked, all []dashboard, ask func(path string, into any) error) {
	t.Helper()
	for i, image := range images.Numbered(t, 61)[1:] { // something to see
		h.registry.Push(t, fmt.Sprintf("team/app-%d:v1", i%7), image)
	}
	h.awaitEmptySpool(t)
	must(t, os.MkdirAll(*dashboardPictures, 0o755))
	const column, row = 55, 34 // of Grafana's grid, in pixels
	end := time.Now().Unix()
	for _, d := range all {
		var page strings.Builder
		height := 0
		page.WriteString("<body style='margin:0;background:#f4f5f5;font:12px sans-serif'>")
		for _, p := range d.Panels {
			place := p.GridPos
			width, tall := place.W*column-8, place.H*row-8
			height = max(height, (place.Y+place.H)*row)
			fmt.Fprintf(&page, "<div style='position:absolute;background:#fff;border:1px solid #ddd;overflow:hidden;left:%dpx;top:%dpx;width:%dpx;height:%dpx'><b style='padding:4px'>%s</b>",
				place.X*column+4, place.Y*row+4, width, tall, html.EscapeString(p.Title))
			// of each series: seconds from the left, and what it is then
			most, values := 0.0, map[string][][2]float64{}
			for n, target := range p.Targets {
				var answer struct {
					Result []struct {
						Metric map[string]string
						Values [][2]any
					}
				}
				query := strings.NewReplacer("$job", ".*", "$__rate_interval", "10s").Replace(target.Expr)
				must(t, ask(fmt.Sprintf("/api/v1/query_range?step=1&start=%d&end=%d&query=%s", end-60, end, url.QueryEscape(query)), &answer))
				for i, series := range answer.Result {
					delete(series.Metric, "job")
					delete(series.Metric, "instance")
					name := fmt.Sprintf("%d.%d %v", n, i, slices.Sorted(maps.Values(series.Metric)))
					for _, v := range series.Values {
						y, err := strconv.ParseFloat(v[1].(string), 64)
						must(t, err)
						if y < 1e300 { // neither NaN nor infinite
							values[name] = append(values[name], [2]float64{v[0].(float64) - float64(end-60), y})
							most = max(most, y)
						}
					}
				}
			}
			names := slices.Sorted(maps.Keys(values))
			switch {
			case len(names) == 0:
				page.WriteString("<p style='color:#888;padding:4px'>no data")
			case p.Type == "stat":
				last := values[names[0]]
				fmt.Fprintf(&page, "<p style='font-size:28px;text-align:center;margin:12px'>%.4g", last[len(last)-1][1])
			default:
				fmt.Fprintf(&page, "<div style='color:#888;padding:0 4px'>at most %.4g</div><svg width=%d height=%d>", most, width, tall-60)
				for i, name := range names {
					var points strings.Builder
					for _, v := range values[name] {
						fmt.Fprintf(&points, "%.1f,%.1f ", v[0]/60*float64(width), float64(tall-62)*(1-v[1]/max(most, 1e-9)))
					}
					fmt.Fprintf(&page, "<polyline fill=none stroke='hsl(%d 70%% 45%%)' stroke-width=1.5 points='%s'/>", i*67%360, points.String())
				}
				page.WriteString("</svg><div style='color:#555;white-space:nowrap;padding:0 4px'>")
				for i, name := range names[:min(len(names), 5)] {
					_, labels, _ := strings.Cut(name, " ")
					fmt.Fprintf(&page, "<span style='color:hsl(%d 70%% 45%%)'>%s</span> ", i*67%360, html.EscapeString(labels))
				}
				page.WriteString("</div>")
			}
			page.WriteString("</div>")
		}
		file := filepath.Join(t.TempDir(), d.UID+".html")
		must(t, os.WriteFile(file, []byte(page.String()), 0o600))
		chromium, err := exec.LookPath("chromium")
		must(t, err)
		harness.MustRun(t, harness.Command{Path: chromium, Args: []string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(),
			fmt.Sprintf("--window-size=%d,%d", 24*column, height), "--screenshot=" + filepath.Join(*dashboardPictures, d.UID+".png"), "file://" + file}})
	}
}
