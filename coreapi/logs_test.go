package coreapi_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
)

// logLine is a line as a container runtime writes it, at second n.
func logLine(n int, stream, text string) string {
	return fmt.Sprintf("2026-01-01T00:00:%02d.000000000Z %s F %s\n", n, stream, text)
}

// writeLog writes <restarts>.log of a container of a stored pod.
func writeLog(t *testing.T, dir string, p *corev1.Pod, container string, restarts int, lines ...string) string {
	t.Helper()
	folder := filepath.Join(dir, fmt.Sprintf("%s_%s_%s", p.Namespace, p.Name, p.UID), container)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(folder, fmt.Sprintf("%d.log", restarts))
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func (s *server) createPod(t *testing.T, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	made, err := s.CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (s *server) logs(ctx context.Context, pod string, opts *corev1.PodLogOptions) (string, error) {
	body, err := s.CoreV1().Pods("team").GetLogs(pod, opts).DoRaw(ctx)
	return string(body), err
}

func TestLogsFromFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, coreapi.Options{PodLogs: podlogs.Options{Dir: dir}})
	one := s.createPod(t, "team", pod("one"))
	writeLog(t, dir, one, "main", 0, logLine(1, "stdout", "before the restart"))
	writeLog(t, dir, one, "main", 1, logLine(1, "stdout", "a"), logLine(2, "stderr", "b"), logLine(3, "stdout", "c"))
	several := pod("several")
	several.Spec.Containers = append(several.Spec.Containers, corev1.Container{Name: "side", Image: "x"})
	several = s.createPod(t, "team", several)
	writeLog(t, dir, several, "side", 0, logLine(1, "stdout", "from the side"))
	mirror := pod("mirror")
	mirror.Spec.NodeName = "worker-1"
	mirror.Annotations = map[string]string{"kubernetes.io/config.mirror": "0123456789abcdef"}
	mirror = s.createPod(t, "team", mirror)
	static := mirror.DeepCopy()
	static.UID = "0123456789abcdef"
	writeLog(t, dir, static, "main", 0, logLine(1, "stdout", "static"))
	for name, uid := range map[string]string{"climbs": "../../..", "neighbour": "x/../team_one_" + string(one.UID)} {
		p := pod(name)
		p.Spec.NodeName = "worker-1"
		p.Annotations = map[string]string{"kubernetes.io/config.mirror": uid}
		s.createPod(t, "team", p)
	}
	s.createPod(t, "team", pod("silent"))
	crashed := s.createPod(t, "team", pod("crashed"))
	writeLog(t, dir, crashed, "main", 0, logLine(1, "stdout", "first"))
	writeLog(t, dir, crashed, "main", 1, logLine(1, "stdout", "second"))
	crashed.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", RestartCount: 1,
		State:                corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
		LastTerminationState: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
	}}
	if _, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), crashed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	at := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 2, 0, time.UTC))
	for _, test := range []struct {
		name, pod string
		opts      corev1.PodLogOptions
		want      string
		status    int32
		reason    string
	}{
		{name: "all", pod: "one", want: "a\nb\nc\n"},
		{name: "previous", pod: "one", opts: corev1.PodLogOptions{Previous: true}, want: "before the restart\n"},
		{name: "previous, followed", pod: "one", opts: corev1.PodLogOptions{Previous: true, Follow: true}, want: "before the restart\n"},
		{name: "waiting after a crash", pod: "crashed", opts: corev1.PodLogOptions{Follow: true}, want: "second\n"},
		{name: "previous after a crash", pod: "crashed", opts: corev1.PodLogOptions{Previous: true}, want: "second\n"},
		{name: "tailLines", pod: "one", opts: corev1.PodLogOptions{TailLines: ptr.To[int64](2)}, want: "b\nc\n"},
		{name: "tailLines 0", pod: "one", opts: corev1.PodLogOptions{TailLines: ptr.To[int64](0)}, want: ""},
		{name: "limitBytes", pod: "one", opts: corev1.PodLogOptions{LimitBytes: ptr.To[int64](3)}, want: "a\nb"},
		{name: "sinceTime", pod: "one", opts: corev1.PodLogOptions{SinceTime: &at}, want: "b\nc\n"},
		{name: "sinceSeconds", pod: "one", opts: corev1.PodLogOptions{SinceSeconds: ptr.To[int64](1)}, want: ""},
		{name: "sinceSeconds of all time", pod: "one", opts: corev1.PodLogOptions{SinceSeconds: ptr.To[int64](math.MaxInt64)}, want: "a\nb\nc\n"},
		{name: "timestamps", pod: "one", opts: corev1.PodLogOptions{Timestamps: true, TailLines: ptr.To[int64](1)}, want: "2026-01-01T00:00:03.000000000Z c\n"},
		{name: "container", pod: "several", opts: corev1.PodLogOptions{Container: "side"}, want: "from the side\n"},
		{name: "static pod", pod: "mirror", want: "static\n"},

		{name: "both since", pod: "one", opts: corev1.PodLogOptions{SinceSeconds: ptr.To[int64](1), SinceTime: &at}, status: 422, reason: "at most one of"},
		{name: "negative tail", pod: "one", opts: corev1.PodLogOptions{TailLines: ptr.To[int64](-1)}, status: 422, reason: "tailLines"},
		{name: "no limit at all, of no pod", pod: "absent", opts: corev1.PodLogOptions{LimitBytes: ptr.To[int64](0)}, status: 422, reason: "limitBytes"},
		{name: "no limit at all", pod: "one", opts: corev1.PodLogOptions{LimitBytes: ptr.To[int64](0)}, status: 422, reason: "limitBytes"},
		{name: "which container", pod: "several", status: 400, reason: "a container name must be specified for pod several, choose one of: [main side]"},
		{name: "no such container", pod: "one", opts: corev1.PodLogOptions{Container: "other"}, status: 400, reason: "not valid for pod"},
		{name: "a container that climbs", pod: "one", opts: corev1.PodLogOptions{Container: "../../etc"}, status: 400, reason: "not valid for pod"},
		{name: "no log yet", pod: "silent", status: 400, reason: "no log"},
		{name: "no previous log", pod: "mirror", opts: corev1.PodLogOptions{Previous: true}, status: 400, reason: "previous run"},
		{name: "a UID that climbs", pod: "climbs", status: 400, reason: "not a plain name"},
		{name: "another pod's UID", pod: "neighbour", status: 400, reason: "not a plain name"},
		{name: "no such pod", pod: "missing", status: 404},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got, err := s.logs(ctx, test.pod, &test.opts)
			if test.status != 0 {
				status, ok := err.(apierrors.APIStatus)
				if !ok || status.Status().Code != test.status || !strings.Contains(got, test.reason) {
					t.Errorf("got %q, %v; want %d with %q", got, err, test.status, test.reason)
				}
				return
			}
			if err != nil || got != test.want {
				t.Errorf("got %q, %v; want %q", got, err, test.want)
			}
		})
	}
}

// A hundred clients follow over HTTP. The log ends for half when the container
// ends; the other half has left before. Nothing of theirs stays in the server.
func TestFollowersOverHTTP(t *testing.T) {
	const followers = 100
	dir := t.TempDir()
	s := start(t, coreapi.Options{PodLogs: podlogs.Options{Dir: dir}})
	p := s.createPod(t, "team", pod("one"))
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
		{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	p, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	path := writeLog(t, dir, p, "main", 0, logLine(1, "stdout", "one"))
	if _, err := s.logs(t.Context(), "one", &corev1.PodLogOptions{}); err != nil {
		// the connection is made
		t.Fatal(err)
	}
	// HTTP/1.1 has a connection for each follower, as different clients have.
	config := rest.CopyConfig(s.config)
	config.NextProtos = []string{"http/1.1"}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()

	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var stay []*bufio.Reader
	for i := range followers {
		of := t.Context()
		if i%2 == 0 {
			of = ctx
		}
		stream, err := client.CoreV1().Pods("team").GetLogs("one", &corev1.PodLogOptions{Follow: true}).Stream(of)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		r := bufio.NewReader(stream)
		if got, err := r.ReadString('\n'); got != "one\n" {
			t.Fatalf("follower %d reads %q, %v", i, got, err)
		}
		if i%2 == 1 {
			stay = append(stay, r)
		}
	}
	leave()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(logLine(2, "stdout", "two")); err != nil {
		t.Fatal(err)
	}
	p.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	if _, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i, r := range stay {
		if rest, err := io.ReadAll(r); err != nil || string(rest) != "two\n" {
			t.Errorf("follower %d reads %q, %v to its end", i, rest, err)
		}
	}
	eventually(t, "the followers' goroutines end", func() (bool, any) {
		utilnet.CloseIdleConnectionsFor(client.RESTClient().(*rest.RESTClient).Client.Transport)
		now := runtime.NumGoroutine()
		return now <= before+10, fmt.Sprintf("%d now, %d before", now, before)
	})
}

func TestLogsFromKubelets(t *testing.T) {
	t.Parallel()
	requests := make(chan *http.Request, 1)
	kubelet := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		if strings.Contains(r.URL.Path, "/broken/") {
			http.Error(w, "no such container", http.StatusNotFound)
			return
		}
		fmt.Fprintln(w, "from the kubelet")
	}))
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	kubelet.StartTLS()
	defer kubelet.Close()
	host := strings.TrimPrefix(kubelet.URL, "https://")
	ca, cert, key := kubeletFiles(t, kubelet)

	run := func(p *corev1.Pod, opts podlogs.Options, ask *corev1.PodLogOptions) (string, error) {
		s := start(t, coreapi.Options{PodLogs: opts})
		made := s.createPod(t, "team", p)
		made.Status.HostIP = "127.0.0.1"
		made.Status.HostIPs = []corev1.HostIP{{IP: "127.0.0.1"}}
		if _, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return s.logs(t.Context(), p.Name, ask)
	}
	assigned := func(name string) *corev1.Pod {
		p := pod(name)
		p.Spec.NodeName = "worker-1"
		return p
	}
	_, port, _ := strings.Cut(host, ":")
	working := func() *podlogs.KubeletOptions {
		return &podlogs.KubeletOptions{Address: "{hostIP}:" + port, CertFile: cert, KeyFile: key, CAFile: ca}
	}

	got, err := run(assigned("one"), podlogs.Options{Kubelet: working()}, &corev1.PodLogOptions{Timestamps: true, TailLines: ptr.To[int64](5)})
	if err != nil || got != "from the kubelet\n" {
		t.Fatalf("got %q, %v", got, err)
	}
	r := <-requests
	if r.URL.Path != "/containerLogs/team/one/main" || r.URL.Query().Get("tailLines") != "5" || r.URL.Query().Get("timestamps") != "true" || len(r.TLS.PeerCertificates) != 1 {
		t.Errorf("the kubelet was asked %s with %d client certificates", r.URL, len(r.TLS.PeerCertificates))
	}

	// With a log directory that does not have the pod, the kubelet is asked too.
	if got, err := run(assigned("one"), podlogs.Options{Dir: t.TempDir(), Kubelet: working()}, &corev1.PodLogOptions{}); err != nil || got != "from the kubelet\n" {
		t.Errorf("after the files: %q, %v", got, err)
	} else {
		<-requests
	}
	if _, err := run(assigned("broken"), podlogs.Options{Kubelet: working()}, &corev1.PodLogOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a kubelet that answers 404: %v", err)
	} else {
		<-requests
	}

	// A kubelet of another authority is refused, unless the client waives it.
	other := working()
	other.CAFile = otherAuthority(t)
	if got, err := run(assigned("one"), podlogs.Options{Kubelet: other}, &corev1.PodLogOptions{}); err == nil || !strings.Contains(got, "certificate signed by unknown authority") {
		t.Errorf("an unknown authority: %q, %v", got, err)
	}
	if got, err := run(assigned("one"), podlogs.Options{Kubelet: other}, &corev1.PodLogOptions{InsecureSkipTLSVerifyBackend: true}); err != nil || got != "from the kubelet\n" {
		t.Errorf("verification waived: %q, %v", got, err)
	} else {
		<-requests
	}
	none := working()
	none.CAFile = ""
	if got, err := run(assigned("one"), podlogs.Options{Kubelet: none}, &corev1.PodLogOptions{}); !apierrors.IsBadRequest(err) {
		t.Errorf("no authority to verify by: %q, %v; want 400", got, err)
	}
	if got, err := run(assigned("one"), podlogs.Options{}, &corev1.PodLogOptions{}); !apierrors.IsBadRequest(err) || !strings.Contains(got, "no source") {
		t.Errorf("no source: %q, %v; want 400", got, err)
	}
	if got, err := run(pod("unassigned"), podlogs.Options{Kubelet: working()}, &corev1.PodLogOptions{}); err != nil || got != "" {
		t.Errorf("a pod on no node: %q, %v; want nothing", got, err)
	}
}

// kubeletFiles writes the authority of a TLS test server, and its own
// certificate and key to show it as a client.
func kubeletFiles(t *testing.T, s *httptest.Server) (ca, cert, key string) {
	t.Helper()
	dir := t.TempDir()
	pair := s.TLS.Certificates[0]
	private, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("ca.crt", "CERTIFICATE", s.Certificate().Raw), write("client.crt", "CERTIFICATE", pair.Certificate[0]), write("client.key", "PRIVATE KEY", private)
}
