package openapi

// The generator is pinned beside that of Images.

//go:generate go tool -modfile=../../imageapi/openapi/tools.mod openapi-gen --output-dir internal/generated --output-pkg github.com/tidewaiter/tidewaiter/coreapi/openapi/internal/generated --output-file zz_generated.openapi.go --report-filename /dev/null k8s.io/api/apps/v1 k8s.io/api/authentication/v1 k8s.io/api/authorization/v1 k8s.io/api/autoscaling/v1 k8s.io/api/batch/v1 k8s.io/api/coordination/v1 k8s.io/api/core/v1 k8s.io/api/events/v1 k8s.io/api/policy/v1 k8s.io/api/rbac/v1 k8s.io/api/scheduling/v1alpha3 k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/util/intstr k8s.io/apimachinery/pkg/version
