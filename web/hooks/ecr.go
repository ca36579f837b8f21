package hooks

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// ecr is Amazon ECR, by an EventBridge rule whose target is an API destination. It sends
// EventBridge's own event, or a CloudEvent that an input transformer made of it.
// https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-eventbridge.html
//
// AWS's own example has a digest of 60 hex digits. The event has no host. Account and region
// identify the registry, and the receiver's hosts are the endpoints that clients use for it.
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
				SyncStatus string `json:"sync-status"` // for a pull-through cache
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
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		e := push.Event{ID: p.ID}
		var account, region string
		switch {
		case ecrActions[p.DetailType]:
			// in a replication event, account and region are the destination's
			e.Action = map[string]push.Action{"PUSH": push.Pushed, "REPLICATE": push.Pushed, "DELETE": push.Deleted}[p.Detail.ActionType]
			if p.DetailType == ecrCached {
				e.Action = push.Pushed
			}
			if result := cmp.Or(p.Detail.Result, p.Detail.SyncStatus); e.Action == "" || result != "SUCCESS" {
				return other(fmt.Sprint(p.DetailType, " ", p.Detail.ActionType, " ", result)), nil
			}
			account, region = p.Account, p.Region
			e.Repository, e.Tag, e.Digest = p.Detail.Repository, p.Detail.Tag, p.Detail.Digest
			e.MediaType = p.Detail.MediaType
		case strings.HasPrefix(p.Type, "com.amazon.ecr.image."):
			e.Action = push.Action(strings.TrimPrefix(p.Type, "com.amazon.ecr.image."))
			account = p.Data.RegistryID
			// urn:aws:ecr:REGION:ACCOUNT:repository/NAME
			if urn := strings.Split(p.Source, ":"); len(urn) >= 5 {
				region = urn[3]
				if account == "" {
					account = urn[4]
				}
			}
			e.Repository, e.Tag, e.Digest = p.Data.RepositoryName, p.Data.ImageTag, p.Data.ImageDigest
		case p.DetailType != "": // a scan
			return other(p.DetailType), nil
		default:
			return nil, nil
		}
		hosts := ecrHosts(account, region, d.hosts)
		events := make([]push.Event, 0, len(hosts))
		for i, host := range hosts {
			one := e
			one.Host = host
			if i > 0 {
				one.ID = itemID(e.ID, i)
			}
			events = append(events, one)
		}
		return events, nil
	},
}

// ecrActions are the detail types of EventBridge events about images.
var ecrActions = map[string]bool{"ECR Image Action": true, "ECR Referrer Action": true, "ECR Replication Action": true, ecrCached: true}

const ecrCached = "ECR Pull Through Cache Action"

// ecrEndpoint matches the beginning of AWS's own endpoint of an account.
var ecrEndpoint = regexp.MustCompile(`^[0-9]{12}\.dkr[.-]ecr(-fips)?\.`)

// ecrHosts returns the configured hosts that are endpoints of an account's registry, in any domain,
// because AWS adds partitions. If there are none, it returns the configured hosts that are not
// AWS's own endpoints, such as a proxy: they may stand for any account. If there are none of these
// either, it returns the usual endpoint, so that the refusal names it. If account or region is
// unknown, it returns an empty host, and the receiver's only host is used.
func ecrHosts(account, region string, configured []string) []string {
	if account == "" || region == "" {
		return []string{""}
	}
	var hosts, named []string
	for _, host := range configured {
		if !ecrEndpoint.MatchString(host) {
			named = append(named, host)
		}
		for _, service := range []string{"dkr.ecr", "dkr.ecr-fips", "dkr-ecr", "dkr-ecr-fips"} {
			if strings.HasPrefix(host, account+"."+service+"."+region+".") {
				hosts = append(hosts, host)
			}
		}
	}
	switch {
	case len(hosts) > 0:
		return hosts
	case len(named) > 0:
		return named
	}
	domain := "amazonaws.com"
	switch {
	case strings.HasPrefix(region, "cn-"):
		domain = "amazonaws.com.cn"
	case strings.HasPrefix(region, "eusc-"):
		domain = "amazonaws.eu"
	}
	return []string{account + ".dkr.ecr." + region + "." + domain}
}
