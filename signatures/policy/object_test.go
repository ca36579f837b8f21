package policy_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// An API object cannot make the server read a file, by any field: its author may not be allowed to
// read the server's files. Nor does an error reveal anything about the file, such as whether it
// exists.
func TestAttackObjectNamesAFile(t *testing.T) {
	const here = "object_test.go"
	for _, tt := range []struct {
		typ    string
		member func(*policy.RootOfTrust) any
	}{
		{policy.TypePublicKey, func(r *policy.RootOfTrust) any { r.PublicKey = &policy.PublicKey{}; return r.PublicKey }},
		{policy.TypeFulcioCAWithRekor, func(r *policy.RootOfTrust) any {
			r.FulcioCAWithRekor = &policy.FulcioCAWithRekor{}
			return r.FulcioCAWithRekor
		}},
		{policy.TypePKI, func(r *policy.RootOfTrust) any { r.PKI = &policy.PKI{}; return r.PKI }},
		{policy.TypeTrustedRoot, func(r *policy.RootOfTrust) any { r.TrustedRoot = &policy.TrustedRoot{}; return r.TrustedRoot }},
		{policy.TypeGPGKeys, func(r *policy.RootOfTrust) any { r.GPGKeys = &policy.GPGKeys{}; return r.GPGKeys }},
	} {
		tried := 0
		fields := reflect.TypeOf(tt.member(&policy.RootOfTrust{})).Elem()
		for i := range fields.NumField() {
			name, _, _ := strings.Cut(fields.Field(i).Tag.Get("json"), ",")
			if !strings.HasSuffix(name, "Path") && !strings.HasSuffix(name, "Paths") {
				continue
			}
			tried++
			spec := &policy.DocumentSpec{Scopes: []string{"registry.example.com"}}
			spec.Policy.RootOfTrust.PolicyType = tt.typ
			// All paths are set, so that none is hidden by an error about another that is absent
			// and required.
			member := reflect.ValueOf(tt.member(&spec.Policy.RootOfTrust)).Elem()
			for j := range member.NumField() {
				n, _, _ := strings.Cut(fields.Field(j).Tag.Get("json"), ",")
				switch v := member.Field(j); {
				case strings.HasSuffix(n, "Path") && !(strings.HasSuffix(name, "Paths") && strings.HasPrefix(n, "key")):
					v.SetString(here)
				case j == i:
					v.Set(reflect.ValueOf([]string{here}))
				}
			}
			if _, err := policy.New("", "object", spec); !errors.Is(err, policy.ErrNamesFile) {
				t.Errorf("%s.%s: %v", tt.typ, name, err)
			}
		}
		if tried == 0 {
			t.Errorf("%s has no path: the test shows nothing", tt.typ)
		}
	}
}

// An object that only an older version could use still covers its scopes, and trusts no signer.
func TestObjectThatCannotBeUsed(t *testing.T) {
	p := policy.DenyAll("", "old", &policy.DocumentSpec{Scopes: []string{"registry.example.com/app", "a*b"}})
	set, err := policy.NewSet([]*policy.Policy{p})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Policies()[0].Scopes) != 1 || p.Hash() == "" {
		t.Errorf("scopes %q, hash %q", p.Scopes, p.Hash())
	}
	if e, err := p.Sigstore.Verify(nil, time.Now()); err == nil || e != nil {
		t.Errorf("%v, %v", e, err)
	}
}

func TestUsable(t *testing.T) {
	now := time.Now()
	ca := func(from, until time.Duration) string {
		c, _ := signaturestest.IssueCA(t, "ca", nil, nil, now.Add(from), now.Add(until))
		return string(signaturestest.CertPEM(t, c))
	}
	pki := func(cas ...string) string {
		return "{policyType: PKI, pki: {caRootsData: " + signaturestest.B64([]byte(strings.Join(cas, ""))) + ", pkiCertificateSubject: {email: a@example.com}}}"
	}
	revoked := signaturestest.NewGPG(t, "a@example.com", now.Add(-time.Hour), 0)
	revoked.Revoke(t, now.Add(-time.Minute))
	for _, tt := range []struct {
		what, root string
		usable     bool
	}{
		{"key", signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), true},
		{"CA", pki(ca(-2*time.Hour, time.Hour)), true},
		{"CA beside an old one", pki(ca(-2*time.Hour, -time.Hour), ca(-2*time.Hour, time.Hour)), true},
		{"expired CA", pki(ca(-2*time.Hour, -time.Hour)), false},
		{"OpenPGP", signaturestest.TrustGPG(signaturestest.NewGPG(t, "a@example.com", now.Add(-time.Hour), 0).Public(t)), true},
		{"expired OpenPGP", signaturestest.TrustGPG(signaturestest.NewGPG(t, "a@example.com", now.Add(-3*time.Hour), time.Hour).Public(t)), false},
		{"revoked OpenPGP", signaturestest.TrustGPG(revoked.Public(t)), false},
	} {
		p := signaturestest.Set(t, tt.root, "").Policies()[0]
		if err := p.Usable(now); (err == nil) != tt.usable {
			t.Errorf("%s: %v", tt.what, err)
		}
	}
}
