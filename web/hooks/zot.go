package hooks

import (
	"encoding/json"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// maxManifest is the size of the largest manifest that is imported.
const maxManifest = 4 << 20

// zot sends CloudEvents in binary mode: the attributes are headers, the body is the data. They do
// not contain the host, so the receiver must have it. The prefix of its types can be configured;
// the default is "zotregistry". https://zotregistry.dev/latest/articles/events/
var zot = vendor{
	auth:    auth{secret: true},
	header:  "Authorization",
	oneHost: true,
	// An event contains the complete manifest as a JSON string, in which a byte takes up to six.
	maxBody: 6*maxManifest + maxBodyBytes,
	decode: func(d *delivery) ([]push.Event, error) {
		var action push.Action
		switch t := d.header.Get("Ce-Type"); {
		case strings.HasSuffix(t, ".image.updated"):
			action = push.Pushed
		case strings.HasSuffix(t, ".image.deleted"):
			action = push.Deleted
		case t != "": // image.lint_failed, image.scanned, repository.created
			return other(t), nil
		default:
			return nil, nil
		}
		var p struct {
			Name      string          `json:"name"`
			Reference string          `json:"reference"` // a tag or a digest
			Digest    string          `json:"digest"`
			MediaType string          `json:"mediaType"`
			Actor     json.RawMessage `json:"actor"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		id := d.header.Get("Ce-Id")
		if id != "" {
			id = d.header.Get("Ce-Source") + " " + id
		}
		return []push.Event{{
			ID: id, Action: action, Host: d.hosts[0], Repository: p.Name,
			Tag: p.Reference, Digest: p.Digest, MediaType: p.MediaType,
			Actor: textIn(p.Actor, "name"),
		}}, nil
	},
}
