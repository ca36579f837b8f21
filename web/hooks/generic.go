package hooks

import (
	"cmp"
	"encoding/json"
	"errors"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// generic is our own format, for scripts and for registries without a type here:
//
//	{"id": "build-117", "action": "push", "actor": "ann",
//	 "references": ["registry.example.com/team/app:1.0"]}
//
// A reference is host/repository[:tag][@digest]. To delete a whole repository, give host/repository
// alone. The default action is push. actor, if present, is the user who did it. id, if present,
// identifies the delivery: a repeated id within 24 hours is ignored.
var generic = vendor{
	auth:   auth{secret: true, hmac: []string{"X-Hub-Signature-256"}},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			ID         string          `json:"id"`
			Action     push.Action     `json:"action"`
			References []string        `json:"references"`
			Actor      json.RawMessage `json:"actor"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		if len(p.References) == 0 {
			return nil, errors.New("it has no references")
		}
		p.Action = cmp.Or(p.Action, push.Pushed)
		events, actor := make([]push.Event, 0, len(p.References)), textIn(p.Actor, "")
		for i, ref := range p.References {
			e := push.Event{ID: itemID(p.ID, i), Action: p.Action, Actor: actor}
			e.Host, e.Repository, e.Tag, e.Digest = splitReference(ref)
			events = append(events, e)
		}
		return events, nil
	},
}
