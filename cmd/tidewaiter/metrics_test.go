package main

import (
	"io"
	"os"
	"regexp"
	"testing"

	restclient "k8s.io/client-go/rest"
)

// TestMetricsDocument: docs/reference/metrics.md names each metric of ours that a server shows.
func TestMetricsDocument(t *testing.T) {
	document, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	config := serveIn(t, t.TempDir())
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	response, err := client.Get(config.Host + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	shown, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^# TYPE (tidewaiter_\S+)`).FindAllSubmatch(shown, -1)
	if len(names) < 20 {
		t.Fatalf("%d metrics were found", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile("`" + string(name[1]) + "[`{]").Match(document) {
			t.Errorf("docs/reference/metrics.md does not name %s", name[1])
		}
	}
}
