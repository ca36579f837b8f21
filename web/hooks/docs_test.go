package hooks_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// TestDocumentedPayloads delivers the payload of every curl line in the documentation. Each must
// have an effect.
func TestDocumentedPayloads(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	// A section ends at the next heading; its test is the last curl in it.
	payload := regexp.MustCompile(`(?:body=|-d )'(\{[^']*\})'`)
	target := regexp.MustCompile(`/hooks/([a-z]+)[ /]`)
	hosts := map[string]string{
		"distribution": "registry.example.com:5000", "harbor": "harbor.example.com", "zot": "zot.example.com", "quay": "quay.io", "github": "ghcr.io",
		"gitea": "gitea.example.com", "dockerhub": "docker.io", "acr": "myregistry.azurecr.io", "jfrog": "example.jfrog.io",
		"ecr": "123456789012.dkr.ecr.eu-central-1.amazonaws.com", "generic": "registry.example.com",
	}
	seen := map[string]bool{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		curl := strings.LastIndex(section, "curl --cacert")
		if curl < 0 {
			continue
		}
		target := target.FindStringSubmatch(section[curl:])
		payloads := payload.FindAllStringSubmatch(section, -1)
		if target == nil || len(payloads) == 0 {
			continue
		}
		typ := target[1]
		if typ == "local" {
			typ = "distribution"
		}
		if hosts[typ] == "" || seen[typ] {
			continue
		}
		t.Run(typ, func(t *testing.T) {
			dir, spool := t.TempDir(), &memorySpool{}
			h := newHandler(t, dir, spool, newReceiver(t, dir, typ, hosts[typ]))
			r := newRequest(t, typ, testSecret, []byte(payloads[len(payloads)-1][1]))
			for _, header := range regexp.MustCompile(`-H '([A-Za-z-]+): ([^']*)'`).FindAllStringSubmatch(section[curl:], -1) {
				r.Header.Set(header[1], header[2])
			}
			status, a := serve(t, h, r)
			if status == 200 && strings.Contains(section, "nothing of interest") {
				return // the line that only tests the connection
			}
			seen[typ] = true
			if status != 202 || len(spool.take()) != 1 {
				t.Errorf("status %d, %+v", status, a)
			}
		})
	}
	for _, typ := range hooks.Types() {
		if !seen[typ] && typ != "gitlab" && typ != "gar" {
			// gitlab sends distribution's payloads, and a program makes gar's
			t.Errorf("the documentation has no test of type %s that works", typ)
		}
		if !strings.Contains(string(text), "`"+typ+"`") {
			t.Errorf("the documentation does not name type %s", typ)
		}
	}
}

// TestDocumentedVendors: each vendor's section has the settings, how to make the registry trust the
// server, and a test.
func TestDocumentedVendors(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, rest, _ := strings.Cut(section, "\n")
		sections[title] = rest
	}
	for _, title := range []string{"distribution", "GitLab", "Harbor", "zot", "Quay", "GitHub Packages", "Gitea and Forgejo", "Docker Hub",
		"Azure Container Registry", "JFrog Artifactory", "Google Artifact Registry", "Amazon ECR", "Anything else"} {
		section := sections[title]
		for what, pattern := range map[string]string{
			"settings": `/hooks/|"references"`,
			"trust":    `\* Trust: `,
			"a test":   `\* Test[,:]|The test is distribution's`,
		} {
			if !regexp.MustCompile(pattern).MatchString(section) {
				t.Errorf("the section %q has no %s", title, what)
			}
		}
	}
}
