package access

import (
	"maps"

	authorizationv1 "github.com/openshift/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// GetOpenAPIDefinitions returns the definitions of the kinds of [Access.Storage]. A generator would
// describe the whole of their package.
func GetOpenAPIDefinitions(ref common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	metadata := metav1.ObjectMeta{}.OpenAPIModelName()
	action := map[string]spec.Schema{
		"namespace": *spec.StringProperty(), "verb": *spec.StringProperty(),
		"resourceAPIGroup": *spec.StringProperty(), "resourceAPIVersion": *spec.StringProperty(), "resource": *spec.StringProperty(), "resourceName": *spec.StringProperty(),
		"path": *spec.StringProperty(), "isNonResourceURL": *spec.BooleanProperty(),
		"content":  {SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}},
		"metadata": {SchemaProps: spec.SchemaProps{AllOf: []spec.Schema{{SchemaProps: spec.SchemaProps{Ref: ref(metadata)}}}, Default: map[string]any{}}},
	}
	documented := authorizationv1.Action{}.SwaggerDoc()
	define := func(docs map[string]string, properties map[string]spec.Schema, required []string, parts ...string) common.OpenAPIDefinition {
		properties = maps.Clone(properties)
		properties["kind"], properties["apiVersion"] = *spec.StringProperty(), *spec.StringProperty()
		for name, property := range properties {
			if property.Description = docs[name]; property.Description == "" {
				property.Description = documented[name]
			}
			properties[name] = property
		}
		return common.OpenAPIDefinition{Dependencies: parts, Schema: spec.Schema{SchemaProps: spec.SchemaProps{
			Description: docs[""], Type: spec.StringOrArray{"object"}, Properties: properties, Required: required,
		}}}
	}
	return map[string]common.OpenAPIDefinition{
		authorizationv1.ResourceAccessReview{}.OpenAPIModelName():      define(authorizationv1.ResourceAccessReview{}.SwaggerDoc(), action, []string{"verb"}, metadata),
		authorizationv1.LocalResourceAccessReview{}.OpenAPIModelName(): define(authorizationv1.LocalResourceAccessReview{}.SwaggerDoc(), action, []string{"verb"}, metadata),
		authorizationv1.ResourceAccessReviewResponse{}.OpenAPIModelName(): define(authorizationv1.ResourceAccessReviewResponse{}.SwaggerDoc(), map[string]spec.Schema{
			"namespace": *spec.StringProperty(), "users": *spec.ArrayProperty(spec.StringProperty()), "groups": *spec.ArrayProperty(spec.StringProperty()), "evalutionError": *spec.StringProperty(),
		}, []string{"users", "groups", "evalutionError"}),
	}
}
