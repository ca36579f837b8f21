package hooks

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// gitHub is GitHub Packages' package and registry_package events, signed.
// https://docs.github.com/webhooks/webhook-events-and-payloads#package
//
// GitHub does not deliver again by itself. Its own examples have a package of type npm with a
// docker ecosystem, an empty tag, a package_url that ends with a colon, and digests of 40 hex
// digits. So each field counts only if it is well-formed, and several fields are tried.
var gitHub = vendor{
	auth: auth{hmac: []string{"X-Hub-Signature-256"}},
	decode: func(d *delivery) ([]push.Event, error) {
		switch event := d.header.Get("X-GitHub-Event"); event {
		case "package", "registry_package":
		case "":
			return nil, nil
		default: // ping, and other events that the hook is configured to send
			return other(event), nil
		}
		var p struct {
			Action          string          `json:"action"`
			Package         gitHubPackage   `json:"package"`
			RegistryPackage gitHubPackage   `json:"registry_package"`
			Sender          json.RawMessage `json:"sender"`
		}
		if err := unmarshal(d.body, &p); err != nil {
			return nil, err
		}
		pkg := p.Package
		if pkg.Version.PackageURL == "" {
			pkg = p.RegistryPackage
		}
		if !pkg.isContainer() {
			return other("package of type " + pkg.PackageType), nil
		}
		if p.Action != "published" && p.Action != "updated" {
			return other("package " + p.Action), nil
		}
		v := pkg.Version
		host, repository, tag, _ := splitReference(v.PackageURL)
		tag = cmp.Or(tag, v.Container.Tag.Name)
		e := push.Event{
			ID: d.header.Get("X-GitHub-Delivery"), Action: push.Pushed, Host: host,
			// The payload has the owner's capitals, but repository names are in lower case.
			Repository: strings.ToLower(repository),
			Tag:        tag, MediaType: v.Container.Manifest.MediaType, Actor: textIn(p.Sender, "login"),
		}
		for _, dgst := range []string{v.Container.Tag.Digest, v.Container.Manifest.Digest, v.Version} {
			if reference.IsDigest(dgst) {
				e.Digest = dgst
				break
			}
		}
		return []push.Event{e}, nil
	},
}

type gitHubPackage struct {
	PackageType string `json:"package_type"`
	Ecosystem   string `json:"ecosystem"`
	Version     struct {
		Version    string `json:"version"`
		PackageURL string `json:"package_url"` // host/owner/name:tag
		Container  struct {
			Tag struct {
				Name   string `json:"name"`
				Digest string `json:"digest"`
			} `json:"tag"`
			Manifest struct {
				Digest    string `json:"digest"`
				MediaType string `json:"media_type"`
			} `json:"manifest"`
		} `json:"container_metadata"`
	} `json:"package_version"`
	Registry struct {
		Type string `json:"type"`
	} `json:"registry"`
}

// isContainer reports whether any of the fields about the package's type shows a container image.
func (p gitHubPackage) isContainer() bool {
	return slices.ContainsFunc([]string{p.PackageType, p.Ecosystem, p.Registry.Type}, func(s string) bool {
		return strings.EqualFold(s, "container") || strings.EqualFold(s, "docker")
	})
}
