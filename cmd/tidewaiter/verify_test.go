package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/cmd/internal/demo"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// signedRegistry is the demo's registry with its images and a policy for them.
func signedRegistry(t *testing.T) (host, policy string) {
	t.Helper()
	t.Setenv("HOME", t.TempDir()) // no credentials, no lookaside storage
	r, err := demo.StartRegistry(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	signer, err := demo.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	pushes, err := demo.Pushes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pushes {
		if _, _, err := r.Push(p, signer); err != nil {
			t.Fatal(err)
		}
	}
	policy, err = signer.WritePolicy(t.TempDir(), r.Host)
	if err != nil {
		t.Fatal(err)
	}
	return r.Host, policy
}

// coveringNothing is a file with a policy that covers no image of a test.
func coveringNothing(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "elsewhere.yaml")
	document := signaturestest.Document("elsewhere", `["elsewhere.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
	if err := os.WriteFile(file, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestVerify(t *testing.T) {
	host, policy := signedRegistry(t)
	elsewhere, keyless := coveringNothing(t), filepath.Join(t.TempDir(), "keyless.yaml")
	document := signaturestest.Document("keyless", `["`+host+`"]`, "{policyType: PublicKey, publicKey: {keyPath: nope.pub}}", "")
	if err := os.WriteFile(keyless, []byte(document), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name      string
		reference string
		policy    string
		code      int
		out, err  []string
	}{
		{"signed", "/harbour/lighthouse:v1", policy, exitTrusted, []string{"verified: True (by policy harbour-master)", "SignatureVerified", "SigstoreSimpleSigningV1"}, nil},
		{"tampered with", "/harbour/ferry:v1", policy, exitUntrusted, []string{"verified: False (by policy harbour-master)", "DigestMismatch"}, []string{"hint: tidewaiter explain "}},
		{"unsigned", "/harbour/buoy:v1", policy, exitUntrusted, []string{"verified: Unsigned (by policy harbour-master)"}, []string{"hint: tidewaiter explain "}},
		{"no policy", "/harbour/lighthouse:v1", elsewhere, exitUndeclared, []string{"verified: NoPolicy (no policy covers it)", "NoMatchingPolicy"}, []string{"no policy covers", "hint: "}},
		{"unsigned, no policy", "/harbour/buoy:v1", elsewhere, exitUndeclared, []string{"verified: NoPolicy (no policy covers it)"}, []string{"no policy covers"}},
		{"no policy is named, and no server", "/harbour/lighthouse:v1", "", exitUndeclared, nil, []string{"no server holds", "hint: "}},
		{"absent", "/harbour/raft:v1", policy, exitUndeclared, nil, []string{"harbour/raft:v1"}},
		{"no reference", "/Harbour/Raft:v1", policy, exitUndeclared, nil, []string{"lower case", "hint: "}},
		{"no such policy", "/harbour/buoy:v1", policy + ".absent", exitUndeclared, nil, []string{"policy.yaml.absent", "hint: a policy is in a file"}},
		{"no such key", "/harbour/buoy:v1", keyless, exitUndeclared, nil, []string{"nope.pub", "policies by example"}},
		{"a pipe", "/harbour/buoy:v1", pipe, exitUndeclared, nil, []string{pipe, "write the policies to a file"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			args := []string{"verify", host + tt.reference}
			if tt.policy != "" {
				args = append(args, "--policy", tt.policy)
			}
			code, stdout, stderr := tidewaiter(t, args...)
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, w := range tt.out {
				if !strings.Contains(stdout, w) {
					t.Errorf("standard output lacks %q:\n%s", w, stdout)
				}
			}
			if len(tt.out) == 0 && stdout != "" {
				t.Errorf("standard output %q", stdout)
			}
			for _, w := range tt.err {
				if !strings.Contains(stderr, w) {
					t.Errorf("standard error lacks %q:\n%s", w, stderr)
				}
			}
			if len(tt.err) == 0 && stderr != "" {
				t.Errorf("standard error %q", stderr)
			}
		})
	}
}

// behindProxy puts a proxy before a registry and returns its host. What answer answers is not
// passed on. The policy is made to be about what the proxy shows: its signatures were made under
// the registry's name, so they match by digest alone.
func behindProxy(t *testing.T, registry, policy string, answer func(http.ResponseWriter, *http.Request) bool) (host string) {
	t.Helper()
	passOn := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: registry})
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			passOn.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(proxy.Close)
	host = strings.TrimPrefix(proxy.URL, "http://")
	document, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	document = []byte(strings.NewReplacer(registry, host, "MatchRepository", "DigestOnly").Replace(string(document)))
	if err := os.WriteFile(policy, document, 0o600); err != nil {
		t.Fatal(err)
	}
	return host
}

// Where signatures are cannot be read: whether the image is signed is not known, and the answer is
// neither yes nor no.
func TestVerifyWhatCannotBeRead(t *testing.T) {
	host, policy := signedRegistry(t)
	var portal atomic.Bool
	proxyHost := behindProxy(t, host, policy, func(w http.ResponseWriter, r *http.Request) bool {
		if !portal.Load() || !strings.Contains(r.URL.Path, "/referrers/") {
			return false
		}
		fmt.Fprint(w, "<!DOCTYPE html><html>Sign in</html>")
		return true
	})
	for _, tt := range []struct {
		portal bool
		code   int
		want   string
	}{
		{false, exitUntrusted, "verified: Unsigned"},
		{true, exitUndeclared, "the referrers cannot be read"},
		{false, exitUntrusted, "verified: Unsigned"}, // the warning goes
	} {
		portal.Store(tt.portal)
		code, stdout, stderr := tidewaiter(t, "verify", "--policy", policy, proxyHost+"/harbour/buoy:v1")
		if code != tt.code || !strings.Contains(stdout, tt.want) || strings.Contains(stderr, "warning: ") != tt.portal {
			t.Errorf("portal %v: exit code %d, want %d: %s%s", tt.portal, code, tt.code, stdout, stderr)
		}
	}
}

// A proxy lists no tags of signatures: what is signed does not become unsigned by that, whoever
// looks for it. Without a policy that demands signatures, nobody asks for tags that are not listed.
func TestAttackListOfTagsWithoutSignatures(t *testing.T) {
	oneCaller(t)
	host, policy := signedRegistry(t)
	var asked atomic.Int64
	proxyHost := behindProxy(t, host, policy, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case strings.HasSuffix(r.URL.Path, "/tags/list"):
			fmt.Fprint(w, `{"tags":["v1"]}`)
			return true
		case strings.HasSuffix(r.URL.Path, ".sig"):
			asked.Add(1)
		}
		return false
	})
	ref := proxyHost + "/harbour/lighthouse:v1"

	if code, stdout, stderr := tidewaiter(t, "verify", "--policy", policy, ref); code != exitTrusted {
		t.Errorf("verify: exit code %d: %s%s", code, stdout, stderr)
	}
	for name, policy := range map[string]string{"a server": policy, "a server without policies": ""} {
		dir := t.TempDir()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		config := serveWith(t, server.Options{DataDir: dir, Policy: policy}, listener)
		asked.Store(0)
		if code, _, stderr := tidewaiter(t, "import", "--data-dir", dir, ref); code != cli.ExitOK {
			t.Fatalf("%s: exit code %d: %s", name, code, stderr)
		}
		images, err := imageclient.New(config)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "signatures.verified=True"})
		if want := len(policy) > 0; err != nil || len(signed.Items) > 0 != want || asked.Load() > 0 != want {
			t.Errorf("%s: %d images are signed, %d tags of signatures were asked for: %v", name, len(signed.Items), asked.Load(), err)
		}
	}
}

// A platform of a signed index has no signature of its own. Asked for by its digest, it is verified
// through the index.
func TestVerifyPlatformOfASignedIndex(t *testing.T) {
	host, policy := signedRegistry(t)
	repository, err := name.NewRepository(host + "/harbour/lighthouse")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(repository.Tag("v1"))
	if err != nil {
		t.Fatal(err)
	}
	listed, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	child := listed.Manifests[0].Digest.String()
	lone, err := sample.New(sample.Spec{Name: "lone"})
	if err != nil {
		t.Fatal(err)
	}
	// Tags that lead to other things, and an index that lists the platform and that nobody signed.
	forged := mutate.Annotations(index, map[string]string{"forged": "yes"}).(v1.ImageIndex)
	if err := errors.Join(remote.Write(repository.Tag("lone"), lone), remote.WriteIndex(repository.Tag("v2"), forged)); err != nil {
		t.Fatal(err)
	}
	loneDigest, err := lone.Digest()
	if err != nil {
		t.Fatal(err)
	}
	var tags atomic.Value // what the proxy answers instead of the registry's list of tags
	tags.Store("")
	proxyHost := behindProxy(t, host, policy, func(w http.ResponseWriter, r *http.Request) bool {
		answer := tags.Load().(string)
		if answer == "" || !strings.HasSuffix(r.URL.Path, "/tags/list") {
			return false
		}
		if link, body, linked := strings.Cut(answer, ">{"); linked { // a page that leads back
			w.Header().Set("Link", link+`>; rel="next"`)
			answer = "{" + body
		}
		if !strings.HasPrefix(answer, "{") {
			w.WriteHeader(http.StatusForbidden)
		}
		fmt.Fprint(w, answer)
		return true
	})
	many := make([]string, maxTagsLookedAt+1)
	for i := range many {
		many[i] = fmt.Sprintf("%q", fmt.Sprint("gone-", i))
	}
	full := `{"tags":[` + strings.Join(many, ",") + `]}`
	for _, tt := range []struct {
		name, reference, tags string
		code                  int
		verified              string
		reason                string
	}{
		{"by its digest", "@" + child, "", exitTrusted, verdicts.ByIndex, "listed by the index " + digest.String()},
		{"by a tag of the index", ":v1@" + child, full, exitTrusted, verdicts.ByIndex, "listed by the index " + digest.String()},
		{"by a tag of an index that nobody signed", ":v2@" + child, "", exitUntrusted, verdicts.Unsigned, "nor an index that lists it and that the tag v2 leads to"},
		{"by a tag of another image", ":lone@" + child, "", exitUntrusted, verdicts.Unsigned, "that the tag lone leads to"},
		{"of no index", "@" + loneDigest.String(), "", exitUntrusted, verdicts.Unsigned, "ask for " + proxyHost + "/harbour/lighthouse:TAG@" + loneDigest.String()},
		{"too many tags", "@" + child, full, exitUndeclared, verdicts.VerifiedUnknown, "100 of 101 tags were searched; ask for " + proxyHost + "/harbour/lighthouse:TAG@" + child},
		{"tags that may not be all", "@" + child, `</v2/harbour/lighthouse/tags/list?page=1>{"tags":["gone"]}`, exitUndeclared, verdicts.VerifiedUnknown, "there may be more: a page leads back"},
		{"tags cannot be listed", "@" + child, "denied", exitUndeclared, verdicts.VerifiedUnknown, "whether an index vouches for it could not be read"},
		{"the index itself", "@" + digest.String(), "denied", exitTrusted, verdicts.VerifiedTrue, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tags.Store(tt.tags)
			code, stdout, stderr := tidewaiter(t, "verify", "--policy", policy, "-o", "json", proxyHost+"/harbour/lighthouse"+tt.reference)
			var r verdictReport
			if err := json.Unmarshal([]byte(stdout), &r); err != nil {
				t.Fatalf("%v: %s%s", err, stdout, stderr)
			}
			if code != tt.code || r.Verified != tt.verified || !strings.Contains(r.Message, tt.reason) || (r.Index == digest.String()) != (tt.verified == verdicts.ByIndex) {
				t.Errorf("exit code %d, want %d, %s: %s", code, tt.code, stdout, stderr)
			}
			_, table, _ := tidewaiter(t, "verify", "--policy", policy, proxyHost+"/harbour/lighthouse"+tt.reference)
			if tt.reason != "" && !strings.Contains(table, "reason: ") {
				t.Errorf("the table gives no reason:\n%s", table)
			}
		})
	}
}

// What could not be read of the index of a platform is a warning in every format.
func TestVerifyWarnsOfTheIndex(t *testing.T) {
	host, policy := signedRegistry(t)
	tag, err := name.NewTag(host + "/harbour/lighthouse:v1")
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(tag)
	if err != nil {
		t.Fatal(err)
	}
	listed, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	proxyHost := behindProxy(t, host, policy, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/referrers/"+digest.String()) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	for _, format := range []string{"", "json", "jsonl", "yaml", "name"} {
		args := []string{"verify", "--policy", policy, proxyHost + "/harbour/lighthouse:v1@" + listed.Manifests[0].Digest.String()}
		if format != "" {
			args = append(args, "-o", format)
		}
		if code, stdout, stderr := tidewaiter(t, args...); code != exitTrusted || !strings.Contains(stderr, "warning: ") {
			t.Errorf("-o %q: exit code %d, %s%s", format, code, stdout, stderr)
		}
	}
}

// A tag that is a policy's scope is judged by that policy for callers that ask by the tag, as
// containers/image does.
func TestVerifyTagThatIsAScope(t *testing.T) {
	host, policy := signedRegistry(t)
	document, err := os.ReadFile(policy)
	if err != nil {
		t.Fatal(err)
	}
	document = []byte(strings.Replace(string(document), host, host+"/harbour/lighthouse:v1", 1))
	// nothing was signed as a tag
	document = []byte(strings.Replace(string(document), "MatchRepository", "MatchRepoDigestOrExact", 1))
	if err := os.WriteFile(policy, document, 0o600); err != nil {
		t.Fatal(err)
	}
	for reference, code := range map[string]int{"/harbour/lighthouse:v1": exitUntrusted, "/harbour/ferry:v1": exitUndeclared} {
		if got, stdout, stderr := tidewaiter(t, "verify", "--policy", policy, host+reference); got != code {
			t.Errorf("%s: exit code %d, want %d: %s%s", reference, got, code, stdout, stderr)
		}
	}
}

func TestVerifyJSON(t *testing.T) {
	host, policy := signedRegistry(t)
	code, stdout, stderr := tidewaiter(t, "verify", "--policy", policy, "-o", "json", host+"/harbour/lighthouse:v1")
	var r verdictReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitTrusted {
		t.Fatalf("exit code %d, %v: %s%s", code, err, stdout, stderr)
	}
	if r.Verified != verdicts.VerifiedTrue || r.Policy != "harbour-master" || len(r.Signatures) != 1 || len(r.Signers) != 1 || !strings.HasPrefix(r.Digest, "sha256:") {
		t.Errorf("%+v", r)
	}
}

// docs/reference/exit-codes.md lists the fields that verify prints for programs, and says which of
// them are always there.
func TestVerifyFieldsDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n### What verify prints for programs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	quoted := regexp.MustCompile("`([a-z]+)`")
	var listed, always []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
				listed = append(listed, m[1])
			}
		}
	}
	_, kept, _ := strings.Cut(section, "A field without a value is left out, except ")
	kept, _, _ = strings.Cut(kept, ".")
	for _, m := range quoted.FindAllStringSubmatch(kept, -1) {
		always = append(always, m[1])
	}
	printed := slices.Sorted(maps.Keys(fieldsOf(t, verdictReport{
		Reference: "r", Digest: "d", Verified: "v", Index: "i", Until: "u", Policy: "p", Spared: []string{"s"}, Signers: []string{"s"},
		Reason: "r", Message: "m", Signatures: []imagev1.ImageSignature{}, Warnings: []string{"w"},
	})))
	if slices.Sort(listed); !slices.Equal(listed, printed) {
		t.Errorf("the page lists %q, and verify prints %q", listed, printed)
	}
	if printed := slices.Sorted(maps.Keys(fieldsOf(t, verdictReport{}))); !slices.Equal(slices.Sorted(slices.Values(always)), printed) {
		t.Errorf("the page says that %q are always there, and verify prints %q", always, printed)
	}
}

// fieldsOf are the fields of an object in JSON.
func fieldsOf(t *testing.T, object any) (fields map[string]any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fields
}

// Several references have an answer each, whatever the others have, and the worst one counts.
func TestVerifySeveral(t *testing.T) {
	host, policy := signedRegistry(t)
	signed, tampered, absent := host+"/harbour/lighthouse:v1", host+"/harbour/ferry:v1", host+"/harbour/raft:v1"
	file := filepath.Join(t.TempDir(), "references.txt")
	if err := os.WriteFile(file, []byte("# a release\n"+signed+"\n\n"+absent+" # is gone\n"+tampered+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"all are signed": {[]string{signed, signed}, exitTrusted, []string{"True", "True"}},
		"one is not":     {[]string{tampered, signed}, exitUntrusted, []string{"False", "True"}},
		"one is unknown": {[]string{"-f", file}, exitUndeclared, []string{"True", "failed", "False"}},
		"both":           {[]string{tampered, "-f", file}, exitUndeclared, []string{"False", "True", "failed", "False"}},
		"one in a file":  {[]string{absent}, exitUndeclared, []string{"failed"}},
	} {
		var rows [][]string
		for _, format := range []string{"", "json", "jsonl"} {
			if format == "json" && len(tt.want) == 1 {
				continue // it prints nothing about the one
			}
			args := append([]string{"verify", "--policy", policy}, tt.args...)
			if format != "" {
				args = append(args, "-o", format)
			}
			code, stdout, stderr := tidewaiter(t, args...)
			if code != tt.code {
				t.Errorf("%s, -o %s exits %d, want %d: %s%s", name, format, code, tt.code, stdout, stderr)
			}
			var got []string
			add := func(raw []byte) {
				var line struct{ Reference, Outcome, Reason, Error, Verified string }
				if err := json.Unmarshal(raw, &line); err != nil || line.Reference == "" || line.Outcome != "" && (line.Reason != "NotFound" || line.Error == "") {
					t.Errorf("%s: %s, %v", name, raw, err)
				}
				got = append(got, cmp.Or(line.Outcome, line.Verified))
			}
			switch format {
			case "json":
				var list struct{ Items []json.RawMessage }
				if err := json.Unmarshal([]byte(stdout), &list); err != nil {
					t.Fatal(err)
				}
				for _, item := range list.Items {
					add(item)
				}
			case "jsonl":
				for line := range strings.Lines(stdout) {
					add([]byte(line))
				}
			default:
				for line := range strings.Lines(stdout) {
					if cells := strings.Fields(line); len(tt.want) > 1 && !strings.HasPrefix(line, " ") && cells[0] != "VERDICT" {
						rows = append(rows, cells)
					}
				}
				continue
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%s, -o %s has %q, want %q", name, format, got, tt.want)
			}
		}
		for i, cells := range rows {
			if want := strings.Replace(tt.want[i], "failed", "Unknown", 1); cells[0] != want || len(rows) != len(tt.want) {
				t.Errorf("%s: the rows are %q, want %q", name, rows, tt.want)
			}
		}
	}
}

func TestVerifyMisuse(t *testing.T) {
	many := filepath.Join(t.TempDir(), "many.txt")
	if err := os.WriteFile(many, []byte("registry.example.com/team/app:*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"nothing":          {"verify"},
		"two, no server":   {"verify", "a", "b"},
		"empty file":       {"verify", "-f", os.DevNull},
		"many tags":        {"verify", "-f", many},
		"watch two":        {"verify", "--watch", "a", "b"},
		"all and a file":   {"verify", "--all", "-f", os.DevNull},
		"all and one":      {"verify", "--all", "a"},
		"format":           {"verify", "a", "-o", "xml"},
		"no server":        {"verify", "--all", "--data-dir", "absent"},
		"no server, trust": {"verify", "--all", "--data-dir", "absent", "--policy", "absent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			code, stdout, stderr := tidewaiter(t, args...)
			if code != cli.ExitUsage || stdout != "" || !strings.Contains(stderr, "hint: ") {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
			if left := entries(t, "."); len(left) > 0 {
				t.Errorf("it made %v", left)
			}
		})
	}
}

// Whoever looks for signatures is told of a folder of registries.d files that is
// not there: the signatures it should lead to would be missed without a word.
func TestAbsentRegistriesDir(t *testing.T) {
	config := servertest.WriteConfig(t, "registriesDir: absent\n")
	for _, args := range [][]string{
		{"import", "--dry-run", "127.0.0.1:1/app:v1"},
		{"verify", "127.0.0.1:1/app:v1", "--policy", coveringNothing(t)},
		{"serve", "--secure-port", "0", "--data-dir", filepath.Join(t.TempDir(), "data")},
	} {
		t.Run(args[0], func(t *testing.T) {
			code, _, stderr := tidewaiter(t, append(args, "--config", config)...)
			if code == cli.ExitOK {
				t.Error("exit code 0")
			}
			for _, w := range []string{config, "registriesDir", filepath.Join(filepath.Dir(config), "absent"), "hint: "} {
				if !strings.Contains(stderr, w) {
					t.Errorf("%q lacks %q", stderr, w)
				}
			}
		})
	}
}

// A server does not start with a policy that cannot work, and says which.
func TestServeRefusesABrokenPolicy(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.yaml"), []byte(`apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata: {name: broken}
spec:
  scopes: [registry.example.com]
  policy:
    rootOfTrust: {policyType: PublicKey, publicKey: {keyDat: TUlJ}}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := tidewaiter(t, "serve", "--data-dir", filepath.Join(dir, "data"), "--secure-port", "0", "--policy", dir)
	if code == cli.ExitOK || stdout != "" {
		t.Errorf("exit code %d, %q", code, stdout)
	}
	for _, w := range []string{"p.yaml", "document 1", "spec.policy.rootOfTrust.publicKey", "keyDat", "hint: "} {
		if !strings.Contains(stderr, w) {
			t.Errorf("%q lacks %q", stderr, w)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); !os.IsNotExist(err) {
		t.Errorf("a data directory was made: %v", err)
	}
}

// importDemo imports the demo's images into the server of a data directory, or
// the directory.
func importDemo(t *testing.T, host, dir string) {
	t.Helper()
	code, _, stderr := tidewaiter(t, "import", "--data-dir", dir, "--create-data-dir", host+"/harbour/lighthouse:v1", host+"/harbour/buoy:v1", host+"/harbour/ferry:v1")
	if code != cli.ExitOK {
		t.Fatalf("import: exit code %d: %s", code, stderr)
	}
}

// What was imported without a policy is judged once there is one: by a server
// that is told of it, and in a directory that no server holds.
func TestVerifyAll(t *testing.T) {
	host, policy := signedRegistry(t)
	const want = "5 images: 1 True, 2 ByIndex, 1 False, 0 Unknown, 1 Unsigned, 0 NoPolicy; "

	t.Run("directory", func(t *testing.T) {
		dir := t.TempDir()
		importDemo(t, host, dir)
		for _, changed := range []string{"[1-9] verdicts changed", "0 verdicts changed"} {
			// a platform may be judged before its index
			code, stdout, stderr := tidewaiter(t, "verify", "--all", "--data-dir", dir, "--policy", policy)
			if code != exitUntrusted || !regexp.MustCompile("^"+want+changed+"\n$").MatchString(stdout) {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
		}
	})
	t.Run("server", func(t *testing.T) {
		dir := t.TempDir()
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		config := serveWith(t, server.Options{DataDir: dir, Policy: policy}, listener)
		importDemo(t, host, dir)
		code, stdout, stderr := tidewaiter(t, "verify", "--all", "--data-dir", dir)
		if code != exitUntrusted || !strings.HasPrefix(stdout, want) {
			// the platforms may follow their index just now
			t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
		}
		code, stdout, stderr = tidewaiter(t, "verify", "--all", "--data-dir", dir, "-o", "json")
		var p reverify.Progress
		if err := json.Unmarshal([]byte(stdout), &p); err != nil || code != exitUntrusted || p.Examined != 5 || p.Running || p.Sweep < 2 {
			t.Errorf("exit code %d, %v, %+v, %q", code, err, p, stderr)
		}
		if code, stdout, stderr := tidewaiter(t, "verify", "--all", "--data-dir", dir, "--policy", policy); code != exitUntrusted || !strings.HasPrefix(stdout, "5 images: ") {
			t.Errorf("a policy for a running server: exit code %d, %q, %q", code, stdout, stderr)
		}
		// A server is named as it is for an import.
		t.Setenv("KUBECONFIG", server.KubeconfigPath(dir))
		if code, stdout, stderr := tidewaiter(t, "verify", "--all"); code != exitUntrusted || stdout != want+"0 verdicts changed\n" {
			t.Errorf("by KUBECONFIG: exit code %d, %q, %q", code, stdout, stderr)
		}
		if code, _, stderr := tidewaiter(t, "verify", "--all", "--data-dir", t.TempDir()); code != cli.ExitUsage || !strings.Contains(stderr, "no server holds") {
			t.Errorf("--data-dir beside KUBECONFIG: exit code %d, %q", code, stderr)
		}

		images, err := imageclient.New(config)
		if err != nil {
			t.Fatal(err)
		}
		for selector, n := range map[string]int{"signatures.verified=True": 1, "signatures.verified=False": 1, "signatures.verified=ByIndex": 2, "signatures.verified=Unsigned": 1, "signatures.signer=harbour-master": 3} {
			list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
			if err != nil || len(list.Items) != n {
				t.Errorf("%s: %d images, want %d: %v", selector, len(list.Items), n, err)
			}
		}
	})
}

// An image is judged by the tag that is asked about: a signature for one tag is none for another
// that was moved to the image, and the policy of a digest does not cover a tag.
func TestVerifyByTag(t *testing.T) {
	t.Parallel()
	const repository = "registry.example.com/team/app"
	digest := "sha256:" + strings.Repeat("a", 64)
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	content := signaturestest.Marshal(t, key.SimpleSigning(t, digest, repository+":v1.0"))
	strict := signaturestest.Document("strict", `["registry.example.com"]`, signaturestest.TrustKey(key, nil), "")
	ofDigest := signaturestest.Document("digest", `["`+repository+"@"+digest+`"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: DigestOnly}") +
		signaturestest.Document("strict", `["registry.example.com"]`, signaturestest.TrustKey(other, nil), "")
	for _, tc := range []struct{ policies, asked, verified, policy string }{
		{strict, repository + ":v1.0", verdicts.VerifiedTrue, "strict"},
		{strict, repository + ":v2.0", verdicts.VerifiedFalse, "strict"},
		{strict, repository, verdicts.VerifiedFalse, "strict"},
		{strict, repository + "@" + digest, verdicts.VerifiedTrue, "strict"},
		{ofDigest, repository + "@" + digest, verdicts.VerifiedTrue, "digest"},
		{ofDigest, repository + ":v1.0", verdicts.VerifiedFalse, "strict"},
	} {
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: repository + "@" + digest, Signatures: []imagev1.ImageSignature{{
			ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeSimpleSigning, Content: content,
		}}}
		ref, err := reference.Parse(tc.asked)
		if err != nil {
			t.Fatal(err)
		}
		got, err := judgeImage(tc.asked, ref.Pulled(), image, signaturestest.SetFrom(t, tc.policies), time.Now(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Verified != tc.verified || got.Policy != tc.policy {
			t.Errorf("%s is %s by %s, want %s by %s", tc.asked, got.Verified, got.Policy, tc.verified, tc.policy)
		}
	}
}
