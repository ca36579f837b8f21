package hooks

import "github.com/tidewaiter/tidewaiter/internal/push"

// quay is Quay's repo_push notification. It has tags and no digests. Other
// notifications have no updated_tags. https://docs.quay.io/guides/notifications.html
//
// Quay cannot send a header, has no delivery ID, and disables a hook that failed three times.
var quay = vendor{
	auth: auth{path: true},
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			DockerURL   string   `json:"docker_url"` // host/namespace/name
			UpdatedTags []string `json:"updated_tags"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		events := make([]push.Event, 0, len(p.UpdatedTags))
		for _, tag := range p.UpdatedTags {
			host, repository, _, _ := splitReference(p.DockerURL)
			events = append(events, push.Event{Action: push.Pushed, Host: host, Repository: repository, Tag: tag})
		}
		return events, nil
	},
}
