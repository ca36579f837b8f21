package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/web"
)

// bearer is a client that knows nothing but a token.
func bearer(t *testing.T, config *restclient.Config, token string) *kubernetes.Clientset {
	t.Helper()
	c := restclient.AnonymousClientConfig(config)
	c.BearerToken, c.QPS = token, -1
	return newClientset(t, c)
}

func newClientset(t *testing.T, c *restclient.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// whose is who the server takes a token's bearer for, or "" if it does not know it.
func whose(t *testing.T, admin kubernetes.Interface, token string) string {
	t.Helper()
	review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !review.Status.Authenticated {
		return ""
	}
	return review.Status.User.Username
}

// serviceAccountToken makes a service account and returns a token of it.
func serviceAccountToken(t *testing.T, admin kubernetes.Interface, namespace, name string, request authenticationv1.TokenRequestSpec) string {
	t.Helper()
	_, err := admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	made, err := admin.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{Spec: request}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

func serveIn(t *testing.T, dir string) *restclient.Config {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, dir, listener)
}

// A leaked token and certificate of the administrator's are refused soon after they were
// rotated, while both are used as hard as they can be, and the watches that they began end;
// whoever has another token or certificate notices nothing.
func TestLeakedCredentialIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := web.LoadCredentials(dir, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(dir, "pki", "tokens.csv")
	appendTo(t, tokens, "other-token,other,other,\"system:masters\"\n")
	config := serveIn(t, dir)
	leakedToken := config.BearerToken
	leakedCert := restclient.AnonymousClientConfig(config)
	leakedCert.CertData, leakedCert.KeyData = mustRead(t, dir, "pki/admin.crt"), mustRead(t, dir, "pki/admin.key")
	leakedCert.QPS = -1

	thieves := map[string]*kubernetes.Clientset{"token": bearer(t, config, leakedToken), "certificate": newClientset(t, leakedCert)}
	other := bearer(t, config, "other-token")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var load sync.WaitGroup
	var rotated atomic.Bool
	var served atomic.Int64
	refused := map[string]chan error{}
	for name, thief := range thieves {
		refused[name] = make(chan error, 1)
		load.Go(func() {
			for ctx.Err() == nil {
				_, err := thief.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
				if err != nil && ctx.Err() == nil {
					if !rotated.Load() {
						t.Errorf("the %s was refused before it was rotated: %v", name, err)
					}
					refused[name] <- err
					return
				}
				served.Add(1)
			}
		})
	}
	load.Go(func() {
		for ctx.Err() == nil {
			if _, err := other.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); err != nil && ctx.Err() == nil {
				t.Errorf("another administrator was disturbed: %v", err)
				return
			}
		}
	})

	// Watches of a thief last for as long as the thief likes, those of stored bytes, too.
	year := int64(365 * 24 * 3600)
	watch := func(c *kubernetes.Clientset, path string) io.ReadCloser {
		stream, err := c.RESTClient().Get().AbsPath(path).Param("watch", "1").Param("timeoutSeconds", strconv.FormatInt(year, 10)).
			Param("sendInitialEvents", "true").Param("resourceVersionMatch", "NotOlderThan").Param("allowWatchBookmarks", "true").Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	var watches []io.ReadCloser
	for _, thief := range thieves {
		watches = append(watches, watch(thief, "/api/v1/namespaces"), watch(thief, "/apis/image.openshift.io/v1/images"))
	}
	others := watch(other, "/api/v1/namespaces")
	defer others.Close()
	servertest.Eventually(t, "load", func() bool { return served.Load() > 20 })
	rotated.Store(true)
	var stdout, stderr servertest.LogBuffer
	if code := run(t.Context(), []string{"credentials", "rotate", "--data-dir", dir}, nil, &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if !strings.Contains(stdout.String(), "the server refuses the old ones") {
		t.Errorf("it says %q", &stdout)
	}
	// Once the verb is done, the old ones are refused.
	for name, thief := range map[string]*kubernetes.Clientset{"token": bearer(t, config, leakedToken), "certificate": newClientset(t, leakedCert)} {
		if _, err := thief.CoreV1().Namespaces().List(ctx, metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("the old %s: %v", name, err)
		}
	}
	for name, err := range refused {
		select {
		case err := <-err:
			if !apierrors.IsUnauthorized(err) {
				t.Errorf("the thief of the %s was told %v", name, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("the %s is still good", name)
		}
	}
	for _, stream := range watches {
		// It ends; that of a test that fails ends with the test's time.
		if _, err := io.Copy(io.Discard, stream); err != nil {
			t.Errorf("the end of a watch: %v", err)
		}
		stream.Close()
	}
	if _, err := other.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "made-after-the-rotation"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	events := bufio.NewScanner(others)
	events.Buffer(nil, 1<<20)
	for !strings.Contains(events.Text(), "made-after-the-rotation") {
		if !events.Scan() {
			t.Fatalf("the watch of another administrator ended: %v", events.Err())
		}
	}
	stop()
	load.Wait()

	fresh, err := kubeconfigConfig(filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	if fresh.BearerToken == leakedToken {
		t.Error("admin.kubeconfig holds the leaked token")
	}
	if _, err := newClientset(t, fresh).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the new token: %v", err)
	}
	cert := restclient.AnonymousClientConfig(config)
	cert.CertData, cert.KeyData = mustRead(t, dir, "pki/admin.crt"), mustRead(t, dir, "pki/admin.key")
	if _, err := newClientset(t, cert).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the new certificate: %v", err)
	}
	if !bytes.Contains(mustRead(t, dir, "pki/tokens.csv"), []byte("other-token,other,other,system:masters\n")) {
		t.Error("the other line of tokens.csv is gone")
	}
}

// Where no server runs the next one knows only the new credential, and a certificate
// that is not of the directory's authority cannot be revoked.
func TestRotateWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var stdout, stderr servertest.LogBuffer
	if code := run(t.Context(), []string{"credentials", "rotate", "--data-dir", filepath.Join(dir, "none")}, nil, &stdout, &stderr); code == cli.ExitOK {
		t.Error("credentials of no directory were rotated")
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); err == nil {
		t.Error("a directory was made")
	}
	if _, err := web.LoadCredentials(dir, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	old := string(mustRead(t, dir, "pki/tokens.csv"))
	key := mustRead(t, dir, "pki/admin.key")
	if code := run(t.Context(), []string{"credentials", "rotate", "--data-dir", dir}, nil, &stdout, &stderr); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if old == string(mustRead(t, dir, "pki/tokens.csv")) || bytes.Equal(key, mustRead(t, dir, "pki/admin.key")) {
		t.Error("the credential is the old one")
	}
	stranger := t.TempDir()
	if _, err := web.LoadCredentials(stranger, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	if code := run(t.Context(), []string{"credentials", "rotate", "--data-dir", dir, "--revoke", filepath.Join(stranger, "pki", "admin.crt")}, nil, &stdout, &stderr); code == cli.ExitOK {
		t.Error("a certificate of another authority was revoked")
	}
}

// What credentials create makes is all that servers share: one that may only read it starts with
// it, and it is not made twice.
func TestCreateSharedCredentials(t *testing.T) {
	t.Parallel()
	shared := filepath.Join(t.TempDir(), "pki")
	create := func() (int, string) {
		t.Helper()
		var stdout, stderr servertest.LogBuffer
		code := run(t.Context(), []string{"credentials", "create", "--pki-dir", shared}, nil, &stdout, &stderr)
		return code, stdout.String() + stderr.String()
	}
	if code, out := create(); code != cli.ExitOK || !strings.Contains(out, "Keep it secret") {
		t.Fatalf("exit code %d: %s", code, out)
	}
	made := map[string]string{}
	entries, err := os.ReadDir(shared)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		made[e.Name()] = string(mustRead(t, shared, e.Name()))
	}
	if code, out := create(); code == cli.ExitOK || !strings.Contains(out, "has credentials already") {
		t.Errorf("the second time: exit code %d: %s", code, out)
	}
	if _, err := web.LoadSharedCredentials(t.TempDir(), shared, nil, time.Now()); err != nil {
		t.Fatal(err)
	}
	entries, err = os.ReadDir(shared)
	if err != nil || len(entries) != len(made) {
		t.Errorf("a server has made %d files of %d: %v", len(entries), len(made), err)
	}
	for name, text := range made {
		if string(mustRead(t, shared, name)) != text {
			t.Errorf("a server has changed %s", name)
		}
	}
	if made["sa.key"] == "" || made["sa.pub"] == "" {
		t.Errorf("made without a key for tokens of service accounts: %q", slices.Sorted(maps.Keys(made)))
	}
}

// A token of a service account says whose it is, is good for its audience alone, and is
// worth nothing once the account, or the pod that it is bound to, is gone.
func TestServiceAccountTokens(t *testing.T) {
	t.Parallel()
	admin := newClientset(t, serveIn(t, t.TempDir()))
	const robot = "system:serviceaccount:ci:robot"
	token := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
	if got := whose(t, admin, token); got != robot {
		t.Errorf("the token is of %q", got)
	}
	if got := whose(t, admin, token[:len(token)-4]+"AAAA"); got != "" {
		t.Errorf("a token with another signature is of %q", got)
	}
	foreign := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{Audiences: []string{"vault"}})
	if got := whose(t, admin, foreign); got != "" {
		t.Errorf("a token for others is of %q here", got)
	}
	// For whom it is, it is good.
	review, err := admin.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: foreign, Audiences: []string{"vault"}}}, metav1.CreateOptions{})
	if err != nil || !review.Status.Authenticated || review.Status.User.Username != robot {
		t.Errorf("%v, %+v", err, review)
	}

	pod, err := admin.CoreV1().Pods("ci").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec:       corev1.PodSpec{ServiceAccountName: "robot", Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/app:1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bound := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "job", UID: pod.UID}})
	if got := whose(t, admin, bound); got != robot {
		t.Errorf("the pod's token is of %q", got)
	}
	now := int64(0)
	if err := admin.CoreV1().Pods("ci").Delete(t.Context(), "job", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the token of a pod that is gone", func() bool { return whose(t, admin, bound) == "" })
	if got := whose(t, admin, token); got != robot {
		t.Errorf("the account's own token is of %q", got)
	}
	if err := admin.CoreV1().ServiceAccounts("ci").Delete(t.Context(), "robot", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the token of an account that is gone", func() bool { return whose(t, admin, token) == "" })
	// One of the same name is another.
	again := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
	if got := whose(t, admin, again); got != robot {
		t.Errorf("the new account's token is of %q", got)
	}
	if got := whose(t, admin, token); got != "" {
		t.Errorf("the old account's token is of %q", got)
	}
}

// Each namespace has its service account, again when it was deleted, and a namespace
// that is deleted does not come back with one.
func TestEachNamespaceHasItsServiceAccount(t *testing.T) {
	t.Parallel()
	admin := newClientset(t, serveIn(t, t.TempDir()))
	has := func(namespace string) bool {
		_, err := admin.CoreV1().ServiceAccounts(namespace).Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	}
	if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "service accounts", func() bool { return has("default") && has("kube-system") && has("team") })
	before, err := admin.CoreV1().ServiceAccounts("team").Get(t.Context(), "default", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := admin.CoreV1().ServiceAccounts("team").Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "another service account", func() bool {
		after, err := admin.CoreV1().ServiceAccounts("team").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil && after.UID != before.UID
	})
	if err := admin.CoreV1().Namespaces().Delete(t.Context(), "team", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the end of a namespace", func() bool {
		_, err := admin.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	// What the controller would do if it had not heard of that yet.
	_, err = admin.CoreV1().ServiceAccounts("team").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the default service account of no namespace: %v", err)
	}
	if _, err := admin.CoreV1().Namespaces().Get(t.Context(), "team", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is back: %v", err)
	}
}

// A new key signs what is asked for from then on. What the old key signed is good until
// it ends, or until the key is taken away.
func TestSigningKeyIsRotatedWhileServing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	admin := newClientset(t, serveIn(t, dir))
	// it names the key
	key := func(token string) string { header, _, _ := strings.Cut(token, "."); return header }
	old := serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
	if _, err := web.Rotate(dir, web.Rotation{SigningKey: true}, time.Now()); err != nil {
		t.Fatal(err)
	}
	admin = newClientset(t, newKubeconfig(t, dir, admin))
	var fresh string
	servertest.Eventually(t, "a token of the new key", func() bool {
		fresh = serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
		return key(fresh) != key(old)
	})
	for what, token := range map[string]string{"old": old, "new": fresh} {
		if got := whose(t, admin, token); got != "system:serviceaccount:ci:robot" {
			t.Errorf("the token of the %s key is of %q", what, got)
		}
	}
	if set, err := admin.RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context()); err != nil || bytes.Count(set, []byte(`"kid"`)) != 2 {
		t.Errorf("the keys that others are told of: %v %s", err, set)
	}
	// The leaked key is taken away: the signing one still verifies what it signs.
	if err := os.WriteFile(filepath.Join(dir, "pki", "sa.pub"), bytes.TrimPrefix(mustRead(t, dir, "pki/sa.pub"), firstBlock(mustRead(t, dir, "pki/sa.pub"))), 0o644); err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "the token of a key that was taken away", func() bool { return whose(t, admin, old) == "" })
	if got := whose(t, admin, fresh); got != "system:serviceaccount:ci:robot" {
		t.Errorf("the new token is of %q", got)
	}
}

// firstBlock is the first block of a file in PEM.
func firstBlock(data []byte) []byte {
	const end = "-----END PUBLIC KEY-----\n"
	return data[:bytes.Index(data, []byte(end))+len(end)]
}

// newKubeconfig waits until admin.kubeconfig holds a token that is good.
func newKubeconfig(t *testing.T, dir string, old *kubernetes.Clientset) (config *restclient.Config) {
	t.Helper()
	servertest.Eventually(t, "the old token's end", func() bool {
		_, err := old.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return apierrors.IsUnauthorized(err)
	})
	servertest.Eventually(t, "a new kubeconfig", func() bool {
		var err error
		if config, err = kubeconfigConfig(filepath.Join(dir, "admin.kubeconfig")); err != nil {
			return false
		}
		_, err = newClientset(t, config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	return config
}

// Who loses pki/ loses no data. The start says what it costs.
func TestLostPKICostsCredentialsAlone(t *testing.T) {
	dir := t.TempDir()
	var log servertest.LogBuffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	open := func() (*server.Server, error) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return server.Open(t.Context(), server.Options{DataDir: dir}, listener)
	}
	serve := func(use func(*kubernetes.Clientset)) {
		s, err := open()
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		err = s.Run(ctx, func(context.Context) error {
			defer stop()
			config, err := kubeconfigConfig(s.Credentials.Kubeconfig)
			if err == nil {
				use(newClientset(t, config))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var token string
	serve(func(admin *kubernetes.Clientset) {
		token = serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})
	})
	if strings.Contains(log.String(), "is gone") {
		t.Errorf("a first start says that something was lost: %s", &log)
	}
	if err := os.RemoveAll(filepath.Join(dir, "pki")); err != nil {
		t.Fatal(err)
	}
	serve(func(admin *kubernetes.Clientset) {
		if _, err := admin.CoreV1().ServiceAccounts("ci").Get(t.Context(), "robot", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if got := whose(t, admin, token); got != "" {
			t.Errorf("a token of the lost key is of %q", got)
		}
	})
	if !strings.Contains(log.String(), "No data was lost") || !strings.Contains(log.String(), "admin.kubeconfig") {
		t.Errorf("it does not say what was lost: %s", &log)
	}
}

func mustRead(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(data, text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
