package coreapi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	corev1 "k8s.io/api/core/v1"
)

// NewEventRecorder returns a recorder of Events in the name of component, sent
// with config until ctx ends. The objects that events are about must be known
// to scheme; events about a cluster-scoped object go to the namespace default.
//
// Recording never blocks: events wait in a queue of 1,000 and are dropped when
// it is full. Similar events are aggregated, and a source that records more
// than 25 about one object in a short time is slowed to one in five minutes
// (client-go's EventCorrelator).
func NewEventRecorder(ctx context.Context, config *rest.Config, scheme *runtime.Scheme, component string) (record.EventRecorder, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("event recorder: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}), nil
}
