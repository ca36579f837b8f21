package openapi

// The generator is pinned beside that of Images. It also describes the types of package policy, of
// which a document in a file and the spec of an object consist.

//go:generate go tool -modfile=../../../imageapi/openapi/tools.mod openapi-gen --output-dir internal/generated --output-pkg github.com/tidewaiter/tidewaiter/signatures/policyapi/openapi/internal/generated --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go --report-filename /dev/null github.com/tidewaiter/tidewaiter/signatures/policy github.com/tidewaiter/tidewaiter/signatures/policyapi
