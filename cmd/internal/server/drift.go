package server

import (
	"github.com/tidewaiter/tidewaiter/imageapi/drift"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// outdatedPods is one for all servers of a process, of which tests have several.
var outdatedPods = drift.NewGauge()

// followDrift prepares a listening server to know what runs something else than its tag leads to.
// It must be called before the pods are read.
func (s *Server) followDrift() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	registerMetrics(outdatedPods)
	s.drift = drift.New(drift.Options{
		Index: s.Usage, Client: client, Find: s.answerer.Drift, Notify: s.outdated, Clock: s.Options.Clock, Gauge: outdatedPods,
	})
	s.Usage.OnTags(s.drift.Recheck)
	s.Verification.Inventory.Outdated = s.drift.Pods
	s.Tasks = append(s.Tasks, Task{Name: "drift", Run: s.drift.Run})
	return nil
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
