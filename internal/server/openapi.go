package server

import (
	"maps"

	"k8s.io/kube-openapi/pkg/common"

	"github.com/tidewaiter/tidewaiter/coreapi/access"
	clusteropenapi "github.com/tidewaiter/tidewaiter/coreapi/clusters/openapi"
	coreopenapi "github.com/tidewaiter/tidewaiter/coreapi/openapi"
	answersopenapi "github.com/tidewaiter/tidewaiter/imageapi/answers/openapi"
	imageopenapi "github.com/tidewaiter/tidewaiter/imageapi/openapi"
	packagesopenapi "github.com/tidewaiter/tidewaiter/internal/image/packages/openapi"
	recordopenapi "github.com/tidewaiter/tidewaiter/internal/image/record/openapi"
	policyopenapi "github.com/tidewaiter/tidewaiter/signatures/policyapi/openapi"
)

// openAPIDefinitions describes every served type: Kubernetes' own, the image group's, the
// policies', the clusters', the packages', the records', and the reviews of references and of
// rights.
func openAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	all := map[string]common.OpenAPIDefinition{}
	for _, of := range []common.GetOpenAPIDefinitions{
		coreopenapi.GetOpenAPIDefinitions, imageopenapi.GetOpenAPIDefinitions, policyopenapi.GetOpenAPIDefinitions, clusteropenapi.GetOpenAPIDefinitions,
		answersopenapi.GetOpenAPIDefinitions, packagesopenapi.GetOpenAPIDefinitions, recordopenapi.GetOpenAPIDefinitions, access.GetOpenAPIDefinitions,
	} {
		maps.Copy(all, of(ref))
	}
	return all
}
