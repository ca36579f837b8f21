package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
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

	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
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
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Config{}, Streams{}, streams.Rules{}, reference.Prefixes[policy.TagPatterns]{}), cmpopts.IgnoreTypes(yaml.Node{}, []byte(nil))); diff != "" {
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

// What is wrong with a part of what is swept is said with its line.
func TestSweepMistakesSayWhere(t *testing.T) {
	for text, want := range map[string]string{
		"sweep:\n  entries:\n  - repositories: [r.io/a/*]\n    listing: habor\n": "line 4: sweep.entries[0].listing: \"habor\" is no kind of list",
		"sweep:\n  entries:\n  - repositories:\n    - r.io/a/*\n    - r.io/A\n":  "line 5: sweep.entries[0].repositories[1]: ",
		"sweep:\n  every: 1s\n":                                                         "line 2: sweep.every: 1s is less than 1m0s",
		"sweep:\n  repositories:\n  - r.io/a\n  - r.io/*x/**/y\n":                       "line 4: sweep.repositories[1]: ",
		"sweep:\n  entries:\n  - repositories: [r.io/**]\n    listing: quay\n":          "line 3: sweep.entries[0].repositories[0]: ",
		"sweep:\n  entries:\n  - repositories: [r.io/a/*]\n    every: 5m\n    most: -1": "line 5: sweep.entries[0].most: ",
	} {
		c, err := Load(servertest.WriteConfig(t, text))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.CheckSweep(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if _, err := Load(servertest.WriteConfig(t, "sweep:\n  entries:\n  - repositories: [r.io/a/*]\n    evry: 5m\n")); err == nil || !strings.Contains(err.Error(), "line 4") {
		t.Errorf("a misspelt key: %v", err)
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

var writeConfig = flag.String("write-config", "", "file to write the reference of the configuration to")

const configDocument = "../../docs/reference/config.md"

// TestConfigDocument: docs/reference/config.md is what the types of the configuration say: the doc
// comments of the fields, their examples and whether they are reloaded. The server accepts the
// example. To write it again:
//
//	go test ./internal/config -run TestConfigDocument -write-config ../../docs/reference/config.md
func TestConfigDocument(t *testing.T) {
	t.Parallel()
	intro := docsOf(t, reflect.TypeFor[Config]())[""]
	var example strings.Builder
	writeExample(t, &example, reflect.TypeFor[Config](), "", "", map[reflect.Type]bool{})
	want := "# The configuration file\n\n<!-- Written by TestConfigDocument in internal/config. -->\n\n" +
		strings.Replace(intro, "Config is the", "The", 1) + "\n```yaml\n" + example.String() + "```\n"
	if *writeConfig != "" {
		if err := os.WriteFile(*writeConfig, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(configDocument)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run: go test ./internal/config -run TestConfigDocument -write-config %[1]s", configDocument)
	}
	if _, err := Load(servertest.WriteConfig(t, strings.Replace(example.String(), "ownPodsOnly: true", "", 1))); err != nil {
		t.Errorf("the example is refused: %v", err)
	}
}

// docsOf are the doc comments of the fields of a type, by name, and of the type itself, by "".
func docsOf(t *testing.T, of reflect.Type) map[string]string {
	t.Helper()
	docs := map[string]string{}
	files, err := filepath.Glob(filepath.Join("../..", strings.TrimPrefix(of.PkgPath(), "github.com/tidewaiter/tidewaiter"), "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			declaration, ok := d.(*ast.GenDecl)
			if !ok || declaration.Tok != token.TYPE || declaration.Specs[0].(*ast.TypeSpec).Name.Name != of.Name() {
				continue
			}
			docs[""] = declaration.Doc.Text()
			for _, f := range declaration.Specs[0].(*ast.TypeSpec).Type.(*ast.StructType).Fields.List {
				docs[f.Names[0].Name] = f.Doc.Text()
			}
		}
	}
	return docs
}

// writeExample writes each key of a type with its example. item stands before the first, which is
// that of a list. What was said of a type is not said again.
func writeExample(t *testing.T, b *strings.Builder, of reflect.Type, indent, item string, said map[reflect.Type]bool) {
	t.Helper()
	again, top := said[of], len(said) == 0
	said[of] = true
	docs, keys := docsOf(t, of), []string(nil)
	for i := range of.NumField() {
		keys = append(keys, of.Field(i).Name, strings.Split(of.Field(i).Tag.Get("yaml"), ",")[0])
	}
	for i := range of.NumField() {
		f := of.Field(i)
		if !f.IsExported() {
			continue
		}
		// "Name is a DNS label." is shown as "a DNS label".
		says := strings.Join(strings.Fields(docs[f.Name]), " ")
		if !strings.HasPrefix(says, f.Name) {
			t.Errorf("the doc comment of %s.%s is %q", of, f.Name, says)
		}
		says = regexp.MustCompile(`^`+f.Name+` (?:(?:is|are|has|have|says?) )?`).ReplaceAllString(says, "")
		for k := 0; k < len(keys); k += 2 {
			says = regexp.MustCompile(`\b`+keys[k]+`\b`).ReplaceAllString(says, keys[k+1])
		}
		if !strings.Contains(says, ". ") {
			says = strings.TrimSuffix(says, ".")
		}

		if top && i > 0 {
			b.WriteString("\n")
		}
		of, below := f.Type, ""
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
			if of.Kind() == reflect.Slice {
				below = "- "
			}
			of = of.Elem()
		}
		line := indent + item + strings.Split(f.Tag.Get("yaml"), ",")[0] + ":"
		if value := f.Tag.Get("example"); value != "" {
			line += " " + value
		}
		if f.Tag.Get("reload") != "" {
			line += " # at once"
		}
		if beside := line + " # " + says; again {
			// It is above.
		} else if !top && len(beside) <= 100 {
			line = beside
		} else {
			for _, text := range wrapped(says, 100-len(indent)) {
				fmt.Fprintf(b, "%s# %s\n", indent, text)
			}
		}
		b.WriteString(line + "\n")
		if indent += strings.Repeat(" ", len(item)); f.Tag.Get("example") == "" {
			writeExample(t, b, of, indent+strings.Repeat(" ", 2-len(below)), below, said)
		}
		item = ""
	}
}

// wrapped are the lines of a text.
func wrapped(text string, width int) (lines []string) {
	for _, word := range strings.Fields(text) {
		if last := len(lines) - 1; last < 0 || len(lines[last])+1+len(word) > width {
			lines = append(lines, word)
		} else {
			lines[last] += " " + word
		}
	}
	return lines
}

// The table of what is read about registries names keys of the configuration and flags.
func TestTheTableOfRegistries(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/importing.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	configKeys(reflect.TypeFor[Config](), "", func(path, _ string) { names[path[strings.LastIndexByte(path, '.')+1:]] = true })
	n := 0
	for _, row := range regexp.MustCompile(`(?m)^\|[^|]*\|[^|]*\|([^|]*)\|[^|]*\|$`).FindAllSubmatch(text, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(row[1], -1) {
			if n++; !names[string(m[1])] {
				t.Errorf("%s is named, and is not a key", m[1])
			}
		}
	}
	if n < 5 {
		t.Errorf("the column of keys has only %d", n)
	}
}

// What docs/reference/signatures.md shows of the configuration is accepted.
func TestTheConfigurationOfSignatures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/signatures.md")
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
		// none of the kubelet's is near
		"kubelet:\n  insecure: true\n":      "did you mean registries.insecure?",
		strings.Repeat("x", 1000) + ": 1\n": "there is no key",
	} {
		if _, err := Load(servertest.WriteConfig(t, text)); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 500 {
			t.Errorf("%.100q: %v", text, err)
		}
	}
}

// A policy that is given as a configuration is named, and where it belongs.
func TestPolicyIsNoConfiguration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"apiVersion: config.openshift.io/v1\nkind: ClusterImagePolicy\n": "it is a policy, not a configuration: give policies in --policy",
		"apiVersion: kyverno.io/v1\nkind: ClusterPolicy\n":               "it is a policy of Kyverno, not a configuration",
		`{"default": [{"type": "reject"}], "transports": {}}`:            "it is a policy of containers/image (policy.json), not a configuration",
		"apiVersion: v1\nkind: Secret\n":                                 `there is no key "apiVersion" here`,
	} {
		if _, err := Parse("config.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The tags that must not move are those of the longest prefix that has some, by elements of the
// path; an empty list is none.
func TestImmutable(t *testing.T) {
	_, err := Parse("config.yaml", []byte(`registries:
- {prefix: "registry.example.com:443", immutableTags: ["v*"]}
- {prefix: registry.example.com/team, immutableTags: ["*-release", "1.?"]}
`))
	if err == nil || !strings.Contains(err.Error(), `line 3: registries[1].immutableTags: "1.?" is not a pattern of tags`) {
		t.Errorf("%v", err)
	}
	c, err := Parse("config.yaml", []byte(`registries:
- {prefix: "registry.example.com", immutableTags: ["v*"]}
- {prefix: registry.example.com/team, immutableTags: ["*-release", "stable"]}
- {prefix: registry.example.com/team/app, insecure: true}
- {prefix: registry.example.com/team/free, immutableTags: []}
- {prefix: docker.io/acme, immutableTags: ["*"]}
`))
	if err != nil {
		t.Fatal(err)
	}
	for tag, want := range map[string]string{
		"registry.example.com/x:v1": "immutableTags of registry.example.com: v*", "registry.example.com/x:latest": "",
		"registry.example.com/teams/x:v1": "immutableTags of registry.example.com: v*", "registry.example.com/team/x:v1": "",
		"registry.example.com/team/app:stable": "immutableTags of registry.example.com/team: stable", "registry.example.com/team/x:1-release": "immutableTags of registry.example.com/team: *-release",
		"registry.example.com/team/free:v1": "", "acme/web:v1": "immutableTags of docker.io/acme: *", "nginx:v1": "", "other.example.com/x:v1": "",
	} {
		ref, err := reference.Parse(tag)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Immutable(ref); got != want {
			t.Errorf("%s must not move by %q, want %q", tag, got, want)
		}
	}
}
