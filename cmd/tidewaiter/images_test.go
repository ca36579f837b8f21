package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// tidewaiter images, which is kubectl images, shows what the pods of a namespace run: each image
// once, by the name that the pods have for it, with the verdict for what runs and not for what the
// tag leads to now; and why something is not known.
func TestImagesOfPods(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	core := kubernetes.NewForConfigOrDie(newAPITarget(config).Config).CoreV1()
	create := func(namespace, name, image, runs string) {
		t.Helper()
		pod := newPod(name)
		pod.Namespace = namespace
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: image}, {Name: "same", Image: image}}
		pod, err := core.Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if runs == "" {
			return
		}
		started := pod.Spec.Containers
		if name == "half" {
			started = started[:1]
		}
		for _, c := range started {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: image, ImageID: l.a.Host + "/team/app@" + runs})
		}
		if _, err := core.Pods(namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	app := l.a.Host + "/team/app:v1"
	create("team", "current-1", app, l.digests["new"])
	create("team", "current-2", app, l.digests["new"])
	// What has not started is counted where it will run, and a pod once.
	create("team", "starting", app, "")
	create("team", "half", app, l.digests["new"])
	create("team", "before", app, l.digests["old"])
	create("team", "unknown", "nowhere.invalid/x/y:1", "")
	create("shop", "other", l.b.Host+"/team/app:v1", "")

	short := func(called string) string { return l.digests[called][len("sha256:"):][:12] }
	// What clusters run is followed, also what this one runs, so it is listed a moment later.
	lists := func(want []string, args ...string) {
		t.Helper()
		servertest.Eventually(t, fmt.Sprintf("%q lists %q", args, want), func() bool {
			stdout, _, code := l.run(append([]string{"images"}, args...)...)
			var got []string
			for line := range strings.Lines(stdout) {
				if cells := strings.Fields(line); !strings.HasPrefix(line, "  ") && cells[0] != "IMAGE" && cells[0] != "NAMESPACE" {
					got = append(got, strings.Join(cells, " ")+" ")
				}
			}
			lacks := func(w string) bool {
				return !slices.ContainsFunc(got, func(line string) bool { return strings.HasPrefix(line, w) })
			}
			return code == cli.ExitOK && len(got) == len(want) && !slices.ContainsFunc(want, lacks)
		})
	}
	team := []string{app + " " + short("new") + " NoPolicy 4 ", app + " " + short("old") + " NoPolicy 1 ", "nowhere.invalid/x/y:1 Unknown Unknown 1 "}
	lists(team, "-n", "team")
	other := l.b.Host + "/team/app:v1 " + short("other") + " NoPolicy 1 "
	lists([]string{other}, "-n", "shop")
	lists([]string{"team " + team[0], "team " + team[1], "team " + team[2], "shop " + other}, "-A")

	stdout, stderr, code := l.run("images", "-n", "shop", "-o", "json")
	var list usedImages
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != cli.ExitOK || list.Kind != "List" || len(list.Items) != 1 || list.Items[0].Meaning.Digest != l.digests["other"] || list.Items[0].Namespace != "shop" || list.Items[0].Pods != 1 {
		t.Errorf("as JSON: exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 0, "No resources found in default namespace."},
		{[]string{"-n", "empty"}, 0, "No resources found in empty namespace."},
		{[]string{"--cluster", "prod"}, cli.ExitNone, "does not follow a cluster prod"},
	} {
		if stdout, stderr, code := l.run(append([]string{"images"}, tt.args...)...); code != tt.code || stdout != "" || !strings.Contains(stderr, tt.want) {
			t.Errorf("%q: exit code %d: %s%s", tt.args, code, stdout, stderr)
		}
	}
}

// Kubectl runs the program as a plugin by the name of a link to it.
func TestPlugins(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][2]string{
		"tidewaiter":                         {"tidewaiter", "get x"},
		"/usr/local/bin/kubectl-tidewaiter":  {"kubectl tidewaiter", "get x"},
		"/home/ann/.krew/bin/kubectl-images": {"kubectl", "images get x"},
		"kubectl-images.exe":                 {"kubectl", "images get x"},
		"/opt/kubectl-who_signed":            {"kubectl who-signed", "get x"},
		"/opt/kubectl_complete-images":       {"tidewaiter", "__complete images get x"},
		"kubectl_complete-tidewaiter.exe":    {"tidewaiter", "__complete get x"},
	} {
		if got := [2]string{calledAs(path), strings.Join(commandLine([]string{path, "get", "x"}), " ")}; got != want {
			t.Errorf("%s is called %q, want %q", path, got, want)
		}
	}
}
