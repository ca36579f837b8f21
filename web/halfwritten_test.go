package web

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"
	clocktesting "k8s.io/utils/clock/testing"
)

// Files of certificates and keys that are read again while they are half written, empty, gone, or
// do not belong together change nothing; once they are whole they count.
func TestHalfWrittenCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := TLS{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	read := func(file string) []byte {
		t.Helper()
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	write := func(file string, data []byte) {
		t.Helper()
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two := load(t), load(t)
	writeGiven(t, o, "next.example.com")
	nextCert, nextKey := read(o.CertFile), read(o.KeyFile)
	writeGiven(t, o, "first.example.com")
	// The chain has its authority; the file of authorities has two.
	chain := slices.Concat(read(o.CertFile), read(one.CAFile))
	write(o.CertFile, chain)
	key, bundle := read(o.KeyFile), slices.Concat([]byte("# of the company\n"), read(one.CAFile), []byte("# another - not ours\n"), read(two.CAFile))
	file := filepath.Join(dir, "ca.crt")
	write(file, bundle)

	c := load(t)
	now := clocktesting.NewFakePassiveClock(time.Now())
	c.reload.clock = now
	given, err := c.followGiven(o.CertFile, o.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	known, err := c.followAuthorities("client-ca-bundle", file)
	if err != nil {
		t.Fatal(err)
	}
	look := func() {
		now.SetTime(now.Now().Add(time.Hour))
		c.reload.checkFiles()
	}
	verifies := func(of *Credentials) bool {
		options, ok := known.VerifyOptions()
		admin, err := certutil.CertsFromFile(of.adminCertFile)
		if err != nil || !ok {
			t.Fatal(err, ok)
		}
		_, err = admin[0].Verify(options)
		return err == nil
	}
	first := bytes.LastIndex(bundle, []byte("-----BEGIN"))
	inChain := bytes.LastIndex(chain, []byte("-----BEGIN"))
	for _, test := range []struct {
		name, file string
		content    []byte // nil for none
	}{
		{"an empty certificate", o.CertFile, []byte{}},
		{"half a certificate", o.CertFile, chain[:inChain/2]},
		{"half a chain", o.CertFile, chain[:inChain+100]},
		{"a chain without its authority", o.CertFile, chain[:inChain]},
		{"a chain with half a beginning", o.CertFile, chain[:inChain+5]},
		{"a certificate of another key", o.CertFile, nextCert},
		{"no certificate", o.CertFile, nil},
		{"an empty key", o.KeyFile, []byte{}},
		{"half a key", o.KeyFile, key[:len(key)/2]},
		{"the key of another certificate", o.KeyFile, nextKey},
		{"no key", o.KeyFile, nil},
		{"no authorities", file, nil},
		{"an empty file of authorities", file, []byte{}},
		{"comments", file, []byte("# of the company\n")},
		{"half an authority", file, bundle[:first/2]},
		{"half of the second authority", file, bundle[:first+200]},
		{"the beginning of the second authority", file, bundle[:first+3]},
		{"a second authority that ends within its last line", file, bundle[:len(bundle)-7]},
		{"no PEM", file, bytes.Repeat([]byte("x"), 1000)},
	} {
		whole := read(test.file)
		if test.content != nil {
			write(test.file, test.content)
		} else if err := os.Remove(test.file); err != nil {
			t.Fatal(err)
		}
		look()
		if cert, have := given.CurrentCertKeyContent(); !bytes.Equal(cert, chain) || !bytes.Equal(have, key) {
			t.Errorf("%s: what is served has changed", test.name)
		}
		if !verifies(one) || !verifies(two) || !bytes.Equal(known.CurrentCABundleContent(), bundle) {
			t.Errorf("%s: an authority has gone", test.name)
		}
		write(test.file, whole)
		look()
	}
	write(o.CertFile, slices.Concat(chain[:inChain], []byte("# complete\n")))
	look()
	if cert, _ := given.CurrentCertKeyContent(); bytes.Equal(cert, chain) {
		t.Error("a chain that is said to be complete is not taken over")
	}
	write(o.CertFile, nextCert)
	write(o.KeyFile, nextKey)
	write(file, read(two.CAFile))
	look()
	if cert, have := given.CurrentCertKeyContent(); !bytes.Equal(cert, nextCert) || !bytes.Equal(have, nextKey) {
		t.Error("a whole certificate with its key is not taken over")
	}
	if verifies(one) || !verifies(two) {
		t.Error("a whole file of authorities is not taken over")
	}
	before, err := dynamiccertificates.NewStaticCAContent("before", bundle)
	if err != nil {
		t.Fatal(err)
	}
	if gone := missing(before, known); gone != 1 || missing(known, before) != 0 || missing(nil, known) != 0 {
		t.Errorf("%d authorities are gone", gone)
	}
	// Others could have written it.
	if err := os.Chmod(file, 0o666); err != nil {
		t.Fatal(err)
	}
	write(file, read(one.CAFile))
	if look(); verifies(one) {
		t.Error("a file that everybody can write is taken over")
	}
}

// What a server begins with must be whole, too: it would refuse callers, or not be trusted, without
// a word.
func TestCutCertificatesAreRefused(t *testing.T) {
	t.Parallel()
	c, company := load(t), load(t)
	data, err := os.ReadFile(company.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, append(bytes.Clone(data), data[:len(data)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.followAuthorities("client-ca-bundle", file); err == nil {
		t.Error("a file that ends within a certificate is taken")
	}
}

// A file of --authentication-config that is cut, empty, gone or wrong changes nothing: without its
// end it may have fewer issuers, and fewer rules.
func TestHalfWrittenIssuers(t *testing.T) {
	t.Parallel()
	one := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://a.example.com, audiences: [a]}\n" +
		"  claimMappings:\n    username: {claim: sub, prefix: \"a:\"}\n"
	rules := "  claimValidationRules:\n  - {claim: team, requiredValue: ours}\n"
	two := strings.ReplaceAll(one[strings.Index(one, "- issuer"):], "a.example.com", "b.example.com")
	whole := one + rules + two
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(whole)
	c := load(t)
	now := clocktesting.NewFakePassiveClock(time.Now())
	c.reload.clock = now
	a := NewAuthentication()
	a.AuthenticationConfigFile, a.ServiceAccounts = file, nil
	copied, err := c.followIssuers(file, a.BuiltInAuthenticationOptions)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what, want string) {
		t.Helper()
		now.SetTime(now.Now().Add(time.Hour))
		c.reload.checkFiles()
		if got, err := os.ReadFile(copied); err != nil || string(got) != want {
			t.Errorf("%s: in force is %q, %v", what, got, err)
		}
	}
	expect("unchanged", whole)
	for n := range len(whole) {
		if n > 0 && whole[n-1] != '\n' && n%7 > 0 {
			continue
		}
		write(whole[:n])
		expect(fmt.Sprintf("the first %d bytes", n), whole)
	}
	write(strings.Replace(whole, "claim: sub", "claims: sub", 1))
	expect("a mistake", whole)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect("no file", whole)
	less := one + rules + "# complete\n"
	write(less)
	expect("an issuer less, said to be so", less)
	write(whole)
	expect("whole again", whole)
}
