package hooks

import (
	"encoding/json"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// distribution is the notification envelope of the CNCF registry, with the same format in releases
// 2.x and 3.x. GitLab's registry sends it, too.
// https://distribution.github.io/distribution/about/notifications/
//
// It has an event for every layer, and for every read, including the importer's.
var distribution = vendor{
	auth:   auth{secret: true},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		// Each event is decoded by itself, so that one malformed event does not affect the others.
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

// distributionEvent is one event of the envelope. Azure sends it without an envelope.
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
		Actor:      textIn(e.Actor, "name"),
	}
}
