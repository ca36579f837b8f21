package hooks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/tidewaiter/tidewaiter/importer/push"
)

// harbor is Harbor in both of its formats: Default, and structured CloudEvents
// whose data is Default's event_data.
// https://goharbor.io/docs/main/working-with-projects/project-configuration/configure-webhooks/
//
// It sends the value of the hook's "auth header" as it is in Authorization.
var harbor = vendor{
	auth:   auth{secret: true},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			Type      string          `json:"type"`
			OccurAt   int64           `json:"occur_at"` // Default: Unix seconds
			EventData harborEventData `json:"event_data"`
			Operator  json.RawMessage `json:"operator"` // in both

			SpecVersion string          `json:"specversion"` // CloudEvents
			ID          string          `json:"id"`
			Source      string          `json:"source"`
			Data        harborEventData `json:"data"`
		}
		if err := json.Unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		data, id := p.EventData, ""
		if p.SpecVersion != "" {
			data, id = p.Data, p.Source+" "+p.ID
		} else if p.OccurAt != 0 {
			// Default has no ID, and repeats a failed delivery byte for byte. Two pushes within
			// a second with the same tag and digest count as one.
			sum := sha256.Sum256(d.body)
			id = hex.EncodeToString(sum[:16])
		}
		var action push.Action
		switch p.Type {
		case "PUSH_ARTIFACT", "harbor.artifact.pushed", "pushImage":
			action = push.Pushed
		case "DELETE_ARTIFACT", "harbor.artifact.deleted", "deleteImage":
			action = push.Deleted
		}
		events := make([]push.Event, 0, len(data.Resources))
		for i, res := range data.Resources {
			host, repository, _, _ := splitReference(strings.TrimPrefix(strings.TrimPrefix(res.ResourceURL, "https://"), "http://"))
			if data.Repository.FullName != "" {
				repository = data.Repository.FullName
			}
			events = append(events, push.Event{
				ID: itemID(id, i), Action: action, Host: host, Repository: repository,
				Tag: res.Tag, Digest: res.Digest, Actor: said(p.Operator, ""),
			})
		}
		return events, nil
	},
}

type harborEventData struct {
	Resources []struct {
		Digest      string `json:"digest"`
		Tag         string `json:"tag"` // the digest again, for a push by digest
		ResourceURL string `json:"resource_url"`
	} `json:"resources"`
	Repository struct {
		FullName string `json:"repo_full_name"`
	} `json:"repository"`
}
