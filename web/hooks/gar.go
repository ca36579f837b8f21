package hooks

import (
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// gar is Google Artifact Registry (and Container Registry) by a Pub/Sub push
// subscription to the topic gcr, authenticated by a signed token.
// https://cloud.google.com/artifact-registry/docs/configure-notifications
var gar = vendor{
	auth: auth{oidc: true},
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			Message struct {
				Data      []byte `json:"data"` // base64
				MessageID string `json:"messageId"`
			} `json:"message"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		var m struct {
			Action string `json:"action"`
			Digest string `json:"digest"` // host/project/repository/image@sha256:…
			Tag    string `json:"tag"`    // host/project/repository/image:tag
		}
		if err := unmarshal(p.Message.Data, &m); err != nil {
			return nil, err
		}
		action, ok := map[string]push.Action{"INSERT": push.Pushed, "DELETE": push.Deleted}[m.Action]
		if !ok {
			return other(m.Action), nil
		}
		e := push.Event{ID: p.Message.MessageID, Action: action}
		if m.Tag != "" {
			e.Host, e.Repository, e.Tag, _ = splitReference(m.Tag)
		}
		if m.Digest != "" {
			e.Host, e.Repository, _, e.Digest = splitReference(m.Digest)
		}
		return []push.Event{e}, nil
	},
}
