package hooks

import (
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// jfrog is Artifactory's docker domain: pushed, promoted and deleted tags, with the SHA-256 of
// the manifest. https://docs.jfrog.com/administration/docs/event-types
//
// X-JFrog-Event-Auth has the secret or, if the hook is configured to sign, the HMAC-SHA-256 of the
// body.
var jfrog = vendor{
	auth:   auth{secret: true, hmac: []string{"X-JFrog-Event-Auth"}},
	header: "X-JFrog-Event-Auth",
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			Domain    string `json:"domain"`
			EventType string `json:"event_type"`
			Data      struct {
				RepoKey   string `json:"repo_key"`
				ImageName string `json:"image_name"`
				Tag       string `json:"tag"`
				SHA256    string `json:"sha256"`
			} `json:"data"`
			Origin string `json:"jpd_origin"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		action := map[string]push.Action{"pushed": push.Pushed, "promoted": push.Pushed, "deleted": push.Deleted}[p.EventType]
		switch {
		case p.Domain == "":
			return nil, nil
		case p.Domain != "docker" || action == "":
			return other(p.Domain + " " + p.EventType), nil
		}
		e := push.Event{Action: action, Host: hostOf(p.Origin), Repository: p.Data.RepoKey + "/" + p.Data.ImageName, Tag: p.Data.Tag}
		if p.Data.SHA256 != "" {
			e.Digest = "sha256:" + p.Data.SHA256
		}
		// Artifactory serves a repository below its own host (the default here) or as a host of its own;
		// the allow-list decides which.
		if sub, err := reference.ParseHost(p.Data.RepoKey + "." + e.Host); err == nil && slices.Contains(d.hosts, sub) {
			e.Host, e.Repository = sub, p.Data.ImageName
		}
		return []push.Event{e}, nil
	},
}
