package server

import (
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/controllers/overwrites"
	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// All servers of a process share overwrittenTags. Only tests run several servers.
var overwrittenTags = overwrites.NewGauge()

// followOverwrites prepares a listening server to know which tags have moved although they must
// not.
func (s *Server) followOverwrites() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	meter.Register(meter.Process, overwrittenTags)
	s.overwrites = overwrites.New(overwrites.Options{
		Client: client, Answers: s.answerer, Notifier: tagNotifier{s.Events, s}, Clock: s.Options.Clock, Rules: s.Verification.rules, Gauge: overwrittenTags,
	})
	s.Tasks = append(s.Tasks, Task{Name: "overwritten-tags", Run: s.overwrites.Run})
	return nil
}
