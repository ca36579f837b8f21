// Command tools builds the unmodified programs the end-to-end tests drive, into
// e2e/.tools, from Go modules and Debian packages. Nothing is installed on the
// machine and root is not needed.
//
//	go run ./tools               # all that "make e2e" needs
//	go run ./tools kubectl       # one of them
//	go run ./tools -list         # names and versions
//
// A program that is already there in the pinned version is left alone, so
// running it again costs a moment.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// A tool is one thing the tests need below .tools.
type tool struct {
	name    string
	version string
	what    string
	// present reports whether the tool is installed in this version.
	present func(d dirs) bool
	install func(d dirs) error
	asked   bool // it is installed only when it is named: no test of .ci/run needs it
}

// dirs are the places tools are put, absolute.
type dirs struct {
	module string // folder of the module github.com/tidewaiter/tidewaiter/e2e
	root   string // .tools
	bin    string // .tools/bin
}

// The operator of Prometheus, of which we need files only.
const operator, operatorVersion = "github.com/prometheus-operator/prometheus-operator", "v0.85.0"

// tools are the pinned versions: this table, and the line of k8s.io/kubernetes
// in go.mod (of Trillian: in trillian/go.mod, of the OpenID Connect provider: in oidc/go.mod),
// are the only places that name one.
// The slow ones are last.
var tools = []tool{
	kubectl(),
	moduleProgram("registry", "github.com/distribution/distribution/v3", "v3.1.2", "cmd/registry",
		"OCI registry of the CNCF distribution project"),
	npmFile("axe", "axe-core", "4.10.3", "sha512-Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==", "axe.min.js",
		"rules by which pages can be used by everybody, for the console"),
	debianProgram("docker-registry", "the same project's release 2.8, as Debian packages it"),
	moduleProgram("crane", "github.com/google/go-containerregistry", "v0.22.1", "cmd/crane",
		"client of registries"),
	moduleData("images", "busybox", "github.com/wagoodman/dive", "v0.13.2-0.20250516191726-d6c691947f8f", ".data/test-docker-image.tar",
		"a real image of 14 layers, saved by Docker"),
	moduleData("images", "hello-world", "github.com/google/go-containerregistry", "v0.22.1", "pkg/v1/tarball/testdata/hello-world-v25.tar",
		"the hello-world image, saved by Docker 25"),
	moduleProgram("staticcheck", "honnef.co/go/tools", "v0.8.2", "cmd/staticcheck",
		"linter of .ci/run"),
	moduleProgram("validate-krew-manifest", "sigs.k8s.io/krew", "v0.4.3", "cmd/validate-krew-manifest",
		"what krew's index accepts"),
	moduleProgram("govulncheck", "golang.org/x/vuln", "v1.7.0", "cmd/govulncheck",
		"known vulnerabilities in what is called, for .ci/run"),
	named(conformance()),
	withStaging("kube-apiserver", kubernetes, "/cmd/kube-apiserver", "the API server of a cluster that Tidewaiter is part of", "build"),
	withStaging("kube-controller-manager", kubernetes, "/cmd/kube-controller-manager", "the controllers of that cluster", "build"),
	helm(),
	moduleData("crds", "servicemonitors", operator, operatorVersion, "example/prometheus-operator-crd/monitoring.coreos.com_servicemonitors.yaml",
		"a kind of the operator of Prometheus"),
	moduleData("crds", "prometheusrules", operator, operatorVersion, "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
		"another one"),
	debianProgram("prometheus", "Prometheus, for alerts and dashboards, with promtool", "promtool"),
	withStaging("etcd", "go.etcd.io/etcd/server/v3", "", "the storage of that cluster", "build"),
	staged("etcdutl", "go.etcd.io/etcd/etcdutl/v3", requiredVersion("go.etcd.io/etcd/server/v3"), "", "what restores its snapshots", "build"),
	named(moduleProgram("kine", "github.com/k3s-io/kine", "v0.17.5", "", "etcd's API over SQL databases, for make nightly")),
	named(moduleProgram("kwok", "sigs.k8s.io/kwok", "v0.8.0", "cmd/kwok",
		"nodes and kubelets of clusters that are followed, for make nightly")),
	named(moduleProgram("osv-scanner", "github.com/google/osv-scanner/v2", "v2.5.0", "cmd/osv-scanner",
		"what finds advisories of lists of packages, for make nightly (some minutes to build)")),
	moduleProgram("litestream", "github.com/benbjohnson/litestream", "v0.3.14", "cmd/litestream",
		"replication of SQLite files (some minutes to build)"),
	moduleProgram("cosign", "github.com/sigstore/cosign/v3", "v3.1.3", "cmd/cosign",
		"signing tool of the sigstore project (several minutes to build)"),
	ownProgram("trillian", "Merkle tree below rekor-server: Google's Trillian in memory"),
	ownProgram("oidc", "provider of OpenID Connect: the example server of zitadel's library"),
	moduleProgram("rekor-server", "github.com/sigstore/rekor", "v1.5.4", "cmd/rekor-server",
		"transparency log of the sigstore project, version 1 (some minutes to build)"),
	moduleProgram("posix", "github.com/sigstore/rekor-tiles/v2", "v2.3.0", "cmd/rekor-server/posix",
		"the same, version 2, in files"),
	named(withSymbols("fulcio", "github.com/sigstore/fulcio", "v1.8.8", "",
		"certificate authority of the sigstore project, for make nightly (some minutes to build)")),
	named(moduleProgram("ct_server", "github.com/google/certificate-transparency-go", "v1.4.0", "trillian/ctfe/ct_server",
		"the log of its certificates, for make nightly")),
	// The last version of this module path that Go's proxy has.
	named(fromSource("gitea", "code.gitea.io/gitea", "v1.26.0", "a forge with a registry, for make nightly (some minutes to build)",
		"-tags", "sqlite sqlite_unlock_notify")),
	moduleProgram("timestamp-server", "github.com/sigstore/timestamp-authority/v2", "v2.1.3", "cmd/timestamp-server",
		"timestamp authority of the sigstore project, for version 2, whose entries have no time"),
}

// named has a tool installed only when it is named.
func named(t tool) tool {
	t.asked = true
	return t
}

func main() {
	list := flag.Bool("list", false, "print the tools with their versions and whether they are there, build nothing")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: go run ./tools [-list] [NAME...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(*list, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "tools:", err)
		os.Exit(1)
	}
}

func run(list bool, names []string) error {
	d, err := locate()
	if err != nil {
		return err
	}
	for _, n := range names {
		if !slices.ContainsFunc(tools, func(t tool) bool { return t.name == n }) {
			return fmt.Errorf("no tool is called %q; go run ./tools -list prints them", n)
		}
	}
	var failed []error
	for _, t := range tools {
		if named := slices.Contains(names, t.name); !named && (len(names) > 0 || t.asked && !list) {
			continue
		}
		here := t.present(d)
		switch {
		case list:
			fmt.Printf("%-16s %-10s there=%-5t %s\n", t.name, t.version, here, t.what)
			continue
		case here:
			fmt.Printf("%-16s %-10s is there\n", t.name, t.version)
			continue
		}
		fmt.Printf("%-16s %-10s …\n", t.name, t.version)
		start := time.Now()
		if err := t.install(d); err != nil {
			err = fmt.Errorf("%s: %w", t.name, err)
			fmt.Fprintf(os.Stderr, "%-16s %-10s FAILED: %v\n", t.name, t.version, err)
			failed = append(failed, err)
			continue
		}
		fmt.Printf("%-16s %-10s done in %s\n", t.name, t.version, time.Since(start).Round(time.Second))
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d not installed: the tests that need them will fail\n%w", len(failed), errors.Join(failed...))
	}
	return nil
}

// locate finds the e2e module, so that the program works from any folder of it.
func locate() (dirs, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return dirs{}, fmt.Errorf("go env GOMOD: %w", err)
	}
	module := filepath.Dir(strings.TrimSpace(string(out)))
	if filepath.Base(module) != "e2e" {
		return dirs{}, errors.New("run me inside the module: go run -C e2e ./tools")
	}
	root := filepath.Join(module, ".tools")
	d := dirs{module: module, root: root, bin: filepath.Join(root, "bin")}
	return d, os.MkdirAll(d.bin, 0o755)
}

// command runs a program with its output on ours.
func command(dir string, env []string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}
