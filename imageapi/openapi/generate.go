package openapi

// The generator is pinned by tools.mod, beside the module's own requirements, so that its
// dependencies are not the server's. To update it: go get -tool -modfile=tools.mod
// k8s.io/kube-openapi/cmd/openapi-gen@<version of k8s.io/kube-openapi in go.mod>.
//
// One run writes how the objects of all packages are copied: for each it would read the same
// packages again.
//
// The report of API rule violations is about github.com/openshift/api and goes nowhere.

//go:generate go tool -modfile=tools.mod openapi-gen --output-dir internal/generated --output-pkg github.com/tidewaiter/tidewaiter/imageapi/openapi/internal/generated --output-file zz_generated.openapi.go --report-filename /dev/null github.com/openshift/api/image/v1
//go:generate go tool -modfile=tools.mod deepcopy-gen --output-file zz_generated.deepcopy.go github.com/tidewaiter/tidewaiter/coreapi/clusters github.com/tidewaiter/tidewaiter/coreapi/imageruns github.com/tidewaiter/tidewaiter/imageapi/answers github.com/tidewaiter/tidewaiter/internal/image/packages github.com/tidewaiter/tidewaiter/internal/image/record github.com/tidewaiter/tidewaiter/signatures/policy github.com/tidewaiter/tidewaiter/signatures/policyapi
