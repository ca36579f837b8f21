package server

import (
	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/controllers/overwrites"
)

// overwrittenTags is one for all servers of a process, of which tests have several.
var overwrittenTags = overwrites.NewGauge()

// followOverwrites prepares a listening server to know which tags have moved although they must
// not.
func (s *Server) followOverwrites() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	registerMetrics(overwrittenTags)
	s.Verification.Overwrites = overwrites.New(overwrites.Options{
		Client: client, Find: s.answerer.Overwritten, Clock: s.Options.Clock, Gauge: overwrittenTags,
		Notify: func(tag *imagev1.ImageTag, how *answers.Overwritten) { s.Events.Overwritten(tag, how.Message) },
		Turned: func(digest string) {
			s.runs.Recheck(digest)
			s.Verification.Inventory.RecountRunning()
		},
	})
	s.Tasks = append(s.Tasks, Task{Name: "overwritten-tags", Run: s.Verification.Overwrites.Run})
	return nil
}
