package manifest_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// withConfig returns an Image with a config, as a client sends it.
func withConfig(config string) *imagev1.Image {
	digest := func(s string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(s))) }
	text := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[]}`,
		manifest.MediaTypeOCIManifest, digest(config), len(config))
	return newImage(digest(text), text, config, "")
}

// Parts of a config for which docker10 has no fields are in annotations, if they are well-formed,
// printable and short.
func TestDeriveWhatDockerImageHasNoFieldFor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, config, version, run string }{
		{"nothing", `{"os":"linux","architecture":"amd64","config":{"Cmd":["a"]}}`, "", ""},
		{"all", `{"os":"windows","architecture":"amd64","os.version":"10.0.20348.2527","config":{"Healthcheck":{"Test":["CMD","curl","-f","http://localhost"],"Interval":30000000000,"Timeout":5000000000,"StartPeriod":1,"StartInterval":2,"Retries":3},"StopSignal":"SIGQUIT","Shell":["powershell","-Command"],"ArgsEscaped":true}}`, "10.0.20348.2527",
			`{"Healthcheck":{"Test":["CMD","curl","-f","http://localhost"],"Interval":30000000000,"Timeout":5000000000,"StartPeriod":1,"StartInterval":2,"Retries":3},"StopSignal":"SIGQUIT","Shell":["powershell","-Command"],"ArgsEscaped":true}`},
		{"a timeout", `{"config":{"StopTimeout":90}}`, "", `{"StopTimeout":90}`},
		{"no time at all", `{"config":{"StopTimeout":0}}`, "", `{"StopTimeout":0}`},
		{"a timeout that is none", `{"config":{"StopTimeout":"long","StopSignal":"SIGINT"}}`, "", `{"StopSignal":"SIGINT"}`},
		{"none is wanted", `{"config":{"Healthcheck":{"Test":["NONE"]},"ArgsEscaped":false}}`, "", `{"Healthcheck":{"Test":["NONE"]}}`},
		{"nulls", `{"config":{"Healthcheck":null,"StopSignal":null,"Shell":null,"ArgsEscaped":null}}`, "", ""},
		{"one that is not well-formed", `{"config":{"Healthcheck":"often","StopSignal":9,"Shell":["sh"],"ArgsEscaped":"yes"}}`, "", `{"Shell":["sh"]}`},
		{"read by encoding/json", `{"config":{"Env":["\ud83d\ude00"],"StopSignal":"SIGINT"}}`, "", `{"StopSignal":"SIGINT"}`},
		{"not printable", `{"os":"a","architecture":"b","os.version":"1\u001b[2J","config":{"StopSignal":"\u202eTNIGIS"}}`, "1\ufffd[2J", "{\"StopSignal\":\"\ufffdTNIGIS\"}"},
		{"too long", `{"config":{"Shell":["` + strings.Repeat("x", 5000) + `"]}}`, "", ""},
	} {
		image := withConfig(tt.config)
		image.Annotations = map[string]string{annotation.OSVersion: "claimed", annotation.RunConfig: "claimed"}
		for range 2 { // deriving again gives the same
			if err := manifest.Derive(image); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if version, run := image.Annotations[annotation.OSVersion], image.Annotations[annotation.RunConfig]; version != tt.version || run != tt.run {
				t.Errorf("%s: version %q, %s", tt.name, version, run)
			}
		}
	}
}
