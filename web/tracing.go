package web

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// NewTracer returns what sends spans to the OpenTelemetry collector that a file names, a
// TracingConfiguration as for kube-apiserver (--tracing-config-file), under the service name
// tidewaiter. It connects when there is something to send, and holds at most 2,048 spans. Without a
// file it is nil.
func NewTracer(ctx context.Context, file, version string) (tracing.TracerProvider, error) {
	if file == "" {
		return nil, nil
	}
	if err := trusted.CheckPath(file); err != nil {
		return nil, err
	}
	c, err := options.ReadTracingConfiguration(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if errs := tracingapi.ValidateTracingConfiguration(c, feature.DefaultFeatureGate, nil); len(errs) > 0 {
		return nil, fmt.Errorf("%s: %w", file, errs.ToAggregate())
	}
	// OpenTelemetry's semantic conventions name these.
	of := resource.WithAttributes(attribute.String("service.name", "tidewaiter"), attribute.String("service.version", version))
	return tracing.NewProvider(ctx, c, nil, []resource.Option{of, resource.WithHost()})
}
