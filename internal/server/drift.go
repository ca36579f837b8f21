package server

import (
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// All servers of a process share outdatedPods and unknownPods. Only tests run several servers.
var outdatedPods, unknownPods = drift.NewGauge(), drift.NewUnknownGauge()

// followDrift prepares a listening server to know what runs something else than its tag leads to.
// It must be called before the pods are read.
func (s *Server) followDrift() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	meter.Register(meter.Process, outdatedPods, unknownPods)
	s.drift = drift.New(drift.Options{
		Index: s.Usage, Client: client, Answers: s.answerer, Notifier: tagNotifier{s.Events, s}, Clock: s.Options.Clock, Gauge: outdatedPods, UnknownGauge: unknownPods, Clusters: s.clusters.Names(),
	})
	s.Usage.OnTags(func(tags []string) {
		s.drift.Recheck(tags)
		s.Verification.recount.Send()
	})
	s.Tasks = append(s.Tasks, Task{Name: "drift", Run: s.drift.Run})
	return nil
}

// drifting answers the storages of images and tags about drift: it is an imageregistry.Drift.
// Until the server follows drift, the answer is unknown.
type drifting struct {
	*Server
	usage imageregistry.Usage
}

func (d drifting) Naming(tag reference.Reference) (n int, complete bool) {
	if d.drift == nil {
		return 0, false
	}
	found, known := d.drift.Naming(tag)
	return found.Outdated, known && found.Unknown == 0 && d.usage.Unfollowed() == "" && d.usage.Complete() && len(d.usage.StaleReasons()) == 0
}

func (d drifting) Running(digests []string) (n int, known bool) {
	if d.drift == nil {
		return 0, false
	}
	found, known := d.drift.Running(digests)
	return found.Outdated, known && found.Unknown == 0
}
