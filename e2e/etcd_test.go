package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// create makes Leases at one of the servers, and returns the revision of the last.
func (r *replicas) create(t *testing.T, at int, names ...string) (revision string) {
	t.Helper()
	for _, name := range names {
		made, err := r.clients[at].CoordinationV1().Leases("default").Create(t.Context(), counter(name, 0), metav1.CreateOptions{})
		must(t, err)
		revision = made.ResourceVersion
	}
	return revision
}

// awaitLeases waits until a server answers, and wants these Leases of it.
func (r *replicas) awaitLeases(t *testing.T, at int, want ...string) {
	t.Helper()
	harness.Eventually(t, func() error {
		list, err := r.clients[at].CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var have []string
		for _, l := range list.Items {
			have = append(have, l.Name)
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Fatalf("server %d has %q, want %q", at, have, want)
		}
		return nil
	})
}

// watchIsExpired wants a watch from a revision to be answered with 410.
func (r *replicas) watchIsExpired(t *testing.T, at int, revision string) {
	t.Helper()
	_, err := r.clients[at].CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a list at the earlier revision %s: %v", revision, err)
	}
	w, err := r.clients[at].CoordinationV1().Leases("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision})
	if err != nil {
		if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
			t.Errorf("a watch from revision %s: %v", revision, err)
		}
		return
	}
	defer w.Stop()
	if e := <-w.ResultChan(); !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) && !apierrors.IsGone(apierrors.FromObject(e.Object)) {
		t.Errorf("a watch from revision %s: %+v", revision, e)
	}
}

// TestEtcdAsksForCertificates: servers prove who they are to etcd, and etcd to them. One that has
// no certificate, or does not know etcd's authority, is not ready and says why.
func TestEtcdAsksForCertificates(t *testing.T) {
	t.Parallel()
	e := harness.StartSecureEtcd(t, 1, "--unsafe-no-fsync")
	r := startReplicasOn(t, e, 2)
	r.create(t, 0, "a")
	r.awaitLeases(t, 1, "a")

	secure := e.Flags()
	stranger := harness.StartSecureEtcd(t, 1, "--unsafe-no-fsync").Flags()
	for want, flags := range map[string][]string{
		"certificate required": secure[:4],
		"unknown authority":    append(stranger[2:], secure[:2]...),
	} {
		p := harness.Start(t, harness.ServeCommand(t, t.TempDir(), flags...))
		p.Stderr.AwaitMatch(t, regexp.MustCompile(`.*`+want+`.*`))
	}
}

// TestEtcdCertificatesExpire: if a certificate of the servers or of etcd expires, the servers are
// not ready and say why. When the file has been renewed, they go on without a restart.
func TestEtcdCertificatesExpire(t *testing.T) {
	t.Parallel()
	e := harness.StartSecureEtcd(t, 1, "--unsafe-no-fsync")
	r := startReplicasOn(t, e, 2)
	r.create(t, 0, "a")
	r.awaitLeases(t, 1, "a")
	have := []string{"a"}
	for i, c := range []struct {
		name, log string
		usage     x509.ExtKeyUsage
	}{
		{"client", "certificate", x509.ExtKeyUsageClientAuth},
		{"member", "certificate has expired", x509.ExtKeyUsageServerAuth},
	} {
		logged := make([]int, len(r.Servers))
		for i, s := range r.Servers {
			logged[i] = len(s.Logs())
		}
		e.Authority.IssueUntil(t, c.name, c.usage, time.Now().Add(-time.Minute))
		e.Restart(t, 0) // a connection outlives the certificate that it began with
		for i, s := range r.Servers {
			harness.Eventually(t, func() error {
				got := s.TryKubectl(t, "get", "--raw", "/readyz?verbose")
				if got.Code == 0 || !strings.Contains(got.Stdout+got.Stderr, "[-]etcd") || !strings.Contains(s.Logs()[logged[i]:], c.log) {
					return fmt.Errorf("the certificate of the %s has expired; server %d: %s%s\n%s", c.name, i, got.Stdout, got.Stderr, s.Logs()[logged[i]:])
				}
				return nil
			})
		}
		e.Authority.Issue(t, c.name, c.usage)
		for i := range r.Servers {
			r.awaitLeases(t, i, have...)
		}
		have = append(have, fmt.Sprintf("b-%d", i))
		r.create(t, i, have[i+1])
		r.awaitLeases(t, 1-i, have...)
	}
}

// TestEtcdAuthenticates: with authentication in etcd, servers need no more than to read and write
// below their prefix. Without that they are not ready, and say that etcd refuses.
func TestEtcdAuthenticates(t *testing.T) {
	t.Parallel()
	e := harness.StartSecureEtcd(t, 1, "--unsafe-no-fsync")
	cert, key := e.Authority.Issue(t, "root", x509.ExtKeyUsageClientAuth)
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	authority, err := os.ReadFile(e.Authority.File)
	must(t, err)
	known := x509.NewCertPool()
	known.AppendCertsFromPEM(authority)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{e.Servers}, TLS: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: known}})
	must(t, err)
	defer c.Close()
	ctx := t.Context()
	noPassword := &clientv3.UserAddOptions{NoPassword: true}
	for user, role := range map[string]string{"root": "root", "client": "tidewaiter"} { // as the certificates are called
		_, err = c.UserAddWithOptions(ctx, user, "", noPassword)
		must(t, err)
		_, err = c.RoleAdd(ctx, role)
		must(t, err)
		_, err = c.UserGrantRole(ctx, user, role)
		must(t, err)
	}
	_, err = c.AuthEnable(ctx)
	must(t, err)
	refused := harness.Start(t, harness.ServeCommand(t, t.TempDir(), e.Flags()...))
	refused.Stderr.AwaitMatch(t, regexp.MustCompile(`.*permission denied.*`))
	_, err = c.RoleGrantPermission(ctx, "tidewaiter", "/tidewaiter/", clientv3.GetPrefixRangeEnd("/tidewaiter/"), clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)

	r := startReplicasOn(t, e, 2)
	r.create(t, 0, "a")
	r.awaitLeases(t, 1, "a")
	e.Restart(t, 0)
	r.awaitLeases(t, 0, "a")
	r.create(t, 1, "b")
	r.awaitLeases(t, 0, "a", "b")
	for i, s := range r.Servers {
		if logs := s.Logs(); strings.Contains(logs, "permission denied") {
			t.Errorf("etcd refuses something to server %d:\n%s", i, logs)
		}
	}
}

// TestMemberIsReplaced: a new member takes the place of one that is lost with its data while the
// servers run. They use it: with another member down, it is one of the two that are left.
func TestMemberIsReplaced(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 3, "--unsafe-no-fsync")
	r := startReplicasOn(t, e, 2)
	r.create(t, 0, "a")
	r.awaitLeases(t, 1, "a")
	e.Replace(t, 0)
	harness.Eventually(t, func() error { // it has what the others have
		resp, err := http.Get(strings.Split(e.Servers, ",")[0] + "/health")
		if err != nil {
			return err
		}
		if resp.Body.Close(); resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	r.create(t, 1, "b")
	r.awaitLeases(t, 0, "a", "b")
	e.Members()[1].Kill(t)
	harness.Eventually(t, func() error {
		_, err := r.clients[0].CoordinationV1().Leases("default").Create(t.Context(), counter("c", 0), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the answer to an earlier attempt was lost
			return nil
		}
		return err
	})
	for i := range r.Servers {
		r.awaitLeases(t, i, "a", "b", "c")
	}
}

// TestReadsAskTheLeader: what a read asks etcd is asked of the member that leads, also when another
// has come to lead.
func TestReadsAskTheLeader(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 3, "--unsafe-no-fsync")
	r := startReplicasOn(t, e, 1)
	r.create(t, 0, "a")
	read := regexp.MustCompile(`(?m)^grpc_server_handled_total\{grpc_code="OK",grpc_method="Range",.*\} (\d+)$`)
	leads := regexp.MustCompile(`(?m)^etcd_server_is_leader 1$`)
	asked := func() (counts [3]int, leader int) {
		leader = -1
		for i, server := range strings.Split(e.Servers, ",") {
			metrics, err := http.Get(server + "/metrics")
			if err != nil {
				continue // it is away
			}
			body, err := io.ReadAll(metrics.Body)
			must(t, errors.Join(err, metrics.Body.Close()))
			if m := read.FindSubmatch(body); m != nil {
				counts[i], err = strconv.Atoi(string(m[1]))
				must(t, err)
			}
			if leads.Match(body) {
				leader = i
			}
		}
		return counts, leader
	}
	awaitLeaderAlone := func() (leader int) {
		t.Helper()
		harness.Eventually(t, func() error {
			before, first := asked()
			for range 20 {
				if _, err := r.clients[0].CoordinationV1().Leases("default").Get(t.Context(), "a", metav1.GetOptions{}); err != nil {
					return err
				}
			}
			after, last := asked()
			for i := range after {
				if n := after[i] - before[i]; i == last && n < 20 || i != last && n != 0 || last != first {
					return fmt.Errorf("member %d was asked %d times for 20 reads; %d leads", i, n, last)
				}
			}
			leader = last
			return nil
		})
		return leader
	}
	e.Restart(t, awaitLeaderAlone())
	awaitLeaderAlone()
}

// TestEtcdIsRestored: an etcd that was put back to a snapshot is refused, with what to do, until
// its revision is above all that clients know. Then the servers have what the snapshot has, and
// clients begin again.
func TestEtcdIsRestored(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 1)
	r := startReplicasOn(t, e, 2)
	r.create(t, 0, "a", "b")
	snapshot := e.Snapshot(t)
	// What the servers write before they know does not bring the restored etcd to the revisions
	// that they had.
	lost := make([]string, 50)
	for i := range lost {
		lost[i] = fmt.Sprintf("c-%02d", i)
	}
	known := r.create(t, 1, lost...)
	r.awaitLeases(t, 0, append([]string{"a", "b"}, lost...)...)

	e.Restore(t, snapshot)
	for i, c := range r.clients {
		// Without retries, which would wait until it is another etcd.
		rest := c.CoordinationV1().RESTClient()
		harness.Eventually(t, func() error {
			err := rest.Get().MaxRetries(0).Namespace("default").Resource("leases").Name("a").Do(t.Context()).Error()
			if err == nil {
				t.Fatalf("server %d reads from an etcd whose revisions mean something else", i)
			}
			if !strings.Contains(err.Error(), "--bump-revision") {
				return fmt.Errorf("server %d: %w", i, err)
			}
			return nil
		})
		if err := rest.Post().MaxRetries(0).Namespace("default").Resource("leases").Body(counter("lost", 0)).Do(t.Context()).Error(); err == nil {
			t.Errorf("server %d has written to an etcd that it does not read", i)
		}
		if got := r.Servers[i].TryKubectl(t, "get", "--raw", "/readyz?verbose"); got.Code == 0 || !strings.Contains(got.Stdout+got.Stderr, "[-]etcd") {
			t.Errorf("server %d is ready: %s%s", i, got.Stdout, got.Stderr)
		}
	}

	e.Restore(t, snapshot, "--bump-revision", "1000000000", "--mark-compacted")
	for i := range r.clients {
		r.awaitLeases(t, i, "a", "b")
		r.watchIsExpired(t, i, known)
	}
	r.create(t, 0, "e")
	r.awaitLeases(t, 1, "a", "b", "e")
	for i := range r.Servers { // and so it stays
		r.Servers[i].Kill(t)
		r.Restart(t, i)
		r.awaitLeases(t, i, "a", "b", "e")
	}
}

// TestEtcdForgetsWhileAServerIsAway: a server that was down, or cut off from etcd, while etcd
// forgot the changes that it has not seen is filled again. Clients that know earlier revisions have
// to list again.
func TestEtcdForgetsWhileAServerIsAway(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 1, "--unsafe-no-fsync")
	proxied, cut := through(t, e.Servers)
	r := startReplicasOn(t, e, 2)
	r.reachBy(1, proxied)
	known := r.create(t, 0, "a", "b")
	r.Servers[1].Kill(t)
	forget := func(names ...string) {
		t.Helper()
		for _, name := range names {
			must(t, r.clients[0].CoordinationV1().Leases("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		r.create(t, 0, names[0]+"-again")
		e.Compact(t)
	}
	forget("a")
	r.Restart(t, 1)
	r.awaitLeases(t, 1, "a-again", "b")
	r.watchIsExpired(t, 1, known)

	known = r.create(t, 1, "c")
	cut(true)
	forget("b", "c")
	cut(false)
	r.awaitLeases(t, 1, "a-again", "b-again")
	r.watchIsExpired(t, 1, known)
	if n := strings.Count(r.Servers[1].Logs(), "the copy has been filled"); n != 2 {
		t.Errorf("since it was started again, the server has been filled %d times, want 2", n)
	}
}
