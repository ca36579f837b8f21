package main

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// never is what no error may have: words of libraries, raw answers, Go's types.
var never = []string{
	"!!", "main.", "server.", "could not find the requested resource", `Get "https`, `Post "https`, "404 page not found", `{"kind"`, "x509:", "tls:", "strconv.", "arg(s)", "asked for the client to provide credentials",
	"bind:", "dial tcp", "image client", "unknown error", "%!", "<nil>",
}

// Each mistake is answered with what happened and the way out.
func TestMistakes(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	authority := func(name string, c *x509.Certificate) string {
		return file(name, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})))
	}
	data := filepath.Join(dir, "data")
	config := serveOn(t, data, listen(t))
	server, ca := config.Host, filepath.Join(data, "pki", "ca.crt")
	robot := file("robot", serviceAccountToken(t, kubernetes.NewForConfigOrDie(config), "ci", "robot", authenticationv1.TokenRequestSpec{}))
	cluster := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}`))
	}))
	t.Cleanup(cluster.Close)
	web := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	kubernetesCA, webCA := authority("kubernetes.crt", cluster.Certificate()), authority("web.crt", web.Certificate())

	type mistake struct {
		name string
		args []string
		want []string // in what is printed
	}
	var all []mistake
	add := func(name string, args []string, want ...string) { all = append(all, mistake{name, args, want}) }
	with := func(args []string, more ...string) []string { return append(append([]string{}, args...), more...) }
	verbs := map[string][]string{
		"get": {"get", "team/app:v1"}, "describe": {"describe", "team/app:v1"}, "history": {"history", "r.example.com/team/app:v1"}, "diff": {"diff", "team/app:v1", "team/app:v2"}, "pods": {"pods", "team/app:v1"}, "images": {"images"},
		"prune": {"prune"}, "spool list": {"spool", "list"}, "spool retry": {"spool", "retry", "1"}, "spool drop": {"spool", "drop", "1"}, "verify --all": {"verify", "--all"}, "import": {"import", "r.example.com/team/app:v1"},
		"import --from-pods": {"import", "--from-pods", "-A"},
	}
	for verb, args := range verbs {
		add(verb+" with a bad token", with(args, "--server", server, "--certificate-authority", ca, "--token", "bad"), "the server rejected the credential", "create token")
		add(verb+" with an unknown authority", with(args, "--server", server), "signed by an unknown authority", "--certificate-authority", "pki/ca.crt")
		add(verb+" where nothing listens", with(args, "--server", "https://127.0.0.1:1"), "no server answers at 127.0.0.1:1", "tidewaiter serve")
		add(verb+" where there is no host", with(args, "--server", "https://nohost.invalid:6443"), "nohost.invalid")
		if verb != "import" && verb != "import --from-pods" { // an import meets the registry first
			add(verb+" of another cluster", with(args, "--server", cluster.URL, "--certificate-authority", kubernetesCA, "--token", "x"), "not a tidewaiter server", "context")
			add(verb+" of a web server", with(args, "--server", web.URL, "--certificate-authority", webCA, "--token", "x"), "not a tidewaiter server", "context")
		}
		add(verb+" over plain HTTP", with(args, "--server", strings.Replace(plain.URL, "http:", "https:", 1)), "speaks plain HTTP")
	}
	asRobot := func(args ...string) []string {
		return with(args, "--server", server, "--certificate-authority", ca, "--token-file", robot)
	}
	for _, verb := range []string{"get", "describe", "history", "pods"} {
		add("no right to "+verb, asRobot(verb, "team/app:v1"), "tidewaiter:image-viewer", "kubectl create clusterrolebinding NAME --clusterrole=tidewaiter:image-viewer --serviceaccount=ci:robot")
	}
	add("no right to list what pods run", asRobot("images"), "kubectl create rolebinding NAME --namespace=default --clusterrole=view")
	add("no right to review acts", asRobot("impact", "--registry", "r.example.com"), "kubectl create clusterrolebinding NAME --clusterrole=tidewaiter:image-viewer")
	add("no right to see the queue", asRobot("spool", "list"), `cannot get path "/tidewaiter/spool"`, "the role tidewaiter:queue-viewer allows it", "--serviceaccount=ci:robot")
	add("no right to retry", asRobot("spool", "retry", "1"), "the role tidewaiter:queue-operator allows it")
	add("no right to verify", asRobot("verify", "--all"), "the role tidewaiter:verifier allows it")
	add("no right to import", asRobot("import", "r.example.com/team/app:v1"), "the role tidewaiter:importer allows it")
	add("no right to prune", asRobot("prune"), "allows it")
	add("no right to pods", asRobot("import", "--from-pods", "-A"), "the role view allows it")

	add("console where nothing listens", []string{"console", "--open=false", "--server", "https://127.0.0.1:1"}, "no server answers at 127.0.0.1:1")
	add("console with an unknown authority", []string{"console", "--open=false", "--server", server}, "signed by an unknown authority")
	add("console of another cluster", []string{"console", "--open=false", "--server", cluster.URL, "--certificate-authority", kubernetesCA}, "not a tidewaiter server", "context")
	for _, verb := range []string{"list", "image", "show"} {
		add("the verb "+verb, []string{verb, "team/app:v1"}, `unknown command "`+verb+`"`, "Did you mean this?", "get")
	}

	serve := func(args ...string) []string { return with([]string{"serve", "--secure-port", "0"}, args...) }
	fresh := filepath.Join(dir, "fresh")
	add("a directory in use", serve("--data-dir", data), "is in use by process "+strconv.Itoa(os.Getpid()), server)
	add("an address of another machine", []string{"serve", "--data-dir", fresh, "--bind-address", "192.0.2.1", "--secure-port", "6443"}, "192.0.2.1:6443 is not an address of this machine", "--bind-address 0.0.0.0")
	add("a port in use", []string{"serve", "--data-dir", fresh, "--bind-address", "127.0.0.1", "--secure-port", port}, "127.0.0.1:"+port+" is in use by another program", "--secure-port")
	for name, c := range map[string]struct{ text, want string }{
		"clusters as a mapping":   {"clusters:\n  prod: {kubeconfig: x}\n", `line 2: clusters is a mapping, and must be a list: lines that each begin with "- "`},
		"a duration without":      {"sweep:\n  every: 6\n", `line 2: sweep.every is "6", and must be a duration with its unit, such as 6s, 6m or 6h`},
		"a host for a list":       {"receivers:\n- name: a\n  hosts: r.io\n", `line 3: receivers.hosts is "r.io", and must be a list, such as [r.io]`},
		"a word for a list":       {"registries: yes\n", `registries is "yes", and must be a list`},
		"a list for a text":       {"clusters:\n- name: x\n  kubeconfig: [a]\n", "line 3: clusters.kubeconfig is a list, and must be a text"},
		"a text for a yes":        {"registries:\n- prefix: r.example.com\n  insecure: maybe\n", `registries.insecure is "maybe", and must be true or false`},
		"a text for a number":     {"registries:\n- prefix: r.example.com\n  requestsAtATime: many\n", `registries.requestsAtATime is "many", and must be a whole number`},
		"a list for a mapping":    {"streams:\n- auto\n", "streams is a list, and must be a mapping"},
		"an unknown key":          {"registrys: []\n", `there is no key "registrys" here; did you mean registries?`},
		"something but no YAML":   {"a: [\n", "line 1"},
		"two documents":           {"{}\n---\n{}\n", "more than one YAML document"},
		"a receiver of no type":   {"receivers:\n- {name: a, type: docker, secretFile: x, hosts: [r.example.com]}\n", `type "docker" is not known; use one of acr, `},
		"a name of no cluster":    {"clusters:\n- {name: Prod, kubeconfig: " + filepath.Join(data, "admin.kubeconfig") + "}\n", `the cluster name "Prod"`},
		"a kubelet without a key": {"kubelet: {certFile: x}\n", "give both the certificate and its key, or neither"},
		"a registry's bad prefix": {"registries:\n- prefix: https://r.example.com\n", "registries[0]"},
	} {
		path := file(strings.ReplaceAll(name, " ", "-")+".yaml", c.text)
		add("configuration: "+name, serve("--data-dir", fresh, "--config", path), c.want)
		add("checked configuration: "+name, []string{"config", "check", path}, c.want)
	}
	add("no configuration to check", []string{"config", "check", filepath.Join(dir, "none.yaml")}, "none.yaml: no such file")
	add("no configuration", serve("--data-dir", fresh, "--config", filepath.Join(dir, "none.yaml")), "none.yaml", "leave --config out")
	key := "policyType: PublicKey, publicKey: {keyData: aGVsbG8=}"
	document := func(spec string) string {
		return "apiVersion: config.openshift.io/v1\nkind: ClusterImagePolicy\nmetadata: {name: x}\nspec: " + spec + "\n"
	}
	for name, c := range map[string]struct{ text, want string }{
		"PubKey":            {document("{scopes: [a.example.com], policy: {rootOfTrust: {policyType: PubKey, publicKey: {keyData: aGVsbG8=}}}}"), `spec.policy.rootOfTrust.policyType: is "PubKey", must be one of PublicKey, FulcioCAWithRekor, PKI, TrustedRoot, GPGKeys, Notary; did you mean PublicKey?`},
		"no key":            {document("{scopes: [a.example.com], policy: {rootOfTrust: {" + key + "}}}"), "publicKey.keyData: is not a public key in PEM form"},
		"not base64":        {document("{scopes: [a.example.com], policy: {rootOfTrust: {policyType: PublicKey, publicKey: {keyData: '-----BEGIN'}}}}"), "publicKey.keyData: is not base64"},
		"a scope":           {document("{scopes: [registry], policy: {rootOfTrust: {" + key + "}}}"), "the host with its port, as in registry:5000"},
		"an unknown field":  {document("{scope: [a.example.com]}"), "spec.scope: unknown field; known here: alternatives, exceptions, policy, scopes"},
		"sigstore":          {"apiVersion: policy.sigstore.dev/v1beta1\nkind: ClusterImagePolicy\nmetadata: {name: x}\nspec: {images: [{glob: '**'}]}\n", "is a policy of sigstore's policy-controller, not a ClusterImagePolicy of config.openshift.io/v1"},
		"Kyverno":           {"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {rules: []}\n", "is a policy of Kyverno"},
		"containers/image":  {`{"default":[{"type":"reject"}],"transports":{}}`, "is a policy of containers/image (policy.json)"},
		"notation":          {`{"version":"1.0","trustPolicies":[]}`, "is a policy of notation (trustpolicy.json)"},
		"a namespaced kind": {strings.Replace(document("{}"), "ClusterImagePolicy", "ImagePolicy", 1), "apply it to the server with kubectl"},
		"another kind":      {"apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n", "apiVersion: is \"v1\", must be config.openshift.io/v1"},
		"nothing":           {"", "holds no ClusterImagePolicy document"},
	} {
		path := file(strings.NewReplacer(" ", "-", "/", "-").Replace(name)+".policy.yaml", c.text)
		add("policy: "+name, []string{"verify", "--policy", path, "r.example.com/team/app:v1"}, c.want)
		add("policy of a server: "+name, serve("--data-dir", fresh, "--policy", path), c.want)
	}
	add("policy: no file", []string{"verify", "--policy", filepath.Join(dir, "none"), "r.example.com/team/app:v1"}, "none: no such file")

	add("an architecture", []string{"import", "--dry-run", "--platform", "arm64", "r.example.com/a:1"}, `did you mean linux/arm64?`, "--platform is os/architecture")
	add("no platform", []string{"import", "--dry-run", "--platform", "windows", "r.example.com/a:1"}, `"windows" is not os/architecture`, "--platform is os/architecture")
	add("an unknown mode of layers", []string{"import", "--dry-run", "--layers", "all", "r.example.com/a:1"}, "--layers manifest or --layers verify")
	add("a misspelt flag", []string{"import", "--tlsverify=false", "--dry-run", "--token", "secret", "r.example.com/a:1"}, "did you mean --tls-verify? Try: tidewaiter import --tls-verify=false --dry-run --token … r.example.com/a:1")
	add("an unknown flag", []string{"import", "--frobnicate"}, "unknown flag: --frobnicate", "tidewaiter import --help")
	add("a number", []string{"import", "--jobs", "x", "r.example.com/a:1"}, `--jobs "x" is not a whole number`)
	add("an unknown verb", []string{"imprt"}, `unknown command "imprt"`)
	for verb, usage := range map[string]string{"get": "tidewaiter get", "describe": "tidewaiter describe", "history": "tidewaiter history", "diff": "tidewaiter diff", "restore": "tidewaiter restore", "backup": "tidewaiter backup"} {
		add(verb+" without arguments", []string{verb}, usage+" needs", "usage: "+usage)
	}
	add("a scheme", []string{"import", "--dry-run", "https://r.example.com/a"}, "no URL scheme", "r.example.com/a")
	add("capitals", []string{"import", "--dry-run", "r.example.com/Team/app"}, "lower case", "r.example.com/team/app")
	add("no server and no directory", []string{"import", "--data-dir", filepath.Join(dir, "none"), "r.example.com/a:1"}, "there is nowhere to import into", "--create-data-dir")
	add("no server", []string{"get", "--data-dir", filepath.Join(dir, "none"), "a"}, "no server holds", "tidewaiter serve --data-dir")
	add("plain HTTP", []string{"get", "--server", "http://127.0.0.1:6443", "a"}, "does not begin with https://")
	add("two places", []string{"get", "--server", server, "--data-dir", data, "a"}, "--data-dir conflicts with")
	// A command that is suggested asks the same server in the same way, and a hint is about the
	// flag that was wrong.
	admin, unknown := config.BearerToken, "nowhere.example.com/team/app:v1"
	there := []string{"--server", server, "--certificate-authority", ca, "--token-file", file("admin", admin)}
	kept := " --certificate-authority " + ca + " --server " + server + " --token-file " + filepath.Join(dir, "admin")
	add("no kubeconfig", []string{"get", "--kubeconfig", filepath.Join(dir, "none"), "a"}, "none: no such file", "--kubeconfig")
	add("no kubeconfig for a console", []string{"console", "--kubeconfig", filepath.Join(dir, "none")}, "error: "+filepath.Join(dir, "none")+": no such file")
	add("no policies to preview", with([]string{"policy", "preview"}, there...), "which policies?", "hint: tidewaiter policy preview"+kept+" -f strict.yaml")
	add("no act", []string{"impact"}, "which act?", "--revoke-key cosign.pub")
	add("a document of commands", with([]string{"prune", "--plan", "registry", "r.example.com", "--commands", "crane", "-o", "json"}, there...), "give one of them")
	add("no token file", []string{"get", "--server", server, "--token-file", filepath.Join(dir, "none"), "a"}, "none: no such file")
	add("no authority", []string{"get", "--server", server, "--certificate-authority", filepath.Join(dir, "none"), "a"}, "none: no such file")
	add("no configuration to check", []string{"config", "check", filepath.Join(dir, "none")}, "none: no such file", "hint: tidewaiter config check FILE")
	add("no list", []string{"import", "--dry-run", "-f", filepath.Join(dir, "none")}, "none: no such file")

	for _, verb := range []string{"get", "describe", "history", "verify"} {
		add(verb+" of what is not known, with flags", with([]string{verb, unknown}, there...), "hint: tidewaiter import"+kept+" "+unknown)
		add(verb+" in capitals, with flags", with([]string{verb, "-o", "yaml", "r.example.com/Team/app:v1"}, there...), "hint: tidewaiter "+verb+" --certificate-authority "+ca+" -o yaml --server "+server+" --token-file "+filepath.Join(dir, "admin")+" r.example.com/team/app:v1")
		add(verb+" of digits", with([]string{verb, "18b9f2576376"}, there...), "18b9f2576376")
		add(verb+" of a name without a registry", with([]string{verb, "team/app"}, there...), "hint: add the name of the registry, as in registry.example.com/team/app")
	}
	add("diff of digits", with([]string{"diff", "18b9f2576376", "team/app"}, there...), "18b9f2576376")
	add("diff of a name without a registry", with([]string{"diff", "team/app", "18b9f2576376"}, there...), "hint: add the name of the registry")
	add("pods of digits", with([]string{"pods", "18b9f2576376"}, there...), "18b9f2576376")
	add("pods of a name without a registry", with([]string{"pods", "team/app"}, there...), "hint: add the name of the registry")
	add("a check of digits", with([]string{"describe", "--check", "18b9f2576376"}, there...), "18b9f2576376")
	add("a check of a name without a registry", with([]string{"describe", "--check", "team/app"}, there...), "hint: add the name of the registry")
	add("diff of what is not known, with flags", with([]string{"diff", unknown, "a"}, there...), "hint: tidewaiter import"+kept+" "+unknown)
	add("diff in capitals", with([]string{"diff", "R.example.com/Team/app:v1", "b"}, there...), "hint: tidewaiter diff"+kept+" r.example.com/team/app:v1 b")
	add("pods of what is not known, with flags", with([]string{"pods", unknown}, there...), "hint: tidewaiter import"+kept+" "+unknown)
	add("two references with flags", with([]string{"verify", "--all", "a"}, there...), "remove the extra arguments")
	add("both tokens", with([]string{"get", "a", "--token", "x"}, there...), "--token and --token-file exclude each other", "give one of them")
	add("all images", with([]string{"get", "images"}, there...), "get takes one reference", "hint: kubectl get images lists all")
	add("no range", with([]string{"impact", "--package", "openssl@<"}, there...), `error: spec.package: Invalid value: "openssl@<": "<" is not a range of versions`)
	add("an old output", with([]string{"get", "-o", "xml", "a"}, there...), "-o xml is not known", "-o is one of wide, json, yaml, name")
	add("a secret in a hint", []string{"get", unknown, "--server", server, "--certificate-authority", ca, "--token", admin}, "hint: tidewaiter import --certificate-authority "+ca+" --server "+server+" --token … "+unknown)
	add("no IDs, with flags", with([]string{"spool", "retry"}, there...), "hint: tidewaiter spool list"+kept+" shows the IDs")
	add("no jobs, with flags", with([]string{"import", "--jobs", "0", "r.example.com/a:1"}, there...), "hint: tidewaiter import"+kept+" --jobs 8")
	add("a flag without its value", []string{"get", "a", "--server"}, "--server needs a value", "--server: URL of the server")
	add("one of two arguments", with([]string{"diff", "a"}, there...), "tidewaiter diff needs more arguments", "usage: tidewaiter diff A B")
	add("three of two arguments", with([]string{"diff", "a", "b", "c"}, there...), "tidewaiter diff takes fewer arguments")
	add("another kubeconfig", with([]string{"import", "--from-pods", "-A", "--source-kubeconfig", filepath.Join(dir, "none")}, there...), "--source-kubeconfig: ", "hint: --source-kubeconfig names")
	add("no credentials", []string{"verify", "--policy", file("empty.yaml", ""), "--authfile", filepath.Join(dir, "none"), "r.example.com/a"}, "holds no ClusterImagePolicy document")
	add("no policy to try", with([]string{"verify", "--all", "--policy", filepath.Join(dir, "none")}, there...), "none: no such file", "hint: a policy is in a file, or in a folder")
	add("no right to check", asRobot("describe", "--check", "r.example.com/team/app:v1"), "tidewaiter:image-viewer")
	add("an index of a platform", with([]string{"describe", "--platform", "arm64", unknown}, there...), "nowhere.example.com/team/app:v1")

	add("a short beginning of a digest", with([]string{"get", "8f8"}, there...), "the beginning of a digest has at least 4 digits")
	if len(all) < 155 {
		t.Errorf("%d mistakes", len(all))
	}
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			code, stdout, stderr := tidewaiter(t, m.args...)
			if code == cli.ExitOK {
				t.Fatalf("it succeeds: %s%s", stdout, stderr)
			}
			for _, want := range m.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q does not say %q", stderr, want)
				}
			}
			if i := strings.Index(stderr, "hint: tidewaiter"); i >= 0 && (strings.Contains(stderr[i:], "docker.io/") || strings.Contains(stderr[i:], "import 18b9")) {
				t.Errorf("%q suggests another registry", stderr)
			}
			for _, word := range never {
				if strings.Contains(stderr, word) {
					t.Errorf("%q says %q", stderr, word)
				}
			}
		})
	}
	t.Run("KUBECONFIG names nothing", func(t *testing.T) {
		none := filepath.Join(dir, "none")
		t.Setenv("KUBECONFIG", none)
		if code, _, stderr := tidewaiter(t, "get", "a"); code == cli.ExitOK || !strings.Contains(stderr, "no server is configured in "+none) {
			t.Errorf("%d %s", code, stderr)
		}
	})
}
