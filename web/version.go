package web

import (
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/util/compatibility"
	basecompatibility "k8s.io/component-base/compatibility"
)

// kubernetesVersion is the release whose API and registries are served, as clients
// compare it with their own. It changes with k8s.io/kubernetes in go.mod.
const kubernetesVersion = "v1.37.1"

// effectiveVersion answers /version with a Kubernetes version, as clients expect. The
// build metadata of that version names Tidewaiter.
type effectiveVersion struct {
	basecompatibility.EffectiveVersion
	tidewaiter string
}

func servedVersion(tidewaiter string) basecompatibility.EffectiveVersion {
	return effectiveVersion{compatibility.DefaultBuildEffectiveVersion(), tidewaiter}
}

func (v effectiveVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	info.GitVersion = kubernetesVersion + "+tidewaiter." + v.tidewaiter
	info.GitCommit, info.GitTreeState, info.BuildDate = "", "", ""
	return info
}
