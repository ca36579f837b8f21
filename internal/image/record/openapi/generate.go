package openapi

// The generator is pinned beside that of Images.

//go:generate go tool -modfile=../../../../imageapi/openapi/tools.mod openapi-gen --output-dir internal/generated --output-pkg github.com/tidewaiter/tidewaiter/internal/image/record/openapi/internal/generated --output-file zz_generated.openapi.go --output-model-name-file zz_generated.model_name.go --report-filename /dev/null github.com/tidewaiter/tidewaiter/internal/image/record
