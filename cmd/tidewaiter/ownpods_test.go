package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// The server's own pods are found at every door by what they run, also one that tells the digest of
// a config, alone or behind the repository, after its tag has moved, one that has not started, and
// one whose image is not imported; clusterpods selects the same pods as tidewaiter pods.
func TestOwnPodsAreFound(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	target := newAPITarget(config).Config
	core := kubernetes.NewForConfigOrDie(target).CoreV1()
	create := func(name, image, imageID string) {
		t.Helper()
		pod := newPod(name)
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
		if pod, err = core.Pods(metav1.NamespaceDefault).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: image, ImageID: imageID}}
		if _, err := core.Pods(metav1.NamespaceDefault).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	image, err := l.images.Get(t.Context(), l.digests["old"], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := manifest.Metadata(image)
	if err != nil || metadata.ID == "" || metadata.ID == image.Name {
		t.Fatalf("the image has no config: %v", err)
	}
	app := l.a.Host + "/team/app"
	elsewhere := "sha256:107fed176cc7" + strings.Repeat("0", 52)
	create("loaded", app+":v1", metadata.ID)
	create("docker", app+":v1", "docker://"+metadata.ID)
	create("named", app+":v1", app+"@"+metadata.ID)
	create("pending", app+":v1", "")
	create("elsewhere", "nowhere.invalid/x/y:1", "nowhere.invalid/x/y@"+elsewhere)
	create("platform", l.a.Host+"/team/multi:v1", l.a.Host+"/team/multi@"+l.digests["arm64"])

	client, err := pathClient(target)
	if err != nil {
		t.Fatal(err)
	}
	short := func(digest string) string { return strings.TrimPrefix(digest, "sha256:")[:12] }
	for _, tt := range []struct {
		asked string
		want  []string
	}{
		{app + "@" + l.digests["old"], []string{"docker", "loaded", "named"}},
		{l.digests["old"], []string{"docker", "loaded", "named"}},
		{short(l.digests["old"]), []string{"docker", "loaded", "named"}},
		{metadata.ID, []string{"docker", "loaded", "named"}},
		{app + "@" + l.digests["new"], []string{"pending"}},
		{short(l.digests["new"]), []string{"pending"}},
		{app + ":v1", []string{"docker", "loaded", "named", "pending"}},
		{app, []string{"docker", "loaded", "named", "pending"}},
		{elsewhere, []string{"elsewhere"}},
		{"107fed176cc7", []string{"elsewhere"}},
		{l.a.Host + "/team/multi:v1", []string{"platform"}},
		{l.digests["index"], []string{"platform"}},
		{short(l.digests["arm64"]), []string{"platform"}},
	} {
		soon(t, fmt.Sprintf("pods %s are %v", tt.asked, tt.want), func() bool {
			stdout, _, code := l.run("pods", tt.asked)
			var got []string
			for line := range strings.Lines(stdout) {
				if name, ok := strings.CutPrefix(strings.Fields(line)[0], "local:default:"); ok {
					got = append(got, name)
				}
			}
			return code == cli.ExitOK && slices.Equal(got, tt.want)
		})
		raw, err := client.Get().AbsPath(clusterPodsPath).Param("fieldSelector", "image="+tt.asked).Param("limit", "1").DoRaw(t.Context())
		if err != nil || !strings.Contains(string(raw), `"local:default:`+tt.want[0]+`"`) || strings.Contains(string(raw), `"continue":"`) != (len(tt.want) > 1) {
			t.Errorf("the first of clusterpods with image=%s is %s, %v", tt.asked, raw, err)
		}
	}

	stdout, stderr, code := l.run("pods", "--outdated", app+":v1")
	if code != cli.ExitOK || !strings.Contains(stdout, "local:default:loaded") || !strings.Contains(stdout, "local:default:docker") || !strings.Contains(stdout, "local:default:named") || strings.Contains(stdout, "pending") || !strings.Contains(stdout, short(l.digests["old"])) {
		t.Errorf("outdated are %d %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = l.run("images")
	if text := strings.Join(strings.Fields(stdout), " "); code != cli.ExitOK || !strings.Contains(text, app+":v1 "+short(l.digests["old"])+" NoPolicy 3 ") || !strings.Contains(text, app+":v1 "+short(l.digests["new"])+" NoPolicy 1 ") {
		t.Errorf("images are %d %s%s", code, stdout, stderr)
	}
}

// Where only pods that have not started, or tell nothing that is known, may run an image, that is
// said, and no cluster is blamed.
func TestWhichPodsMayRunIt(t *testing.T) {
	t.Parallel()
	about := &found{Answer: answers.Answer{
		Question: answers.Question{Reference: "r.example.com/app:v1"}, Meaning: answers.Meaning{Repository: "r.example.com/app"}, Running: &answers.Running{},
	}}
	l := &looker{}
	for reason, want := range map[string][]string{
		answers.ErrNotStarted.Error():       {"no pod is known to run r.example.com/app:v1, but pods that have not started", "tidewaiter pods r.example.com/app, for the pods that name its tags"},
		"the cluster prod was not read yet": {"not all pods are known", "kubectl get clusters"},
	} {
		about.Unknowns = []answers.UnknownPart{{Part: "running", Reason: reason}}
		err := l.noPods(nil, about, "")
		exit, _ := errors.AsType[*cli.Exit](err)
		hint, _ := errors.AsType[*cli.HintError](err)
		if exit == nil || hint == nil || exit.Code != cli.ExitNone || !strings.Contains(err.Error(), want[0]) || !strings.Contains(hint.Hint, want[1]) {
			t.Errorf("%s: %v, %+v", reason, err, hint)
		}
	}
}
