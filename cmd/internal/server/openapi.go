package server

import (
	"maps"
	"strings"

	"k8s.io/kube-openapi/pkg/common"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/tidewaiter/tidewaiter/coreapi/access"
	clusteropenapi "github.com/tidewaiter/tidewaiter/coreapi/clusters/openapi"
	answersopenapi "github.com/tidewaiter/tidewaiter/imageapi/answers/openapi"
	imageopenapi "github.com/tidewaiter/tidewaiter/imageapi/openapi"
	packagesopenapi "github.com/tidewaiter/tidewaiter/imageapi/packages/openapi"
	policyopenapi "github.com/tidewaiter/tidewaiter/signatures/policyapi/openapi"
)

// servedPackages are the packages, as OpenAPI names them, of the types that requests and responses have. Their
// fields may have types of other packages.
var servedPackages = map[string]bool{
	"com.github.openshift.api.authorization.v1":             true,
	"com.github.openshift.api.image.v1":                     true,
	"com.github.tidewaiter.tidewaiter.coreapi.clusters":     true,
	"com.github.tidewaiter.tidewaiter.imageapi.answers":     true,
	"com.github.tidewaiter.tidewaiter.imageapi.packages":    true,
	"com.github.tidewaiter.tidewaiter.signatures.policyapi": true,
	"io.k8s.api.apps.v1":                                    true,
	"io.k8s.api.authentication.v1":                          true,
	"io.k8s.api.authorization.v1":                           true,
	"io.k8s.api.batch.v1":                                   true,
	"io.k8s.api.coordination.v1":                            true,
	"io.k8s.api.core.v1":                                    true,
	"io.k8s.api.events.v1":                                  true,
	"io.k8s.api.policy.v1":                                  true,
	"io.k8s.api.rbac.v1":                                    true,
	"io.k8s.apimachinery.pkg.apis.meta.v1":                  true,
	"io.k8s.apimachinery.pkg.version":                       true,
}

// openAPIDefinitions describes every served type: Kubernetes' own, the image group's, the policies', the
// clusters', the packages', the reviews of references and the reviews of who can do something. Kubernetes describes five times as many; an API server would keep 15 MB more for them, through which
// its collector would go.
func openAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := k8sopenapi.GetOpenAPIDefinitions(ref)
	maps.Copy(all, imageopenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, policyopenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, clusteropenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, answersopenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, packagesopenapi.GetOpenAPIDefinitions(ref))
	maps.Copy(all, access.GetOpenAPIDefinitions(ref))
	served := map[string]common.OpenAPIDefinition{}
	var add func(name string)
	add = func(name string) {
		definition, ok := all[name]
		if _, have := served[name]; have || !ok {
			return
		}
		served[name] = definition
		for _, part := range definition.Dependencies {
			add(part)
		}
	}
	for name := range all {
		if servedPackages[name[:strings.LastIndexByte(name, '.')]] {
			add(name)
		}
	}
	return served
}
