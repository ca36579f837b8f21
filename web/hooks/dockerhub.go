package hooks

import (
	"encoding/json"
	"math"
	"time"
)

// dockerHub is Docker Hub: a tag, and no digest.
// https://docs.docker.com/docker-hub/repos/manage/webhooks/
//
// It can send no header and has no delivery ID. Its callback_url is not read.
var dockerHub = vendor{
	auth: auth{path: true},
	decode: func(d *delivery) ([]Event, error) {
		var p struct {
			PushData struct {
				Tag       string  `json:"tag"`
				PushedAt  float64 `json:"pushed_at"` // Unix seconds, seen with a fraction
				MediaType string  `json:"media_type"`
			} `json:"push_data"`
			Repository struct {
				RepoName string `json:"repo_name"`
			} `json:"repository"`
		}
		if err := json.Unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		if p.Repository.RepoName == "" {
			return nil, nil
		}
		e := Event{
			Action: ActionPush, Host: "docker.io", Repository: p.Repository.RepoName,
			Tag: p.PushData.Tag, MediaType: p.PushData.MediaType,
		}
		if s := p.PushData.PushedAt; s > 0 && s < math.MaxInt32 {
			e.Time = time.Unix(int64(s), 0).UTC()
		}
		return []Event{e}, nil
	},
}
