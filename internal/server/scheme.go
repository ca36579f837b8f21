package server

import (
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
)

// The scheme is one of the things that Kubernetes' packages keep in global variables. Its own API
// groups are added to it in the same way.
func init() {
	utilruntime.Must(imageapi.Install(legacyscheme.Scheme))
	utilruntime.Must(policyapi.Install(legacyscheme.Scheme))
	utilruntime.Must(clusters.Install(legacyscheme.Scheme))
	utilruntime.Must(imageruns.Install(legacyscheme.Scheme))
	utilruntime.Must(answers.Install(legacyscheme.Scheme))
	utilruntime.Must(packages.Install(legacyscheme.Scheme))
	utilruntime.Must(record.Install(legacyscheme.Scheme))
	utilruntime.Must(access.Install(legacyscheme.Scheme))
	utilruntime.Must(coreapi.Install(legacyscheme.Scheme))
}
