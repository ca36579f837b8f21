package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Whatever a pusher makes of an image, and however a pod names it, it is not let through as
// unknown, where unknown images are.
func TestAttackShapesAndNamesThatForceUnknown(t *testing.T) {
	t.Parallel()
	registry := newUnderPolicy(t)
	image, err := sample.New(sample.Spec{Name: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/plain:v1", image)
	raw, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	oci, index := string(types.OCIManifestSchema1), string(types.OCIImageIndex)
	with := func(keys string) string { return "{" + keys + "," + string(raw[1:]) }
	in := func(was, is string) string {
		changed := bytes.Replace(raw, []byte(was), []byte(is), 1)
		if bytes.Equal(changed, raw) {
			t.Fatalf("%s is not in %s", was, raw)
		}
		return string(changed)
	}
	var m struct{ Config, Layers json.RawMessage }
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	of := func(config, layers string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":%s,"layers":%s}`, oci, config, layers)
	}
	config := strings.TrimSuffix(string(m.Config), "}")
	entry := func(more string) string {
		return fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":"sha256:%x","size":%d%s}]}`, index, oci, sha256.Sum256(raw), len(raw), more)
	}
	const amd64 = `,"platform":{"os":"linux","architecture":"amd64"}`
	shapes := map[string][2]string{
		"artifacttype": {with(`"artifactType":"application/vnd.x"`), oci}, "subject": {with(`"subject":{"mediaType":"` + oci + `","digest":"sha256:` + strings.Repeat("1", 64) + `","size":1}`), oci},
		"empty-config": {of(`{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:`+strings.Repeat("1", 64)+`","size":2}`, string(m.Layers)), oci},
		"other-config": {of(strings.Replace(string(m.Config), "+json", "+x", 1), string(m.Layers)), oci}, "config-gone": {of(strings.Replace(string(m.Config), `"digest":"sha256:`, `"digest":"sha256:`+strings.Repeat("2", 64)+`","x":"`, 1), string(m.Layers)), oci},
		"inline-config": {of(config+`,"data":"e30="}`, string(m.Layers)), oci}, "huge-config": {of(`{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:`+strings.Repeat("3", 64)+`","size":1099511627776}`, string(m.Layers)), oci},
		"no-layers": {of(string(m.Config), "[]"), oci}, "many-layers": {of(string(m.Config), "["+strings.TrimSuffix(strings.Repeat(strings.Trim(string(m.Layers), "[]")+",", 3000), ",")+"]"), oci},
		"negative": {in(`"size":`, `"size":-`), oci}, "two-configs": {`{"config":{},` + string(raw[1:]), oci}, "capitals": {in(`"layers"`, `"Layers":[],"layers"`), oci},
		"both": {with(`"manifests":[]`), oci}, "trailing": {string(raw) + "\n\n", oci}, "bom": {"\xef\xbb\xbf" + string(raw), oci}, "lies": {string(raw), index}, "plain-json": {string(raw), "application/json"},
		"large": {with(`"annotations":{"k":"` + strings.Repeat("v", 3_900_000) + `"}`), oci}, "too-large": {with(`"annotations":{"k":"` + strings.Repeat("v", 9_000_000) + `"}`), oci},
		"schema1":      {`{"schemaVersion":1,"name":"team/x","tag":"v1","architecture":"amd64","fsLayers":[],"history":[],"signatures":[]}`, "application/vnd.docker.distribution.manifest.v1+prettyjws"},
		"index":        {entry(amd64), index},
		"no-platform":  {entry(""), index},
		"unknown":      {entry(`,"platform":{"os":"unknown","architecture":"unknown"}`), index},
		"attestation":  {entry(amd64 + `,"annotations":{"vnd.docker.reference.type":"attestation-manifest"}`), index},
		"entry-typed":  {entry(amd64 + `,"artifactType":"application/vnd.x"`), index},
		"index-typed":  {`{"artifactType":"application/vnd.x",` + entry(amd64)[1:], index},
		"other-entry":  {strings.Replace(entry(amd64), `[{"mediaType":"`+oci, `[{"mediaType":"application/vnd.x`, 1), index},
		"wrong-size":   {strings.Replace(entry(amd64), `"size":`, `"size":1`, 1), index},
		"missing":      {strings.Replace(entry(amd64), `"digest":"sha256:`, `"digest":"sha256:`+strings.Repeat("4", 64)+`","x":"`, 1), index},
		"of-nothing":   {`{"schemaVersion":2,"mediaType":"` + index + `","manifests":[]}`, index},
		"without-type": {strings.Replace(string(raw), `"mediaType":"`+oci+`",`, "", 1), oci},
	}
	for name, shape := range shapes {
		body := []byte(shape[0])
		registry.PushManifest("team/"+name+":entry", oci, fmt.Sprintf("sha256:%x", sha256.Sum256(raw)), raw)
		registry.PushManifest("team/"+name+":v1", shape[1], fmt.Sprintf("sha256:%x", sha256.Sum256(body)), body)
	}

	allow := "metadata:\n  annotations: {" + policy.UnknownAnnotation + ": " + policy.UnknownAllow + "}"
	registry.write(map[string]string{"policy.yaml": strings.Replace(registry.policyText(), "metadata:", allow, 1)})
	ask := serveAdmission(t, registry.dir, registry.policy)
	refused := func(t *testing.T, what string, images ...string) {
		t.Helper()
		if got := ask(images...); got.Allowed {
			t.Errorf("%s: %+v", what, got)
		}
	}
	for name, shape := range shapes {
		at := registry.Host + "/team/" + name
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused(t, "by its tag", at+":v1")
			refused(t, "by its digest", fmt.Sprintf("%s@sha256:%x", at, sha256.Sum256([]byte(shape[0]))))
		})
	}
	plain := registry.Host + "/team/plain:v1"
	for _, name := range []string{
		plain + " ", " " + plain, plain + "\n", "docker://" + plain, "http://" + plain, strings.Replace(plain, "/team", "//team", 1),
		strings.Replace(plain, "team", "Team", 1), strings.TrimSuffix(plain, "v1"), plain + "@sha256:zz", plain + "@sha512:" + strings.Repeat("a", 128),
		registry.Host + "/../" + plain, registry.Host + "/team/plain:" + strings.Repeat("x", 129), "@", plain + "@sha256:" + strings.Repeat("A", 64),
	} {
		refused(t, fmt.Sprintf("%q", name), name)
	}
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("%s/none/n%d:v1", registry.Host, i))
	}
	refused(t, "behind a hundred that do not exist", append(many, plain)...)
}
