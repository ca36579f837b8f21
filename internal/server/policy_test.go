package server

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// TestPolicyOfAnotherWriter: a policy that appears in the storage, changes there and goes, without
// this server's doing, decides at the next question.
func TestPolicyOfAnotherWriter(t *testing.T) {
	s, err := Open(t.Context(), Options{DataDir: t.TempDir()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.DB.Close(); err != nil {
			t.Error(err)
		}
	})
	inForce := func() (scopes []string) {
		t.Helper()
		set, err := s.Verification.policiesInForce(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range set.Policies() {
			if p.Key() == (types.NamespacedName{Name: "theirs"}) {
				scopes = append(scopes, p.Scopes...)
			}
		}
		return scopes
	}
	if got := inForce(); got != nil {
		t.Fatalf("before: %v", got)
	}
	key := signaturestest.NewKey(t, signaturestest.P256)
	write := func(rev int64, scope string) int64 {
		t.Helper()
		var o map[string]any
		if err := yaml.Unmarshal([]byte(signaturestest.Document("theirs", "['"+scope+"']", signaturestest.TrustKey(key, nil), "")), &o); err != nil {
			t.Fatal(err)
		}
		o["metadata"].(map[string]any)["uid"] = "00000000-0000-4000-8000-000000000000"
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if rev, err = s.DB.Put(t.Context(), "/config.openshift.io/clusterimagepolicies/theirs", rev, data, db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		return rev
	}
	rev := write(0, "registry.example.com")
	if got := inForce(); len(got) != 1 || got[0] != "registry.example.com" {
		t.Errorf("written by another: %v", got)
	}
	rev = write(rev, "registry.example.org")
	if got := inForce(); len(got) != 1 || got[0] != "registry.example.org" {
		t.Errorf("changed by another: %v", got)
	}
	if _, err := s.DB.Delete(t.Context(), "/config.openshift.io/clusterimagepolicies/theirs", rev); err != nil {
		t.Fatal(err)
	}
	if got := inForce(); got != nil {
		t.Errorf("deleted by another: %v", got)
	}
}
