package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

const kubernetes = "k8s.io/kubernetes"

// kubectl is built inside our own module graph, not with `go install pkg@version`:
// Kubernetes' go.mod names its staging modules v0.0.0 with replace directives,
// which install refuses, and go.mod here requires what the server's go.mod does,
// so that both share the compile cache.
func kubectl() tool {
	version := requiredVersion(kubernetes)
	return tool{
		name: "kubectl", version: version, what: "the client everything is driven with",
		present: func(d dirs) bool { return builtFrom(filepath.Join(d.bin, "kubectl"), kubernetes, version) },
		install: func(d dirs) error {
			return command(d.module, nil, "go", "build", "-o", filepath.Join(d.bin, "kubectl"),
				"-ldflags", versionFlags(version), kubernetes+"/cmd/kubectl")
		},
	}
}

// versionFlags stamp a Kubernetes program as its release build does
// (hack/lib/version.sh), without which it calls itself v0.0.0-master.
func versionFlags(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	flags := []string{"-s", "-w"}
	for _, pkg := range []string{"k8s.io/client-go/pkg/version", "k8s.io/component-base/version"} {
		flags = append(flags, "-X", pkg+".gitVersion="+version, "-X", pkg+".gitMajor="+major, "-X", pkg+".gitMinor="+minor)
	}
	return strings.Join(flags, " ")
}

// requiredVersion is the version go.mod selects for a module.
func requiredVersion(module string) string {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// moduleProgram is a program built from its own module with its own
// dependencies, none of which enter our go.mod.
func moduleProgram(name, module, version, pkg, what string) tool {
	return installed(name, module, version, pkg, what, "-ldflags", "-s -w")
}

// withSymbols is a moduleProgram whose symbols are kept: harness.Clock finds there how a program
// reads the time.
func withSymbols(name, module, version, pkg, what string) tool {
	return installed(name, module, version, pkg, what)
}

func installed(name, module, version, pkg, what string, flags ...string) tool {
	return tool{
		name: name, version: version, what: what,
		present: func(d dirs) bool { return builtFrom(filepath.Join(d.bin, name), module, version) },
		install: func(d dirs) error {
			args := append(append([]string{"install"}, flags...), path.Join(module, pkg)+"@"+version)
			return command(os.TempDir(), []string{"GOBIN=" + d.bin}, "go", args...)
		},
	}
}

// fromSource is a program whose go.mod replaces modules, which `go install` refuses. It is built in
// the folder of its module. NAME.source beside it has the path of that folder, where the program
// finds the files that it needs when it runs.
func fromSource(name, module, version, what string, flags ...string) tool {
	source := func(d dirs) string { return filepath.Join(d.bin, name+".source") }
	return tool{
		name: name, version: version, what: what,
		present: func(d dirs) bool {
			folder, err := os.ReadFile(source(d))
			if err != nil || !strings.HasSuffix(string(folder), "@"+version) {
				return false
			}
			for _, path := range []string{string(folder), filepath.Join(d.bin, name)} {
				if _, err := os.Stat(path); err != nil {
					return false
				}
			}
			return true
		},
		install: func(d dirs) error {
			folder, err := download(module, version)
			if err != nil {
				return err
			}
			if err := command(folder, nil, "go", append(append([]string{"build", "-ldflags", "-s -w", "-o", filepath.Join(d.bin, name)}, flags...), ".")...); err != nil {
				return err
			}
			return os.WriteFile(source(d), []byte(folder), 0o644)
		},
	}
}

// ownProgram is a program in a folder beside this one, which is a module of its
// own. Whether it has to be built again is for Go to know.
func ownProgram(name, what string) tool {
	return tool{
		name: name, version: "ours", what: what,
		present: func(dirs) bool { return false },
		install: func(d dirs) error {
			return command(filepath.Join(d.module, name), nil, "go", "build", "-ldflags", "-s -w", "-o", filepath.Join(d.bin, name), ".")
		},
	}
}

// builtFrom reports whether a program carries the build information of a
// module in a version.
func builtFrom(program, module, version string) bool {
	info, err := buildinfo.ReadFile(program)
	return err == nil && info.Main.Path == module && info.Main.Version == version
}

// moduleData is one file of a module, copied to .tools/<folder>/<name> with the
// file's extension, with the module's version in a file beside it.
func moduleData(folder, name, module, version, file, what string) tool {
	target := func(d dirs) string { return filepath.Join(d.root, folder, name+path.Ext(file)) }
	return tool{
		name: name, version: version, what: what,
		present: func(d dirs) bool {
			have, err := os.ReadFile(target(d) + ".version")
			return err == nil && string(have) == module+"@"+version
		},
		install: func(d dirs) error {
			folder, err := download(module, version)
			if err != nil {
				return err
			}
			if err := copyFile(target(d), filepath.Join(folder, filepath.FromSlash(file))); err != nil {
				return err
			}
			return os.WriteFile(target(d)+".version", []byte(module+"@"+version), 0o644)
		},
	}
}

// download fetches a module into the module cache and returns its folder. It
// runs outside our module, whose go.sum it would otherwise write to.
func download(module, version string) (string, error) {
	cmd := exec.Command("go", "mod", "download", "-json", module+"@"+version)
	cmd.Dir = os.TempDir()
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", module, version, err)
	}
	var got struct{ Dir, Error string }
	if err := json.Unmarshal(out, &got); err != nil {
		return "", fmt.Errorf("go mod download %s@%s: %w", module, version, err)
	}
	if got.Error != "" {
		return "", fmt.Errorf("go mod download %s@%s: %s", module, version, got.Error)
	}
	return got.Dir, nil
}

// copyFile writes a whole file or nothing: an interrupted copy must not be
// taken for an installed tool.
func copyFile(to, from string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	tmp, err := os.CreateTemp(filepath.Dir(to), filepath.Base(to)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := io.Copy(tmp, src); err != nil {
		return err
	}
	info, err := src.Stat()
	if err != nil {
		return err
	}
	// Files of the module cache are read-only; ours must be replaceable.
	if err := tmp.Chmod(info.Mode().Perm() | 0o200); err != nil {
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), to)
}
