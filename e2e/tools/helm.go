package main

import "strings"

// helm is built beside the modules of Kubernetes that kubectl has, and told of their release as its
// own build does.
func helm() tool {
	const module, version = "helm.sh/helm/v3", "v3.22.0"
	minor := strings.Split(requiredVersion(kubernetes)+"..", ".")[1]
	flags := "-s -w -X " + module + "/internal/version.version=" + version
	for _, pkg := range []string{"/pkg/chartutil", "/pkg/lint/rules"} {
		flags += " -X " + module + pkg + ".k8sVersionMajor=1 -X " + module + pkg + ".k8sVersionMinor=" + minor
	}
	return staged("helm", module, version, "/cmd/helm", "what installs the chart", "build", "-ldflags", flags)
}
