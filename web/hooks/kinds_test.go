package hooks_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// kindPayload is an event of a kind, as a type's registry sends it, and its headers.
func kindPayload(typ, kind string) (body string, header map[string]string) {
	const host = "r.example.com"
	switch typ {
	case "distribution", "gitlab", "acr":
		body = fmt.Sprintf(`{"id":"1","action":%q,"target":{"repository":"lib/app","tag":"1.0"},"request":{"host":%q}}`, kind, host)
		if typ != "acr" {
			body = `{"events":[` + body + `]}`
		}
	case "harbor":
		data := `"resources":[{"tag":"1.0","resource_url":"r.example.com/lib/app:1.0"}],"repository":{"repo_full_name":"lib/app"}`
		switch kind {
		case "REPLICATION":
			data = `"replication":{"job_status":"Success","dest_resource":{"registry_name":"r","endpoint":"https://r.example.com","namespace":"lib"},"src_resource":{"namespace":"lib"},"successful_artifact":[{"name_tag":"app:1.0"}]}`
		case "TAG_RETENTION":
			data = `"retention":{"harbor_hostname":"r.example.com","project_name":"lib","deleted_artifact":[{"name_tag":"app:1.0"}]}`
		}
		body = fmt.Sprintf(`{"type":%q,"event_data":{%s}}`, kind, data)
	case "zot":
		return `{"name":"lib/app","reference":"1.0"}`, map[string]string{"Ce-Type": "zotregistry." + kind, "Ce-Id": "1", "Ce-Source": "zot"}
	case "quay":
		body = `{"repository":"lib/app","docker_url":"r.example.com/lib/app","homepage":"https://r.example.com"}`
		if kind == "repo_push" {
			body = `{"docker_url":"r.example.com/lib/app","updated_tags":["1.0"]}`
		}
	case "github", "gitea":
		event, header := "package", map[string]string{"github": "X-GitHub-Event", "gitea": "X-Gitea-Event"}[typ]
		if !slices.Contains([]string{"published", "updated", "created", "deleted"}, kind) {
			event = kind
		}
		pkg := `"package_type":"CONTAINER","package_version":{"package_url":"r.example.com/lib/app:1.0","container_metadata":{"tag":{"name":"1.0"}}}`
		if typ == "gitea" {
			pkg = `"type":"container","owner":{"login":"lib"},"name":"app","version":"1.0","html_url":"https://r.example.com/lib/-/packages/container/app/1.0"`
		}
		return fmt.Sprintf(`{"action":%q,"package":{%s}}`, kind, pkg), map[string]string{header: event}
	case "dockerhub":
		body = `{"push_data":{"tag":"1.0"},"repository":{"repo_name":"lib/app"}}`
	case "jfrog":
		domain := "docker"
		if kind == "deployed" || kind == "copied" {
			domain = "artifact"
		}
		body = fmt.Sprintf(`{"domain":%q,"event_type":%q,"data":{"repo_key":"lib","image_name":"app","tag":"1.0"},"jpd_origin":"https://r.example.com"}`, domain, kind)
	case "gar":
		data := fmt.Sprintf(`{"action":%q,"tag":"r.example.com/lib/app:1.0"}`, kind)
		body = fmt.Sprintf(`{"message":{"messageId":"1","data":%q}}`, base64.StdEncoding.EncodeToString([]byte(data)))
	case "ecr":
		detail := map[string]string{"REPLICATE": "ECR Replication Action", "ECR Image Scan": kind}[kind]
		if detail == "" {
			detail = "ECR Image Action"
		}
		body = fmt.Sprintf(`{"id":"1","detail-type":%q,"account":"123456789012","region":"eu-central-1","detail":{"result":"SUCCESS","repository-name":"app","action-type":%q,"image-tag":"1.0"}}`, detail, kind)
	case "generic":
		body = fmt.Sprintf(`{"action":%q,"references":["r.example.com/lib/app:1.0"]}`, kind)
	}
	return body, nil
}

// Each kind of event of each type has the result that the documentation states.
func TestDocumentedKindsOfEvents(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Which events count\n")
	section, _, _ = strings.Cut(section, "\n## ")
	quoted := regexp.MustCompile("`([^`]+)`")
	names := func(cell string) (all []string) {
		for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
			all = append(all, m[1])
		}
		return all
	}
	seen := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || len(names(cells[0])) == 0 {
			continue
		}
		for _, typ := range names(cells[0]) {
			seen[typ] = true
			if typ == "dockerhub" {
				cells[1] = "`push`" // the cell has no kinds
			}
			for i, want := range []push.Action{push.Pushed, push.Deleted, ""} {
				for _, kind := range names(cells[1+i]) {
					becomes(t, typ, kind, want)
				}
			}
		}
	}
	for _, typ := range hooks.Types() {
		if !seen[typ] {
			t.Errorf("the table does not have the type %s", typ)
		}
	}
}

// becomes checks the result of an event: a queued push or deletion or, if want is "", an answer
// with the reason why it was ignored.
func becomes(t *testing.T, typ, kind string, want push.Action) {
	t.Helper()
	dir, spool := t.TempDir(), &memorySpool{}
	host := map[string]string{"dockerhub": "docker.io"}[typ]
	if host == "" {
		host = "r.example.com"
	}
	body, header := kindPayload(typ, kind)
	r := newRequest(t, typ, testSecret, []byte(body))
	for key, value := range header {
		r.Header.Set(key, value)
	}
	status, a := serve(t, newHandler(t, dir, spool, newReceiver(t, dir, typ, host)), r)
	events := spool.take()
	switch {
	case want != "" && (status != http.StatusAccepted || len(events) != 1 || events[0].Action != want):
		t.Errorf("%s of %s is not a %s: status %d, %+v, %+v", kind, typ, want, status, events, a)
	case want == "" && (status != http.StatusOK || len(events) > 0 || a.Why == ""):
		t.Errorf("%s of %s is not ignored with a reason: status %d, %+v, %+v", kind, typ, status, events, a)
	}
}
