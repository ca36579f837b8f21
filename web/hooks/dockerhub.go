package hooks

import (
	"encoding/json"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// dockerHub is Docker Hub. It sends a tag and no digest.
// https://docs.docker.com/docker-hub/repos/manage/webhooks/
//
// It cannot send a header and has no delivery ID. Its callback_url is not read.
var dockerHub = vendor{
	auth: auth{path: true},
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			PushData struct {
				Tag       string          `json:"tag"`
				MediaType string          `json:"media_type"`
				Pusher    json.RawMessage `json:"pusher"`
			} `json:"push_data"`
			Repository struct {
				RepoName string `json:"repo_name"`
			} `json:"repository"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		if p.Repository.RepoName == "" {
			return nil, nil
		}
		return []push.Event{{
			Action: push.Pushed, Host: "docker.io", Repository: p.Repository.RepoName,
			Tag: p.PushData.Tag, MediaType: p.PushData.MediaType, Actor: textIn(p.PushData.Pusher, ""),
		}}, nil
	},
}
