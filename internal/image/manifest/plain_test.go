package manifest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/openshift/api/image/docker10"
	kjson "sigs.k8s.io/json"
)

// FuzzPlain: the readers of plain JSON give the same result as the general readers.
func FuzzPlain(f *testing.F) {
	AddSeeds(f, func(raw []byte) { f.Add(raw) })
	for _, seed := range []string{
		`{}`, `null`, `[]`, `{"created":null,"config":null,"history":[null,{"created":"2026-01-02T03:04:05.123456789+02:00","empty_layer":true}]}`,
		`{"config":{"Cmd":"sh","Entrypoint":["a"]},"created":"yesterday"}`, `{"config":{"Cmd":[],"Env":null,"ExposedPorts":{"80/tcp":{},"81/tcp":{"a":1}}}}`,
		`{"config":{"Hostname":"","Domainname":"","User":"","Memory":1,"MemorySwap":-1,"CpuShares":0,"Cpuset":"0","AttachStdin":false,"AttachStdout":true,"AttachStderr":true,"PortSpecs":null,"ExposedPorts":{"8080/tcp":{}},"Tty":false,"OpenStdin":true,"StdinOnce":false,"Env":["A=b"],"Cmd":["sh"],"Dns":["1.1.1.1"],"Image":"sha256:0","Volumes":{"/data":{}},"VolumesFrom":"","WorkingDir":"/","Entrypoint":null,"NetworkDisabled":true,"SecurityOpts":["x"],"OnBuild":[],"Labels":{"a":"b"},"Shell":["x"]}}`,
		`{"architecture":"arm","os":"linux","os.version":"1","os.features":["a"],"variant":"v7","author":"a","id":"i","parent":"p","comment":"c","container":"d","docker_version":"1.13","container_config":{"Cmd":["x"]},"rootfs":{"type":"layers","diff_ids":["sha256:0"]}}`,
		`{"Architecture":"arm","architecture":"arm64"}`, `{"os":"a","os":"b"}`, `{"unknown":{"a":[1.5,"\ud83d\ude00"]},"os":"linux"}`, `{"rootfs":{"DIFF_IDS":[]}}`,
		`{"schemaVersion":2,"mediaType":"a/b","artifactType":"c/d","annotations":{"e":"f"},"subject":{"digest":"g","size":1,"mediaType":"h"},"manifests":[{"platform":{"os":"linux","architecture":"arm","variant":"v6","os.version":"1","os.features":[]}}]}`,
		`{"schemaVersion":2,"config":{"digest":"a","size":1,"size":2}}`, `{"schemaVersion":2,"layers":[{"Digest":"a"}]}`, `{"schemaVersion":2,"layers":null,"manifests":[]}`, `{"schemaVersion":1e0}`, `{"schemaVersion":2,"layers":[{"size":9223372036854775807},null]}`,
		`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"a","Parent":"b","Comment":"c","Created":"2026-01-02T03:04:05.5+02:00","Container":"d","ContainerConfig":{"Cmd":["a"]},"DockerVersion":"1","Author":"e","Config":{"Entrypoint":[],"Cmd":["b"]},"Architecture":"arm","Size":1,"Other":1.5}`,
		`{"Created":null,"ContainerConfig":null,"Config":null,"Size":null}`, `{"Created":"yesterday"}`, `{"Config":{"Cmd":"a"}}`, `{"id":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, ok := readConfig(raw); ok {
			var want Config
			if err := json.Unmarshal(raw, &want); err != nil || !reflect.DeepEqual(got, &want) {
				t.Errorf("config %+v, want %+v, %v", got, want, err)
			}
		}
		if got, ok := readMetadata(raw); ok {
			var want docker10.DockerImage
			if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &want); err != nil || !reflect.DeepEqual(got, &want) {
				t.Errorf("metadata %+v, want %+v, %v", got, want, err)
			}
		}
		if got, ok := readManifest(raw); ok {
			var want wireManifest
			if strict, err := kjson.UnmarshalStrict(raw, &want); err != nil || len(strict) > 0 || !reflect.DeepEqual(got, &want) {
				t.Errorf("manifest %+v, want %+v, %v %v", got, want, strict, err)
			}
			if err := checkKeys(raw); err != nil {
				t.Error(err)
			}
		}
	})
}

// If nothing were plain, the comparison above would compare nothing.
func TestPlain(t *testing.T) {
	for name, isConfig := range map[string]bool{
		"oci-config.json": true, "docker-config.json": true,
		"oci-image.json": false, "oci-index.json": false, "docker-schema2.json": false, "docker-list.json": false,
	} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		_, plain := readConfig(raw)
		if !isConfig {
			_, plain = readManifest(raw)
		}
		if !plain {
			t.Errorf("%s is not plain", name)
		}
	}
}

// FuzzNames: the checks of media types and digests agree with the patterns.
func FuzzNames(f *testing.F) {
	long := strings.Repeat("a", 127)
	for _, seed := range []string{
		"", "/", "a", "a/", "/b", "a/b", "a/b/c", "A0/9!#$&^_.+-", "+a/b", "a/.b", "a/b\n", "a b/c", "é/b", "a/\xff",
		long + "/" + long, long + "a/b", "b/" + long + "a",
		"sha256:" + strings.Repeat("0", 64), "sha256:" + strings.Repeat("f", 63), "sha256:" + strings.Repeat("f", 65), "sha256:" + strings.Repeat("F", 64),
		"sha256:" + strings.Repeat("g", 64), "sha512:" + strings.Repeat("a", 128), "sha256:" + strings.Repeat("0", 63) + "\n", "md5:00", "sha256",
	} {
		f.Add(seed)
	}
	mediaType := regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}$`)
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := ValidMediaType(s), mediaType.MatchString(s); got != want {
			t.Errorf("%q is a media type: %v, want %v", s, got, want)
		}
		if got, want := validateDigest(s), digest.Digest(s).Validate(); got != want {
			t.Errorf("%q as a digest: %v, want %v", s, got, want)
		}
	})
}
