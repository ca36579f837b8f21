package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// The server's own pods are found at every door by what they run, also one that tells the digest of
// a config after its tag has moved, one that has not started, and one whose image is not imported;
// clusterpods selects the same pods as tidewaiter pods.
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
		{app + "@" + l.digests["old"], []string{"docker", "loaded"}},
		{l.digests["old"], []string{"docker", "loaded"}},
		{short(l.digests["old"]), []string{"docker", "loaded"}},
		{metadata.ID, []string{"docker", "loaded"}},
		{app + "@" + l.digests["new"], []string{"pending"}},
		{short(l.digests["new"]), []string{"pending"}},
		{app + ":v1", []string{"docker", "loaded", "pending"}},
		{app, []string{"docker", "loaded", "pending"}},
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
	if code != cli.ExitOK || !strings.Contains(stdout, "local:default:loaded") || !strings.Contains(stdout, "local:default:docker") || strings.Contains(stdout, "pending") || !strings.Contains(stdout, short(l.digests["old"])) {
		t.Errorf("outdated are %d %s%s", code, stdout, stderr)
	}
	stdout, stderr, code = l.run("images")
	if text := strings.Join(strings.Fields(stdout), " "); code != cli.ExitOK || !strings.Contains(text, app+":v1 "+short(l.digests["old"])+" NoPolicy 2 ") || !strings.Contains(text, app+":v1 "+short(l.digests["new"])+" NoPolicy 1 ") {
		t.Errorf("images are %d %s%s", code, stdout, stderr)
	}
}
