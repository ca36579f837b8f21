package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// heard are the events that a receiver got: of those with one id the first.
type heard struct {
	sync.Mutex
	ids, lines []string // a line is "TYPE SUBJECT", and before and after if there are
}

// receive starts a receiver that checks signatures as the Go library of Standard Webhooks does.
func receive(t *testing.T, secret string) (address string, all *heard) {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(secret)
	must(t, err)
	all = &heard{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = webhook.Verify(body, r.Header)
		}
		var event struct {
			SpecVersion, ID, Type, Subject string
			Data                           struct{ Before, VerifiedBefore, Verified, By string }
		}
		if err == nil {
			err = json.Unmarshal(body, &event)
		}
		if err != nil || event.SpecVersion != "1.0" || event.ID != r.Header.Get("webhook-id") {
			t.Errorf("%v: %v %s", err, r.Header, body)
			http.Error(w, "this is not what was agreed", http.StatusBadRequest)
			return
		}
		all.Lock()
		defer all.Unlock()
		if !slices.Contains(all.ids, event.ID) {
			all.ids = append(all.ids, event.ID)
			all.lines = append(all.lines, strings.Join(strings.Fields(strings.Join([]string{event.Type, event.Subject, event.Data.Before, event.Data.VerifiedBefore, event.Data.Verified, event.Data.By}, " ")), " "))
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, all
}

// await waits for an event whose line begins with all that is given, and returns the line.
func (a *heard) await(t *testing.T, parts ...string) (line string) {
	t.Helper()
	begin := "dev.tidewaiter." + strings.Join(parts, " ")
	harness.Eventually(t, func() error {
		a.Lock()
		defer a.Unlock()
		i := slices.IndexFunc(a.lines, func(line string) bool { return strings.HasPrefix(line, begin) })
		if i < 0 {
			return fmt.Errorf("nobody was told %q, but\n%s", begin, strings.Join(a.lines, "\n"))
		}
		line = a.lines[i]
		return nil
	})
	return line
}

// A receiver is told of a push of which the registry told, of a tag that moved, of verdicts that a
// policy and a signature turn, and of what is deleted in the registry, each once, also if the
// server is killed in between.
func TestNotifications(t *testing.T) {
	t.Parallel()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	address, all := receive(t, secret)
	h := prepareHooked(t, registry.Distribution, false)
	config := h.args[slices.Index(h.args, "--config")+1]
	must(t, os.WriteFile(config+".secret", []byte(secret), 0o600))
	text, err := os.ReadFile(config)
	must(t, err)
	text = fmt.Appendf(text, "ownPodsOnly: true\nnotify:\n- {name: ci, url: %q, insecure: true, secretFile: %q, repositories: [%q]}\n", address, config+".secret", h.registry.Host+"/team")
	must(t, os.WriteFile(config, text, 0o600))
	h.resume(t)

	two := images.Numbered(t, 2)
	tag, whole := h.registry.Host+"/team/app:v1", make([]string, 2)
	for i, image := range two {
		whole[i] = h.registry.Host + "/team/app@" + images.Digest(t, image).String()
		h.registry.Push(t, "team/app:v1", image)
		all.await(t, "image.imported", whole[i], "NoPolicy")
		if i == 0 {
			all.await(t, "tag.moved", tag)
		}
	}
	before := images.Digest(t, two[0]).String()
	if line := all.await(t, "tag.moved", tag, before); !strings.Contains(line, "webhook") {
		t.Errorf("who moved the tag: %q", line)
	}

	h.Kill(t)
	h.resume(t)
	signer := newCosign(t)
	signer.key("release", "p256")
	key, err := os.ReadFile(signer.dir + "/release.pub")
	must(t, err)
	h.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":"ours"},"spec":{"scopes":["%s/team"],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyData":%q}},"signedIdentity":{"matchPolicy":"MatchRepository"}}}}`,
		h.registry.Host, base64.StdEncoding.EncodeToString(key)), "create", "-f", "-")
	all.await(t, "verdict.turned", whole[1], "NoPolicy Unsigned")
	// cosign pushes the signature, of which the registry tells
	signer.sign("legacy", "release", whole[1])
	all.await(t, "verdict.turned", whole[1], "Unsigned True")
	crane(t, "delete", whole[1])
	all.await(t, "reference.gone", whole[1])

	all.Lock()
	defer all.Unlock()
	for i, line := range all.lines {
		if slices.Index(all.lines, line) != i {
			t.Errorf("twice with two ids: %s", line)
		}
	}
}

// Of several servers over one etcd the leader tells receivers, and its successor goes on where it
// was: each change is told, and under one id, whichever server it was made at.
func TestNotificationsOfReplicas(t *testing.T) {
	t.Parallel()
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	address, all := receive(t, secret)
	from := registry.Start(t, registry.Distribution)
	config := t.TempDir() + "/tidewaiter.yaml"
	must(t, os.WriteFile(config+".secret", []byte(secret), 0o600))
	must(t, os.WriteFile(config, fmt.Appendf(nil, "ownPodsOnly: true\nnotify:\n- {name: ci, url: %q, insecure: true, secretFile: %q}\n", address, config+".secret"), 0o600))
	r := startReplicas(t, 3, "--config", config)

	pushed := images.Numbered(t, 6)
	for i, image := range pushed {
		if i == len(pushed)/2 {
			r.Servers[r.Leader(t)].Kill(t)
		}
		at := r.Servers[i%3]
		if !at.Process().Running() {
			at = r.Servers[(i+1)%3]
		}
		at.Import(t, from.Push(t, "team/app:v1", image))
	}
	tag := from.Host + "/team/app:v1"
	for i, image := range pushed {
		digest := images.Digest(t, image).String()
		all.await(t, "image.imported", from.Host+"/team/app@"+digest)
		if i > 0 {
			all.await(t, "tag.moved", tag, images.Digest(t, pushed[i-1]).String())
		}
	}
	all.Lock()
	defer all.Unlock()
	for i, line := range all.lines {
		if slices.Index(all.lines, line) != i || strings.Contains(line, "missed") {
			t.Errorf("twice with two ids, or missed: %s", line)
		}
	}
}
