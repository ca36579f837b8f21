package hooks_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// Registries add the user who pushed, each in its own form. In any form, the push counts, and a
// short line about the user is kept.
func TestAttackActor(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{
		"distribution": `{"events":[{"action":"push","actor":ACTOR,"target":{"mediaType":"application/vnd.oci.image.manifest.v1+json","repository":"team/app","tag":"v1"},"request":{"host":"registry.example.com:5000"}}]}`,
		"generic":      `{"actor":ACTOR,"references":["registry.example.com:5000/team/app:v1"]}`,
	}
	for typ, body := range bodies {
		inside := map[string]func(string) string{"distribution": func(s string) string { return `{"name":` + s + `}` }, "generic": func(s string) string { return s }}[typ]
		// a string always marshals
		long, _ := json.Marshal("\x1b[31m\n" + strings.Repeat("a", 4000))
		for actor, want := range map[string]string{
			inside(`"ann"`): "ann", `7`: "", `[]`: "", `null`: "", inside(`{"x":1}`): "", inside(`["ann"]`): "",
			inside(string(long)): "\ufffd[31m " + strings.Repeat("a", 100),
		} {
			spool := &memorySpool{}
			dir := t.TempDir()
			h := newHandler(t, dir, spool, newReceiver(t, dir, typ, "registry.example.com:5000"))
			status, _ := serve(t, h, newRequest(t, typ, testSecret, []byte(strings.Replace(body, "ACTOR", actor, 1))))
			events := spool.take()
			if status != http.StatusAccepted || len(events) != 1 || !strings.HasPrefix(events[0].Actor, want) || len(events[0].Actor) > push.MaxActor || want == "" && events[0].Actor != "" {
				t.Errorf("%s, actor %.40s: status %d, %+v", typ, actor, status, events)
			}
		}
	}
}
