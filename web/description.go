package web

import (
	"net/http"
	"sync"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/routes"
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

// describe serves the OpenAPI documents of every group that api has, each version of OpenAPI from
// the first request for it on. To build them takes time and memory, and many servers are never
// asked.
func describe(api *genericapiserver.GenericAPIServer, c *genericapiserver.Config) {
	v2 := built(func(paths *mux.PathRecorderMux) {
		routes.OpenAPI{Config: c.OpenAPIConfig}.InstallV2(api.Handler.GoRestfulContainer, paths)
	})
	v3 := built(func(paths *mux.PathRecorderMux) {
		routes.OpenAPI{V3Config: c.OpenAPIV3Config}.InstallV3(api.Handler.GoRestfulContainer, paths)
	})
	paths := api.Handler.NonGoRestfulMux
	paths.Handle("/openapi/v2", v2)
	paths.Handle("/openapi/v3", v3)
	paths.HandlePrefix("/openapi/v3/", v3)
}

// built serves what install adds, which is called at the first request.
func built(install func(*mux.PathRecorderMux)) http.Handler {
	paths := sync.OnceValue(func() http.Handler {
		paths := mux.NewPathRecorderMux("openapi")
		install(paths)
		return paths
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { paths().ServeHTTP(w, r) })
}
