package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web/filters"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// auditEvents waits until the log at path has an event that last is true for, and returns
// the events and the text.
func auditEvents(t *testing.T, path string, last func(*auditv1.Event) bool) ([]auditv1.Event, string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var events []auditv1.Event
		found := false
		lines := bufio.NewScanner(bytes.NewReader(text))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e auditv1.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				break // it is being written
			}
			found = found || last(&e)
			events = append(events, e)
		}
		if found {
			return events, string(text)
		}
		if time.Now().After(deadline) {
			t.Fatalf("the audit log does not have what was done last:\n%s", text)
		}
	}
}

// auditLine is what a test compares of an event.
func auditLine(e *auditv1.Event) string {
	parts := []string{e.User.Username, e.Verb}
	if e.ImpersonatedUser != nil {
		parts[0] += " as " + e.ImpersonatedUser.Username
	}
	if o := e.ObjectRef; o != nil {
		parts = append(parts, path.Join(o.Resource, o.Subresource, o.Name))
	} else {
		parts = append(parts, e.RequestURI)
	}
	if strings.Contains(e.RequestURI, "dryRun=All") {
		parts = append(parts, "dry run")
	}
	if receiver, is := e.Annotations[hooks.ReceiverAnnotation]; is {
		parts = append(parts, "receiver="+receiver)
	}
	return strings.Join(append(parts, http.StatusText(int(e.ResponseStatus.Code))), " ")
}

// By default the audit log has what is changed and who is refused, whichever way a request
// takes, and nothing else: no read, no object, no secret.
func TestAuditOfChangesAndRefusals(t *testing.T) {
	t.Parallel()
	dir, config := t.TempDir(), servertest.WriteConfig(t, "receivers:\n- {name: harbour, type: quay, hosts: [quay.io], secretFile: secret}\n")
	const secret = "whoever-reads-this-is-a-receiver"
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), "secret"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	log := auditLog(dir)
	admin := serveWith(t, server.Options{DataDir: dir, ConfigFile: config, Audit: filters.NewAuditOptions(log)}, listen(t))
	images, err := imageclient.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	pods := kubernetes.NewForConfigOrDie(admin).CoreV1().Pods("default")
	other := restclient.CopyConfig(admin)
	other.Impersonate.UserName = "mallory"
	asOther := kubernetes.NewForConfigOrDie(other).CoreV1().Pods("default")

	image := createImage(t, images, "first")
	if _, err := images.Get(t.Context(), "first", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := images.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	watch, err := images.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch.Stop()
	image.Annotations = map[string]string{"note": "an-object-is-not-written-down"}
	if _, err := images.Update(t.Context(), image, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := newPod("web")
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.GenerateName = "", "made-"
	made, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Patch(t.Context(), made.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	invalid := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "invalid"}}
	if _, err := pods.Create(t.Context(), invalid, metav1.CreateOptions{}); err == nil {
		t.Error("an invalid pod was created")
	}
	if _, err := asOther.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("mallory may list")
	}
	if _, err := asOther.Watch(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("mallory may watch")
	}
	if _, err := asOther.Create(t.Context(), newPod("mallorys"), metav1.CreateOptions{}); err == nil {
		t.Error("mallory may create")
	}
	for _, r := range []struct{ method, path, token string }{
		{"GET", benchPath + "/first?access_token=" + secret, ""},
		{"GET", benchPath + "?watch=1", secret},
		{"POST", benchPath, secret},
		{"POST", "/hooks/harbour/" + secret, ""},
		{"POST", "/hooks/" + secret + "/harbour", ""},
		{"POST", "/HOOKS/harbour/" + secret, secret},
	} {
		send(t, admin, r.method, r.path, r.token, `{"docker_url":"quay.io/team/app","updated_tags":["v1"]}`)
	}
	zero := int64(0)
	if err := pods.Delete(t.Context(), made.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	events, text := auditEvents(t, log, func(e *auditv1.Event) bool {
		return e.Verb == "delete" && e.ObjectRef != nil && e.ObjectRef.Name == made.Name
	})

	const who = "tidewaiter-admin "
	want := []string{
		who + "create images/first Created",
		who + "update images/first OK",
		who + "create pods/web dry run Created",
		who + "create pods/" + made.Name + " Created",
		who + "patch pods/" + made.Name + " OK",
		who + "create pods/invalid Unprocessable Entity",
		who[:len(who)-1] + " as mallory list pods Forbidden",
		who[:len(who)-1] + " as mallory watch pods Forbidden",
		// The name is in the body, which is not read.
		who[:len(who)-1] + " as mallory create pods Forbidden",
		" get images/first Unauthorized",
		" watch images Unauthorized",
		" create images Unauthorized",
		" post /hooks/ receiver=harbour Accepted",
		" post /hooks/ receiver= Unauthorized",
		" post /hooks/ Not Found",
		who + "delete pods/" + made.Name + " OK",
	}
	var got []string
	for _, e := range events {
		if e.Level != auditv1.LevelMetadata || e.RequestObject != nil || e.ResponseObject != nil {
			t.Errorf("an event of level %s has an object: %+v", e.Level, e)
		}
		if !strings.HasPrefix(e.User.Username, "system:apiserver") && e.User.Username != "tidewaiter" {
			got = append(got, auditLine(&e))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("written down:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, not := range []string{secret, admin.BearerToken, "an-object-is-not-written-down"} {
		if strings.Contains(text, not) {
			t.Errorf("the log has %q", not)
		}
	}
	for path, mode := range map[string]os.FileMode{log: 0o600, filepath.Dir(log): 0o700 | os.ModeDir} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v; want %v", path, fi.Mode(), err, mode)
		}
	}
}

// A policy file is followed as kube-apiserver does: reads, watches and objects are there
// when it says so, and nothing is chosen besides.
func TestAuditFollowsItsPolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := filters.NewAuditOptions(auditLog(dir))
	o.PolicyFile = filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(o.PolicyFile, []byte(`apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- {level: Request, verbs: [create], resources: [{group: image.openshift.io}]}
- {level: Metadata, verbs: [get, watch, delete], resources: [{group: image.openshift.io}]}
- {level: None}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	admin := serveWith(t, server.Options{DataDir: dir, Audit: o}, listen(t))
	images, err := imageclient.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	createImage(t, images, "first")
	if _, err := images.Get(t.Context(), "first", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watch, err := images.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for range watch.ResultChan() {
	}
	if err := images.Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// A watch is over once the server has seen that its client left.
	seen := map[string]int{}
	events, _ := auditEvents(t, o.LogOptions.Path, func(e *auditv1.Event) bool {
		seen[e.Verb+" "+string(e.Stage)]++
		return seen["watch ResponseComplete"] > 0 && seen["delete ResponseComplete"] > 0
	})
	for _, e := range events {
		if e.Verb == "create" && e.Stage == auditv1.StageResponseComplete && (e.RequestObject == nil || !bytes.Contains(e.RequestObject.Raw, []byte("team/first"))) {
			t.Errorf("a creation without what was sent: %+v", e)
		}
	}
	for _, want := range []string{"create RequestReceived", "get ResponseComplete", "watch ResponseStarted"} {
		if seen[want] == 0 {
			t.Errorf("no event %q in %v", want, seen)
		}
	}
}

// With --audit-log-path "" nothing is written down.
func TestAuditSwitchedOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	admin := runProcess(t, dir, "--audit-log-path", "").Config
	if code := send(t, admin, "GET", "/version", "", ""); code != http.StatusUnauthorized {
		t.Errorf("GET /version: %d", code)
	}
	if _, err := os.Stat(filepath.Dir(auditLog(dir))); !os.IsNotExist(err) {
		t.Errorf("there is an audit log: %v", err)
	}
}

// A server whose audit log cannot be written serves, and says so.
func TestAuditLogThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("this system has no /dev/full")
	}
	dir := t.TempDir()
	o := filters.NewAuditOptions("/dev/full")
	o.LogOptions.MaxSize = 0 // a device is not exchanged
	images, err := imageclient.New(serveWith(t, server.Options{DataDir: dir, Audit: o}, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	createImage(t, images, "first")
	if _, err := images.Get(t.Context(), "first", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// The webhook backend is sent what the log gets, by kube-apiserver's flags: a change, a
// refusal, no read, and no token, neither in a path nor, whatever the policy says, in an object.
func TestAuditWebhook(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{"default": "", "all of everything": "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: RequestResponse\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var events []auditv1.Event
			var text bytes.Buffer
			collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				var list auditv1.EventList
				if err := json.NewDecoder(io.TeeReader(r.Body, &text)).Decode(&list); err != nil {
					t.Error(err)
				}
				events = append(events, list.Items...)
			}))
			t.Cleanup(collector.Close)
			folder := t.TempDir()
			write := func(file, content string) string {
				file = filepath.Join(folder, file)
				if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				return file
			}
			o, flags := filters.NewAuditOptions(""), pflag.NewFlagSet("", pflag.ContinueOnError)
			o.AddFlags(flags)
			args := []string{"--audit-webhook-mode=blocking", "--audit-webhook-config-file=" + write("collector.kubeconfig", `{"apiVersion": "v1", "kind": "Config", "current-context": "c",
				"clusters": [{"name": "h", "cluster": {"server": "`+collector.URL+`"}}], "contexts": [{"name": "c", "context": {"cluster": "h"}}]}`)}
			if policy != "" {
				args = append(args, "--audit-policy-file="+write("policy.yaml", policy))
			}
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			config := serveWith(t, server.Options{DataDir: t.TempDir(), Audit: o}, listen(t))
			admin := kubernetes.NewForConfigOrDie(config)
			token := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
			if got := whose(t, admin, token); got != "system:serviceaccount:ci:robot" {
				t.Errorf("the token is of %q", got)
			}
			if _, err := bearer(t, config, token).CoreV1().Pods("ci").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("the robot lists pods: %v", err)
			}
			send(t, config, "POST", "/apis/nowhere?access_token="+token, config.BearerToken, "{}")
			if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "ci", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			seen := map[string]bool{}
			for _, e := range events {
				seen[e.Verb+" "+e.User.Username] = true
				if e.ObjectRef != nil {
					seen[e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Subresource] = true
				}
			}
			for what, want := range map[string]bool{
				"create serviceaccounts/": true, "create serviceaccounts/token": true, "create tokenreviews/": true,
				"list system:serviceaccount:ci:robot": true, "post tidewaiter-admin": true, "get namespaces/": policy != "",
			} {
				if seen[what] != want {
					t.Errorf("%s: sent is %v, want %v", what, seen[what], want)
				}
			}
			for _, secret := range []string{token, config.BearerToken} {
				if strings.Contains(text.String(), secret) {
					t.Errorf("a token is among what is sent")
				}
			}
		})
	}
}
