package server

import (
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/drift"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// reasonOutdated is the reason of an Event about a tag: what pods run begins to differ from where it leads.
const reasonOutdated = "Outdated"

// outdatedPods is one for all servers of a process, of which tests have several.
var outdatedPods = drift.NewGauge()

// followDrift prepares a listening server to know what runs something else than its tag leads to. It must be called before the pods
// are read.
func (s *Server) followDrift() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	registerMetrics(outdatedPods)
	s.drift = drift.New(drift.Options{
		Index: s.Usage, Client: client, Find: s.answerer.Drift, Notify: s.Events.outdated, Clock: s.Options.Clock, Gauge: outdatedPods,
	})
	s.Usage.OnTags(s.drift.Recheck)
	s.Tasks = append(s.Tasks, Task{Name: "drift", Run: s.drift.Run})
	return nil
}

// outdated records that pods run something else than a tag leads to now.
func (r *EventRecorder) outdated(tag *imagev1.ImageTag, message string) {
	r.record(&corev1.ObjectReference{
		APIVersion: imagev1.GroupVersion.String(), Kind: "ImageTag", Namespace: tag.Namespace, Name: tag.Name, UID: tag.UID,
	}, false, reasonOutdated, message)
}

// outdatedNaming is imageapi.Options.Outdated.
func (s *Server) outdatedNaming(tag reference.Reference) (n int, complete bool) {
	if s.drift == nil {
		return 0, false
	}
	n, known := s.drift.Naming(tag)
	return n, known && s.complete()
}

// outdatedImage is imageapi.Options.OutdatedImage.
func (s *Server) outdatedImage(digests []string) (n int, known bool) {
	if s.drift == nil {
		return 0, false
	}
	return s.drift.Running(digests)
}
