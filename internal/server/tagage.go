package server

import (
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/controllers/tagage"
	"github.com/tidewaiter/tidewaiter/internal/meter"
)

// tagAges and tagAgesUnknown are one each for all servers of a process, of which tests have
// several.
var tagAges, tagAgesUnknown = tagage.NewAges(), tagage.NewUnknown()

// measureTags prepares a listening server to measure how long ago registries confirmed tags.
func (s *Server) measureTags() error {
	client, err := imageclient.New(s.Web.ClientConfig())
	if err != nil {
		return err
	}
	meter.Register(meter.Process, tagAges, tagAgesUnknown)
	m := tagage.New(tagage.Options{Client: client, Clock: s.Options.Clock, Ages: tagAges, Unknown: tagAgesUnknown})
	s.Tasks = append(s.Tasks, Task{Name: "tag-ages", Run: m.Run})
	return nil
}
