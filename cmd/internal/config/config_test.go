package config

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/cmd/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/imageapi/streams"
)

const goodConfig = `registries:
- prefix: registry.example.com:5000
  insecure: true
- prefix: quay.io/acme
  tokenHosts: [auth.example.com]
registriesDir: registries.d
kubelet:
  address: "{nodeName}:10250"
  certFile: kubelet.crt
  keyFile: /etc/kubelet.key
sweep:
  every: 12h
  repositories: [registry.example.com:5000/team/app]
`

func TestLoadConfig(t *testing.T) {
	path := servertest.WriteConfig(t, goodConfig)
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Registries: []Registry{
			{Prefix: "registry.example.com:5000", Insecure: true},
			{Prefix: "quay.io/acme", TokenHosts: []string{"auth.example.com"}},
		},
		RegistriesDir: filepath.Join(filepath.Dir(path), "registries.d"),
		file:          path,
		Kubelet:       &Kubelet{Address: "{nodeName}:10250", CertFile: filepath.Join(filepath.Dir(path), "kubelet.crt"), KeyFile: "/etc/kubelet.key"},
		Sweep:         Sweep{Every: 12 * time.Hour, Repositories: []string{"registry.example.com:5000/team/app"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Config{}, Streams{}, streams.Rules{}), cmpopts.IgnoreTypes(yaml.Node{})); diff != "" {
		t.Error(diff)
	}
}

func TestEmptyConfigs(t *testing.T) {
	for _, path := range []string{"", servertest.WriteConfig(t, ""), servertest.WriteConfig(t, "# nothing\n")} {
		if got, err := Load(path); err != nil || len(got.Registries) != 0 {
			t.Errorf("%q: %+v, %v", path, got, err)
		}
	}
}

func TestConfigErrorsSayWhere(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"misspelt key":       {"registries:\n- prefix: a\n  insecur: true\n", []string{"line 3", "insecur"}},
		"unknown section":    {"mirrors: []\n", []string{"line 1", "mirrors"}},
		"wrong type":         {"registries:\n- prefix: a\n  insecure: perhaps\n", []string{"line 3", "perhaps"}},
		"not a duration":     {"sweep:\n  every: daily\n", []string{"line 2", "daily"}},
		"no YAML":            {"registries: [\n", []string{"line"}},
		"key twice":          {"registries: []\nregistries: []\n", []string{"registries", "already"}},
		"two documents":      {"registries: []\n---\nregistries: []\n", []string{"more than one"}},
		"equal prefixes":     {"streams:\n  namespaces:\n  - {prefix: a.b/c, namespace: x}\n  - {prefix: a.b/c, namespace: y}\n", []string{"line 4", "streams.namespaces[1]: prefix: another rule"}},
		"one namespace":      {"streams:\n  namespaces:\n  - {prefix: a.b/c, namespace: x}\n  - {prefix: a.b/d, namespace: x}\n", []string{"line 4", "streams.namespaces[1]: namespace: ", "a.b/c"}},
		"no namespace":       {"streams:\n  namespaces:\n  - prefix: a.b/c\n", []string{"line 3", "streams.namespaces[0]: namespace: "}},
		"bad namespace":      {"streams:\n  namespaces:\n  - {prefix: a.b/c, namespace: X}\n", []string{"line 3", "not a namespace"}},
		"beyond every limit": {strings.Repeat("#", maxFile+1), []string{"larger"}},
	} {
		t.Run(name, func(t *testing.T) {
			path := servertest.WriteConfig(t, tt.text)
			got, err := Load(path)
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			for _, w := range append(tt.want, path) {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not contain %q", err, w)
				}
			}
		})
	}
}

// Whatever the file holds, it is read or refused, never both, and reading it is
// no danger.
func FuzzLoadConfig(f *testing.F) {
	f.Add(goodConfig)
	f.Add("registries: &a [*a]\n")
	f.Add("registries:\n- {prefix: a, insecure: true}\n---\n")
	f.Add("\x00\xff: {")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load(servertest.WriteConfig(t, text))
		if (c == nil) == (err == nil) {
			t.Errorf("config %v and error %v", c, err)
		}
		if c == nil {
			return
		}
		for _, path := range []string{"registries[0].caFile", "streams.namespaces[1]", "hooks.listen"} {
			if line := lineOf(&c.document, path); line < 0 || line > strings.Count(text, "\n")+1 {
				t.Errorf("%s is in line %d of %q", path, line, text)
			}
		}
	})
}

// docs/reference/config.md shows every key in its place, what it shows is accepted, and it names no key that there is not.
func TestTheDocumentOfTheConfigurationIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	for _, example := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1) {
		if _, err := Load(servertest.WriteConfig(t, string(example[1]))); err != nil {
			t.Errorf("an example is refused: %v", err)
		}
		var node yaml.Node
		if err := yaml.Unmarshal(example[1], &node); err != nil {
			t.Fatal(err)
		}
		documentKeys(&node, "", func(path string, _ *yaml.Node) bool {
			shown[path] = true
			return true
		})
	}
	names := map[string]bool{}
	configKeys(reflect.TypeFor[Config](), "", func(path, _ string) {
		if !shown[path] {
			t.Errorf("%s is not shown", path)
		}
		delete(shown, path)
		names[path[strings.LastIndexByte(path, '.')+1:]] = true
	})
	for path := range shown {
		t.Errorf("%s is shown, and is no key", path)
	}

	// The table of what else is read has a column of keys. Elsewhere, a key is told from other words by a capital inside.
	var named []string
	code := regexp.MustCompile("`([^`]+)`")
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]*\|[^|]*\|([^|]*)\|[^|]*\|$`).FindAllSubmatch(text, -1) {
		for _, m := range code.FindAllSubmatch(row[1], -1) {
			named = append(named, string(m[1]))
		}
	}
	if len(named) < 5 {
		t.Errorf("the column of keys has only %q", named)
	}
	for _, m := range regexp.MustCompile("`([a-z]+[A-Z][A-Za-z]*)`").FindAllSubmatch(text, -1) {
		named = append(named, string(m[1]))
	}
	for _, name := range named {
		if !names[name] {
			t.Errorf("%s is named, and is no key", name)
		}
	}
}

// What docs/reference/signatures.md shows of the configuration is accepted.
func TestTheConfigurationOfSignatures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/reference/signatures.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)```yaml\n((?:registriesDir|trustedRoots):.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(shown) != 2 {
		t.Errorf("%d parts of a configuration", len(shown))
	}
	for _, block := range shown {
		if _, err := Load(servertest.WriteConfig(t, block[1])); err != nil {
			t.Errorf("%v in\n%s", err, block[1])
		}
	}
}

func TestUnknownKeysNameTheNearest(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"registries:\n- prefix: a\n  insecur: true\n":               `line 3: there is no key "insecur" here; did you mean registries.insecure?`,
		"registry:\n- prefix: a\n":                                  `line 1: there is no key "registry" here; did you mean registries?`,
		"streams: {publicRegistry: a.example.com}\n":                "line 1: streams.publicRegistry: this is another name for streams.registry, which is not set",
		"streams: {registry: a.example.com, publicRegistry: a/b}\n": "streams.publicRegistry: ",
		"streams:\n  registri: a\n":                                 `line 2: there is no key "registri" here; did you mean streams.registry?`,
		"sweep:\n  intervall: 6h\n  every: 6h\n":                    `line 2: there is no key "intervall"`,
		"registries:\n- prefix: a\n  CAfile: x\n":                   "did you mean registries.caFile?",
		"receivers:\n- nam: x\n":                                    `line 2: there is no key "nam" here; did you mean receivers.name?`,
		"receivers:\n- oidc:\n    isuer: x\n":                       "did you mean receivers.oidc.issuer?",
		"imageTagMirrors: [{sourc: x}]\n":                           "did you mean imageTagMirrors.source?",
		"imageDigestMirrors: [{sourc: x}]\n":                        "did you mean imageDigestMirrors.source?",
		"{clusters: [{nam: x}], receivers: [{nam: x}]}\n":           "did you mean clusters.name? docs/reference/config.md has all keys; line 1: there is no key \"nam\" here; did you mean receivers.name?",
		"importRuning: true\n":                                      "did you mean importRunning?",
		"clusters: [{importRuning: true}]\n":                        "did you mean clusters.importRunning?",
		"kubelet:\n  insecure: true\n":                              "did you mean registries.insecure?", // none of the kubelet's is near
		strings.Repeat("x", 1000) + ": 1\n":                         "there is no key",
	} {
		if _, err := Load(servertest.WriteConfig(t, text)); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.100q: %v", text, err)
		}
	}
}
