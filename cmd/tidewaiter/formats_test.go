package main

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// played answers in place of a server, and returns the flags that name it.
func played(t *testing.T, answer http.HandlerFunc) (flags []string) {
	t.Helper()
	server := httptest.NewTLSServer(answer)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--server", server.URL, "--certificate-authority", ca}
}

// What a verb says to people of what is unknown, and of a tag that moved although it must not, it
// says in every format: in the document, or on standard error.
func TestEveryFormatSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	const unknown, moved, failed, unseen = "nothing is known of cluster prod", "app:v1 must not move", "Unavailable: the registry hangs", "prod was not seen at night"
	digest, former := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	ref := reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "v1"}
	day := metav1.NewTime(time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC))
	tag := tags.New(ref)
	tags.Lead(tag, ref, former, day)
	tags.Lead(tag, ref, digest, metav1.NewTime(day.Add(time.Hour)))
	tag.Status.Conditions = []imagev1.TagEventCondition{{Type: imagev1.ImportSuccess, Status: "False", Reason: "Unavailable", Message: "the registry hangs", LastTransitionTime: day}}
	tag.SetGroupVersionKind(imagev1.GroupVersion.WithKind("ImageTag"))
	image := &imagev1.Image{TypeMeta: metav1.TypeMeta{APIVersion: imagev1.GroupVersion.String(), Kind: "Image"}, ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: ref.Name() + "@" + digest}
	answer := answers.Answer{
		Question: answers.Question{Reference: ref.String()}, State: answers.Found, Meaning: answers.Meaning{Reference: ref.String(), Repository: ref.Name(), Tag: "v1", Digest: digest},
		Verdict:  &answers.Verdict{Reference: ref.String(), Verified: verdicts.VerifiedUnknown, Policies: []string{"signed"}, Reason: "Unreadable", Message: "no signature can be read"},
		Checked:  answers.Checked{Since: &day, Overwritten: &answers.Overwritten{From: former, To: digest, Since: day, Rules: []string{"v*"}, Message: moved}},
		Unknowns: []answers.UnknownPart{{Part: answers.PartRunning, Reason: unknown}},
	}
	run := imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "r1"}, Spec: imageruns.ImageRunSpec{Cluster: "prod", Image: ref.String(), Digest: digest, From: day},
		Status: imageruns.ImageRunStatus{Verdicts: []imageruns.RunVerdict{{Verified: verdicts.VerifiedTrue, Since: day}}}}
	var ran []imageruns.ImageRun
	flags := played(t, func(w http.ResponseWriter, r *http.Request) {
		var answered any
		switch path := r.URL.Path; {
		case path == reviewsPath:
			answered = &answers.ReferenceReview{Status: answers.ReferenceReviewStatus{References: []answers.Answer{answer}}}
		case strings.HasSuffix(path, "/images/"+digest):
			answered = image
		case strings.HasSuffix(path, "/imagetags"):
			answered = &imagev1.ImageTagList{TypeMeta: metav1.TypeMeta{APIVersion: imagev1.GroupVersion.String(), Kind: "ImageTagList"}}
		case strings.Contains(path, "/imagetags/"):
			answered = tag
		case strings.HasSuffix(path, "/"+imageruns.Resource):
			w.Header().Set("Warning", `299 - "`+unseen+`"`)
			answered = &imageruns.ImageRunList{Items: ran}
		default:
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		if err := json.NewEncoder(w).Encode(answered); err != nil {
			t.Error(err)
		}
	})
	verb := func(format string, args ...string) (code int, stdout, stderr string) {
		t.Helper()
		if format != "" {
			args = append(args, "-o", format)
		}
		return tidewaiter(t, append(args, flags...)...)
	}
	for args, says := range map[string][]string{
		"get":                      {unknown, moved},
		"describe":                 {unknown, moved},
		"history":                  {failed, moved},
		"verify":                   {moved, "no signature can be read"},
		"get --at 2026-01-01":      {unseen, "is not recorded before"},
		"describe --at 2026-01-01": {unseen, "is not recorded before"},
		"history --verdicts":       {unseen},
		"ran --from 2026-01-01":    {unseen},
		"images --at 2026-01-01":   {unseen},
	} {
		fields := strings.Fields(args)
		cmd, _, err := newRootCommand().Find(fields)
		if err != nil {
			t.Fatal(err)
		}
		if ran = nil; len(fields) > 1 {
			ran = []imageruns.ImageRun{run}
		}
		if fields[0] != "images" {
			fields = append(fields, ref.String())
		}
		for _, format := range append([]string{""}, cmd.Flags().Lookup("output").Value.(*cli.Output).Formats()...) {
			_, stdout, stderr := verb(format, fields...)
			for _, want := range says {
				if !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), want) {
					t.Errorf("%s -o %q does not say %q:\n%s\n%s", args, format, want, stdout, stderr)
				}
			}
		}
	}

	// The newest line also has what is known of the tag now, as the document does.
	_, stdout, _ := verb("jsonl", "history", ref.String())
	var lines []map[string]any
	for text := range strings.Lines(stdout) {
		var line map[string]any
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	if len(lines) != 2 || lines[0]["digest"] != digest || lines[1]["digest"] != former {
		t.Fatalf("the lines of history are %s", stdout)
	}
	if how, ok := lines[0]["overwritten"].(map[string]any); !ok || how["message"] != moved || lines[0]["failing"] != failed {
		t.Errorf("the newest line is %v", lines[0])
	}
	if len(lines[1]) != 2 { // created and digest
		t.Errorf("a former line is %v", lines[1])
	}

	// That nothing is recorded is an error in every format.
	ran = nil
	for _, format := range append([]string{""}, cli.ListFormats...) {
		if code, _, stderr := verb(format, "history", "--verdicts", ref.String()); code != exitAbsent || !strings.Contains(stderr, "nothing is known to have run it") || !strings.Contains(stderr, unseen) {
			t.Errorf("-o %q of no verdicts: %d, %s", format, code, stderr)
		}
	}
}
