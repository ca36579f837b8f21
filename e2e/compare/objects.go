package compare

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// An object is what one creation sends.
type object struct {
	name string
	body []byte
}

type fields = map[string]any

// image is an Image of 19.7 kB, as clients send them that read images themselves: with manifest,
// config, metadata and one signature. The same number makes the same image.
func image(number int) object {
	name, f := imageFields(number)
	return object{name, encode(f)}
}

func imageFields(number int) (name string, _ fields) {
	random := newRandom(number)
	const layers, settings = 12, 24
	var described, listed, history []fields
	var diffs []string
	for range layers {
		digest, size := random.digest(), random.IntN(60<<20)
		const mediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
		described = append(described, fields{"name": digest, "size": size, "mediaType": mediaType})
		listed = append(listed, fields{"digest": digest, "size": size, "mediaType": mediaType})
		history = append(history, fields{"created": "2026-01-02T03:04:05.123456789Z", "comment": "buildkit.dockerfile.v0", "created_by": fmt.Sprintf(
			"RUN /bin/sh -c set -eux; apt-get update; apt-get install -y --no-install-recommends ca-certificates curl gnupg dirmngr libpackage%06d; rm -rf /var/lib/apt/lists/* # buildkit", random.IntN(1e6))})
		diffs = append(diffs, random.digest())
	}
	env, labels := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, fields{}
	for i := range settings {
		env = append(env, fmt.Sprintf("APP_SETTING_%02d=value-%09d-%s", i, random.IntN(1e9), random.digest()[7:27]))
		labels[fmt.Sprintf("org.opencontainers.image.custom.label%02d", i)] = fmt.Sprintf("some descriptive text %09d for label", random.IntN(1e9))
	}
	runs := fields{"User": "1001", "Env": env, "Entrypoint": []string{"/usr/bin/entrypoint.sh"}, "Cmd": []string{"serve", "--port=8080"}, "Labels": labels, "WorkingDir": "/app", "ExposedPorts": fields{"8080/tcp": fields{}}}
	config := encode(fields{"architecture": "amd64", "os": "linux", "created": "2026-01-02T03:04:05Z", "config": runs, "rootfs": fields{"type": "layers", "diff_ids": diffs}, "history": history})
	const mediaType = "application/vnd.oci.image.manifest.v1+json"
	manifest := encode(fields{"schemaVersion": 2, "mediaType": mediaType, "layers": listed,
		"config": fields{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digestOf(config), "size": len(config)}})
	name = digestOf(manifest)
	team := number % 50
	return name, fields{
		"apiVersion": "image.openshift.io/v1", "kind": "Image",
		"metadata":                     fields{"name": name, "labels": fields{"team": fmt.Sprint(team)}, "annotations": fields{"image.openshift.io/dockerLayersOrder": "ascending"}},
		"dockerImageReference":         fmt.Sprintf("registry.example.com/team-%d/app-%d@%s", team, number, name),
		"dockerImageLayers":            described,
		"dockerImageManifest":          string(manifest),
		"dockerImageManifestMediaType": mediaType,
		"dockerImageConfig":            string(config),
		"dockerImageMetadataVersion":   "1.0",
		"dockerImageMetadata": fields{"kind": "DockerImage", "apiVersion": "image.openshift.io/1.0", "Id": digestOf(config), "Created": "2026-01-02T03:04:05Z",
			"ContainerConfig": fields{}, "Config": runs, "Architecture": "amd64", "Size": 123456789},
		"signatures": []fields{{"metadata": fields{"name": name + "@" + random.digest()[7:]}, "type": "atomic", "content": base64.StdEncoding.EncodeToString(random.bytes(2000))}},
	}
}

const customGroup = "compare.example.com"

// customImage is an Image as a custom resource, whose name cannot have a colon.
func customImage(number int) object {
	name, f := imageFields(number)
	name = strings.ReplaceAll(name, ":", "-")
	f["apiVersion"] = customGroup + "/v1"
	f["metadata"].(fields)["name"] = name
	return object{name, encode(f)}
}

// configMap holds as much of an Image's text as makes it as large as the Image.
func configMap(number int) object {
	whole := image(number)
	name := strings.ReplaceAll(whole.name, ":", "-")
	of := func(text []byte) []byte {
		return encode(fields{"apiVersion": "v1", "kind": "ConfigMap", "metadata": fields{"name": name, "labels": fields{"team": fmt.Sprint(number % 50)}}, "data": fields{"image": string(text)}})
	}
	size := len(whole.body)
	// its quotation marks are escaped
	return object{name, of(whole.body[:size*size/len(of(whole.body))])}
}

func encode(f fields) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(f); err != nil {
		panic(err) // maps of strings and numbers
	}
	return bytes.TrimSpace(text.Bytes())
}

func digestOf(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

type random struct {
	*rand.Rand
	source *rand.ChaCha8
}

func newRandom(number int) random {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(number))
	source := rand.NewChaCha8(seed)
	return random{rand.New(source), source}
}

func (r random) bytes(n int) []byte {
	b := make([]byte, n)
	r.source.Read(b) // never fails
	return b
}

func (r random) digest() string { return "sha256:" + hex.EncodeToString(r.bytes(sha256.Size)) }
