package hooks

import (
	"encoding/json"
	"strings"

	"github.com/tidewaiter/tidewaiter/importer/push"
)

// ecr is Amazon ECR, by an EventBridge rule whose target is an API destination. It sends
// the event as EventBridge has it, or turned into a CloudEvent by an input transformer.
// https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-eventbridge.html
//
// AWS's own example has a digest of 60 hex digits. Its event names no host; account and
// region do.
var ecr = vendor{
	auth:   auth{secret: true},
	header: "Authorization",
	decode: func(d *delivery) ([]push.Event, error) {
		var p struct {
			ID string `json:"id"`

			DetailType string `json:"detail-type"` // EventBridge
			Account    string `json:"account"`
			Region     string `json:"region"`
			Detail     struct {
				Result     string `json:"result"`
				Repository string `json:"repository-name"`
				Digest     string `json:"image-digest"`
				Tag        string `json:"image-tag"`
				ActionType string `json:"action-type"`
				MediaType  string `json:"manifest-media-type"`
			} `json:"detail"`

			Type   string `json:"type"` // CloudEvents
			Source string `json:"source"`
			Data   struct {
				RepositoryName string `json:"repositoryName"`
				ImageDigest    string `json:"imageDigest"`
				ImageTag       string `json:"imageTag"`
				RegistryID     string `json:"registryId"`
			} `json:"data"`
		}
		if err := json.Unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		e := push.Event{ID: p.ID}
		switch {
		case p.DetailType == "ECR Image Action" || p.DetailType == "ECR Referrer Action":
			if p.Detail.Result != "SUCCESS" {
				return nil, nil
			}
			e.Action = map[string]push.Action{"PUSH": push.Pushed, "DELETE": push.Deleted}[p.Detail.ActionType]
			e.Host = ecrHost(p.Account, p.Region)
			e.Repository, e.Tag, e.Digest = p.Detail.Repository, p.Detail.Tag, p.Detail.Digest
			e.MediaType = p.Detail.MediaType
		case strings.HasPrefix(p.Type, "com.amazon.ecr.image."):
			e.Action = push.Action(strings.TrimPrefix(p.Type, "com.amazon.ecr.image."))
			account, region := p.Data.RegistryID, ""
			// urn:aws:ecr:REGION:ACCOUNT:repository/NAME
			if urn := strings.Split(p.Source, ":"); len(urn) >= 5 {
				region = urn[3]
				if account == "" {
					account = urn[4]
				}
			}
			e.Host = ecrHost(account, region)
			e.Repository, e.Tag, e.Digest = p.Data.RepositoryName, p.Data.ImageTag, p.Data.ImageDigest
		default: // scans, replication, pull-through cache
			return nil, nil
		}
		return []push.Event{e}, nil
	},
}

// ecrHost returns an account's registry. It is empty when either part is unknown; then the
// receiver's only host is taken.
func ecrHost(account, region string) string {
	if account == "" || region == "" {
		return ""
	}
	host := account + ".dkr.ecr." + region + ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		host += ".cn"
	}
	return host
}
