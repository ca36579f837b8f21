package main

import (
	"context"
	"sync"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"tidewaiter/coreapi"
	"tidewaiter/importer"
)

// eventRecorder records Kubernetes Events about Images. Until start it drops
// them: there is no server to send them to.
type eventRecorder struct {
	mu       sync.RWMutex
	recorder record.EventRecorder
}

// start sends events with config until ctx ends.
func (r *eventRecorder) start(ctx context.Context, config *restclient.Config) error {
	recorder, err := coreapi.NewEventRecorder(ctx, config, legacyscheme.Scheme, "tidewaiter")
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recorder = recorder
	return nil
}

// event records one about the Image of that name. It never blocks.
func (r *eventRecorder) event(image string, warning bool, reason, message string) {
	about := &corev1.ObjectReference{APIVersion: imagev1.GroupVersion.String(), Kind: "Image", Name: image}
	r.record(about, warning, reason, message)
}

// record records one about an object. It never blocks.
func (r *eventRecorder) record(about *corev1.ObjectReference, warning bool, reason, message string) {
	r.mu.RLock()
	recorder := r.recorder
	r.mu.RUnlock()
	if recorder == nil {
		return
	}
	kind := corev1.EventTypeNormal
	if warning {
		kind = corev1.EventTypeWarning
	}
	recorder.Event(about, kind, reason, message)
}

// Notify implements importer.Notifier. An image whose digest is not known goes
// by its reference.
func (r *eventRecorder) Notify(_ context.Context, n importer.Notice) {
	name := n.Image
	if name == "" {
		name = n.Reference
	}
	r.event(name, n.Warning, n.Reason, n.Message)
}
