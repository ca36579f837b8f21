package hooks

import "github.com/tidewaiter/tidewaiter/internal/push"

// acr is Azure Container Registry. It sends a single event in distribution's form, without the
// envelope, and has actions of its own beside push and delete (quarantine, chart_push, ping).
// https://learn.microsoft.com/azure/container-registry/container-registry-webhook-reference
var acr = vendor{
	auth:   auth{secret: true},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		var e distributionEvent
		if err := unmarshal(d.body, &e); err != nil {
			return nil, err
		}
		return []push.Event{e.event()}, nil
	},
}
