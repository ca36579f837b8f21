package hooks

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// gitea is the package event of Gitea and Forgejo, signed. They send GitHub's headers beside their
// own; the receiver's type decides which are read. https://docs.gitea.com/usage/webhooks
//
// The version is a digest, or a tag. The tag is always in lower case, even if it is not in the
// registry.
var gitea = vendor{
	auth: auth{hmac: []string{"X-Hub-Signature-256", "X-Gitea-Signature", "X-Forgejo-Signature"}},
	decode: func(d *delivery) ([]push.Event, error) {
		event := cmp.Or(d.header.Get("X-Gitea-Event"), d.header.Get("X-Forgejo-Event"))
		switch event {
		case "package":
		case "":
			return nil, nil
		default:
			return other(event), nil
		}
		var p struct {
			Action  string `json:"action"`
			Package struct {
				Owner struct {
					Login string `json:"login"`
				} `json:"owner"`
				Type    string `json:"type"`
				Name    string `json:"name"`
				Version string `json:"version"`
				HTMLURL string `json:"html_url"`
			} `json:"package"`
			Sender json.RawMessage `json:"sender"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		if p.Package.Type != "container" {
			return other("package of type " + p.Package.Type), nil
		}
		id := cmp.Or(d.header.Get("X-Gitea-Delivery"), d.header.Get("X-Forgejo-Delivery"))
		action, ok := map[string]push.Action{"created": push.Pushed, "deleted": push.Deleted}[p.Action]
		if !ok {
			return other("package " + p.Action), nil
		}
		return []push.Event{{
			ID: id, Action: action, Host: hostOf(p.Package.HTMLURL),
			Repository: strings.ToLower(p.Package.Owner.Login + "/" + p.Package.Name),
			Tag:        p.Package.Version, Actor: textIn(p.Sender, "login"),
		}}, nil
	},
}
