package imageapi

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
)

// createBody is an Image of 20 kB as a client sends it that computes all fields: twelve layers, a
// config with history, environment and labels, its metadata, and a signature.
func createBody(tb testing.TB, number int64) []byte {
	tb.Helper()
	random := rand.New(rand.NewSource(number))
	type object = map[string]any
	bytes := func(n int) []byte { b := make([]byte, n); random.Read(b); return b }
	digest := func() string { return "sha256:" + hex.EncodeToString(bytes(32)) }
	text := func(o object) (text, digest string) {
		raw, err := json.Marshal(o)
		if err != nil {
			tb.Fatal(err)
		}
		sum := sha256.Sum256(raw)
		return string(raw), "sha256:" + hex.EncodeToString(sum[:])
	}
	var layers, history []object
	var diffs []string
	for range 12 {
		layers = append(layers, object{"digest": digest(), "size": random.Intn(60 << 20), "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"})
		history = append(history, object{"created": "2026-01-02T03:04:05.123456789Z", "comment": "buildkit.dockerfile.v0",
			"created_by": fmt.Sprintf("RUN /bin/sh -c set -eux; apt-get update; apt-get install -y --no-install-recommends ca-certificates curl gnupg package%d; rm -rf /var/lib/apt/lists/* # buildkit", random.Intn(1e6))})
		diffs = append(diffs, digest())
	}
	env, labels := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, object{}
	for i := range 24 {
		env = append(env, fmt.Sprintf("APP_SETTING_%02d=value-%s", i, digest()[7:37]))
		labels[fmt.Sprintf("org.opencontainers.image.custom.label%02d", i)] = fmt.Sprintf("some descriptive text %d for label", random.Intn(1e9))
	}
	run := object{"User": "1001", "Env": env, "Entrypoint": []string{"/usr/bin/entrypoint.sh"}, "Cmd": []string{"serve", "--port=8080"}, "Labels": labels, "WorkingDir": "/app", "ExposedPorts": object{"8080/tcp": object{}}}
	config, configDigest := text(object{"architecture": "amd64", "os": "linux", "created": "2026-01-02T03:04:05Z", "config": run, "rootfs": object{"type": "layers", "diff_ids": diffs}, "history": history})
	raw, name := text(object{"schemaVersion": 2, "mediaType": manifest.MediaTypeOCIManifest, "layers": layers,
		"config": object{"mediaType": "application/vnd.oci.image.config.v1+json", "digest": configDigest, "size": len(config)}})
	for _, l := range layers {
		l["name"] = l["digest"]
		delete(l, "digest")
	}
	body, _ := text(object{
		"apiVersion": "image.openshift.io/v1", "kind": "Image",
		"metadata":             object{"name": name, "labels": object{"bench": "true"}, "annotations": object{"image.openshift.io/dockerLayersOrder": "ascending"}},
		"dockerImageReference": "quay.io/team/app@" + name, "dockerImageLayers": layers, "dockerImageManifest": raw, "dockerImageConfig": config,
		"dockerImageManifestMediaType": manifest.MediaTypeOCIManifest, "dockerImageMetadataVersion": "1.0",
		"dockerImageMetadata": object{"kind": "DockerImage", "apiVersion": "image.openshift.io/1.0", "Id": configDigest, "Created": "2026-01-02T03:04:05Z", "ContainerConfig": object{}, "Config": run, "Architecture": "amd64", "Size": 123456789},
		"signatures":          []object{{"metadata": object{"name": name + "@" + digest()[7:]}, "type": "atomic", "content": base64.StdEncoding.EncodeToString(bytes(2000))}},
	})
	return []byte(body)
}

// BenchmarkCreate measures what a creation costs between its request's bytes and the database: but
// for the API machinery's own work.
func BenchmarkCreate(b *testing.B) {
	scheme := runtime.NewScheme()
	if err := Install(scheme); err != nil {
		b.Fatal(err)
	}
	bodies := make([][]byte, 300) // more than are remembered
	for i := range bodies {
		bodies[i] = createBody(b, int64(i))
	}
	ours, _ := readers(b)
	codecs := serializer.NewCodecFactory(scheme)
	encoder := codecs.EncoderForVersion(ours["lenient"], imagev1.GroupVersion)
	decoder := codecs.DecoderToVersion(ours["strict"], internalGroupVersion)
	s, facts := &strategy{clusterScoped: clusterScoped{newCommonStrategy(scheme)}}, newFacts(Options{})
	attributes, indexers := facts.attributes(indexedFields), facts.indexers(indexedFields)
	ctx := context.Background()
	gvk := imagev1.GroupVersion.WithKind("Image")
	b.SetBytes(int64(len(bodies[0])))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		obj, _, err := decoder.Decode(bodies[i%len(bodies)], &gvk, &imagev1.Image{})
		i++
		if err != nil {
			b.Fatal(err)
		}
		s.PrepareForCreate(ctx, obj)
		if errs := s.Validate(ctx, obj); len(errs) > 0 {
			b.Fatal(errs)
		}
		if _, err := runtime.Encode(encoder, obj); err != nil {
			b.Fatal(err)
		}
		for _, index := range *indexers {
			if _, err := index(obj); err != nil {
				b.Fatal(err)
			}
		}
		if _, _, err := attributes(obj); err != nil {
			b.Fatal(err)
		}
	}
}
