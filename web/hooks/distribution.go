package hooks

import (
	"encoding/json"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// distribution is the CNCF registry's notification envelope. It is the same in versions
// 1 (2.x) and 2 (3.x). GitLab's registry sends it too.
// https://distribution.github.io/distribution/about/notifications/
//
// It has an event for every layer, and for every read, ours included.
var distribution = vendor{
	auth:   auth{secret: true},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		// Each event is decoded by itself, so that one of a strange shape does not take
		// the others with it.
		var envelope struct {
			Events []json.RawMessage `json:"events"`
		}
		if err := unmarshal(d.body, &envelope); err != nil {
			return nil, err
		}
		events := make([]push.Event, 0, len(envelope.Events))
		var firstErr error
		for _, raw := range envelope.Events {
			var e distributionEvent
			if err := unmarshal(raw, &e); err != nil {
				if firstErr == nil {
					firstErr = err
				}
				continue
			}
			events = append(events, e.event())
		}
		return events, firstErr
	},
}

// distributionEvent is one event of the envelope. Azure sends it bare.
type distributionEvent struct {
	ID     string      `json:"id"`
	Action push.Action `json:"action"`
	Target struct {
		MediaType  string `json:"mediaType"`
		Digest     string `json:"digest"`
		Repository string `json:"repository"`
		Tag        string `json:"tag"`
		URL        string `json:"url"`
	} `json:"target"`
	Request struct {
		Host string `json:"host"`
	} `json:"request"`
	Actor json.RawMessage `json:"actor"`
}

func (e distributionEvent) event() push.Event {
	host := e.Request.Host
	if host == "" {
		host = hostOf(e.Target.URL)
	}
	return push.Event{
		ID:         e.ID,
		Action:     e.Action,
		Host:       host,
		Repository: e.Target.Repository,
		Tag:        e.Target.Tag,
		Digest:     e.Target.Digest,
		MediaType:  e.Target.MediaType,
		Actor:      said(e.Actor, "name"),
	}
}
