package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"unicode"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// hostileText rings, colours, turns the line around and is not UTF-8.
const hostileText = "said \a\x1b[31m\u009b31m\u202e\xff."

// wantPrintable fails unless s has the text, and nothing that does more than be read.
func wantPrintable(t *testing.T, where, s string) {
	t.Helper()
	if !strings.Contains(s, "said ") {
		t.Errorf("%s has not what was said: %q", where, s)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%s has %q", where, s[i:][:min(20, len(s)-i)])
	}
}

// What registries and pushers say is made printable on each way to a person: the log,
// Events, and what import writes to a terminal.
func TestAttackTextReachesNoTerminal(t *testing.T) {
	t.Run("log", func(t *testing.T) {
		for name, log := range map[string]func(){
			"slog message": func() { slog.Warn(hostileText) },
			"slog value":   func() { slog.Warn("x", "err", errors.New(hostileText), "text", hostileText) },
			"slog key":     func() { slog.Warn("x", hostileText, 1) },
			"klog":         func() { klog.Warning(hostileText) },
			"klog error":   func() { klog.ErrorS(errors.New(hostileText), "x", "text", hostileText) },
			"klog logger":  func() { klog.Background().Info(hostileText, "text", hostileText) },
		} {
			out := logAt(t, 10)
			log()
			wantPrintable(t, name, out.String())
		}
	})

	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "x"}}
	for _, format := range append(bulk.Outputs(), "") {
		t.Run("import -o "+format, func(t *testing.T) {
			var errOut servertest.LogBuffer
			r := bulk.NewReport(format, "https://127.0.0.1:1", io.Discard, &errOut, bulk.NewProgress(io.Discard))
			r.Add("r.example.com/a", &importer.Result{Warnings: []string{hostileText}, Images: []importer.ImageResult{{Image: image}}}, nil)
			r.Add("r.example.com/b", nil, fmt.Errorf("the registry: %s", hostileText))
			r.Add("r.example.com/c", nil, &pull.Error{Reason: pull.NotAnImage, Message: "it is an artifact that holds " + hostileText})
			_ = r.End(nil, pull.Traffic{}, 0)
			wantPrintable(t, "standard error", errOut.String())
		})
	}

	t.Run("error", func(t *testing.T) {
		var errOut servertest.LogBuffer
		run(t.Context(), []string{"import", hostileText}, strings.NewReader(""), io.Discard, &errOut)
		wantPrintable(t, "standard error", errOut.String())
		var file servertest.LogBuffer
		run(t.Context(), []string{"verify", "--policy", hostileText, "r.example.com/a"}, strings.NewReader(""), io.Discard, &file)
		wantPrintable(t, "what is said of a file", file.String())
	})

	t.Run("progress", func(t *testing.T) {
		var out servertest.LogBuffer
		bulk.NewProgress(&out).Note(hostileText)
		wantPrintable(t, "a line above the progress", out.String())
	})

	t.Run("verify", func(t *testing.T) {
		var errOut bytes.Buffer
		printWarnings(&errOut, []string{hostileText})
		wantPrintable(t, "a warning", errOut.String())

		host, policy := signedRegistry(t)
		proxy := behindProxy(t, host, policy, func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/referrers/") {
				return false
			}
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"errors":[{"code":"DENIED","message":"said \u0007\u001b[31m\u202e"}]}`)
			return true
		})
		_, _, stderr := tidewaiter(t, "verify", "--policy", policy, proxy+"/harbour/buoy:v1")
		wantPrintable(t, "what verify warns of", stderr)
	})

	t.Run("spool list", func(t *testing.T) {
		flags := played(t, func(w http.ResponseWriter, _ *http.Request) {
			_ = json.NewEncoder(w).Encode(admin.SpoolAnswer{Jobs: []*job.Shown{{ID: 1, Error: hostileText}}})
		})
		_, stdout, stderr := tidewaiter(t, append([]string{"spool", "list"}, flags...)...)
		wantPrintable(t, "the table", stdout+stderr)
	})

	t.Run("platform", func(t *testing.T) {
		config := serve(t)
		images, err := imageclient.New(config)
		if err != nil {
			t.Fatal(err)
		}
		registry := registrytest.New(t)
		pushed(t, registry, "team/app:v1", `{"os":"said \u0007\u001b[31m\u202e","architecture":"\u009b"}`, nil)
		result := importInto(t, images, nil, registry.Host+"/team/app:v1")
		wantPrintable(t, "the result", result.Images[0].Platform)
		var out bytes.Buffer
		r := bulk.NewReport("wide", "https://127.0.0.1:1", &out, io.Discard, bulk.NewProgress(io.Discard))
		r.Add(result.Reference, result, nil)
		_ = r.End(nil, pull.Traffic{}, 0)
		wantPrintable(t, "import -o wide", out.String())

		events := &imageevents.Recorder{}
		if err := events.Start(t.Context(), config, config, "test"); err != nil {
			t.Fatal(err)
		}
		events.Imported(result.Reference, result, errors.New(hostileText))
		events.Flush()
		list, err := kubernetes.NewForConfigOrDie(config).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=ImportFailed"})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("events: %v, %v", list, err)
		}
		wantPrintable(t, "an Event", list.Items[0].Message)
	})
}
