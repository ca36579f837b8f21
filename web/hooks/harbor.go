package hooks

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// harbor is Harbor with both of its formats: Default, and structured CloudEvents whose data is
// Default's event_data.
// https://goharbor.io/docs/main/working-with-projects/project-configuration/configure-webhooks/
//
// It sends the value of the hook's "auth header" unchanged in Authorization.
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
		if err := unmarshal(d.body, &p); err != nil {
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
		switch p.Type {
		case "TAG_RETENTION", "harbor.tag_retention.finished":
			return data.Retention.events(id, d.hosts), nil
		case "REPLICATION", "harbor.replication.status.changed":
			return data.Replication.events(id), nil
		}
		if action == "" && p.Type != "" {
			return other(p.Type), nil // a pull, a scan, a quota
		}
		events := make([]push.Event, 0, len(data.Resources))
		for i, res := range data.Resources {
			host, repository, _, _ := splitReference(strings.TrimPrefix(strings.TrimPrefix(res.ResourceURL, "https://"), "http://"))
			if data.Repository.FullName != "" {
				repository = data.Repository.FullName
			}
			events = append(events, push.Event{
				ID: itemID(id, i), Action: action, Host: host, Repository: repository,
				Tag: res.Tag, Digest: res.Digest, Actor: textIn(p.Operator, ""),
			})
		}
		return events, nil
	},
}

type harborEventData struct {
	Resources []struct {
		Digest      string `json:"digest"`
		Tag         string `json:"tag"` // the digest, for a push by digest
		ResourceURL string `json:"resource_url"`
	} `json:"resources"`
	Repository struct {
		FullName string `json:"repo_full_name"`
	} `json:"repository"`
	Retention   harborRetention   `json:"retention"`
	Replication harborReplication `json:"replication"`
}

// harborRetention is the result of a run of a retention policy in a repository. Harbor names only
// the last deleted artifact, with one of its tags or its digest, and its host without the port.
type harborRetention struct {
	Host    string `json:"harbor_hostname"`
	Project string `json:"project_name"`
	Deleted []struct {
		NameTag string `json:"name_tag"` // without the project
	} `json:"deleted_artifact"`
}

// events returns the deletions. It leaves out an artifact without a tag from older versions of
// Harbor, which do not send its digest: a deletion without tag and digest means the entire
// repository.
func (r harborRetention) events(id string, configured []string) []push.Event {
	host := r.Host
	if !slices.Contains(configured, host) {
		var named []string
		for _, h := range configured {
			if name, _, _ := strings.Cut(h, ":"); name == host {
				named = append(named, h)
			}
		}
		if len(named) == 1 {
			host = named[0]
		}
	}
	events := make([]push.Event, 0, len(r.Deleted))
	for i, a := range r.Deleted {
		_, repository, tag, dgst := splitReference(host + "/" + r.Project + "/" + a.NameTag)
		if tag != "" || dgst != "" {
			events = append(events, push.Event{
				ID: itemID(id, i), Action: push.Deleted, Host: host, Repository: repository, Tag: tag, Digest: dgst,
			})
		}
	}
	if len(events) == 0 {
		return other("TAG_RETENTION without the name of an artifact")
	}
	return events
}

// harborReplication is the result of one replication task, to or from another registry. It does not
// show whether the task copied or deleted images. Harbor before 2.10 does not list the tags: see
// src/controller/event/handler/webhook/artifact/replication.go in goharbor/harbor.
type harborReplication struct {
	Status string         `json:"job_status"`
	Source harborResource `json:"src_resource"`
	Dest   harborResource `json:"dest_resource"`
	Copied []struct {
		NameTag    string   `json:"name_tag"` // "team/app [2 item(s) in total]", without the namespace
		References []string `json:"references"`
	} `json:"successful_artifact"`
}

type harborResource struct {
	Registry  string `json:"registry_name"` // set only for another registry than Harbor itself
	Endpoint  string `json:"endpoint"`      // a URL
	Namespace string `json:"namespace"`
}

// events returns pushes to the destination registry. If the task deleted tags there, the import
// finds that they are gone.
func (r harborReplication) events(id string) []push.Event {
	if len(r.Copied) == 0 {
		return other("REPLICATION " + r.Status) // the task still runs, or has failed
	}
	// The resource of Harbor itself has the namespace at the destination. The resource of the other
	// registry has the namespace at the source. This holds for both directions.
	namespace := r.Dest.Namespace
	if r.Source.Registry == "" {
		namespace = r.Source.Namespace
	}
	var events []push.Event
	for _, a := range r.Copied {
		name, _, _ := strings.Cut(a.NameTag, " ")
		name, tag, _ := strings.Cut(name, ":")
		if namespace != "" {
			name = namespace + "/" + name
		}
		if len(a.References) == 0 {
			a.References = []string{tag}
		}
		for _, reference := range a.References {
			events = append(events, push.Event{
				ID: itemID(id, len(events)), Action: push.Pushed, Host: hostOf(r.Dest.Endpoint), Repository: name, Tag: reference,
			})
		}
	}
	return events
}
