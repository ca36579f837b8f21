package sample

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	godigest "github.com/opencontainers/go-digest"
)

// Schema1 is a signed manifest in Docker's first format: the bytes, the digest (which
// does not cover the signature) and the layers it names. The signature is not genuine:
// its key identifies no signer, and no test checks it.
func Schema1(spec Spec) (raw []byte, digest string, layers []v1.Layer, err error) {
	spec = spec.withDefaults()
	type layer struct {
		BlobSum string `json:"blobSum"`
	}
	type step struct {
		V1Compatibility string `json:"v1Compatibility"`
	}
	payload := struct {
		SchemaVersion int     `json:"schemaVersion"`
		Name          string  `json:"name"`
		Tag           string  `json:"tag"`
		Architecture  string  `json:"architecture"`
		FSLayers      []layer `json:"fsLayers"` // newest first
		History       []step  `json:"history"`
	}{SchemaVersion: 1, Name: spec.Name, Tag: spec.Version, Architecture: "amd64"}
	parent := ""
	for i := range spec.Layers {
		l, err := newLayer(spec, i)
		if err != nil {
			return nil, "", nil, err
		}
		hash, err := l.Digest()
		if err != nil {
			return nil, "", nil, err
		}
		id := godigest.FromString(fmt.Sprint(parent, hash)).Encoded()
		compatibility, err := json.Marshal(map[string]any{
			"id": id, "parent": parent, "created": spec.Created.Format(time.RFC3339), "docker_version": "1.9.1",
			"architecture": "amd64", "os": "linux",
			"config":           map[string]any{"Env": []string{"PATH=/bin"}, "Cmd": []string{"/app/server"}},
			"container_config": map[string]any{"Cmd": []string{"/bin/sh", "-c", fmt.Sprintf("#(nop) ADD layer%d in /", i)}},
		})
		if err != nil {
			return nil, "", nil, err
		}
		layers = append(layers, l)
		payload.FSLayers = append([]layer{{hash.String()}}, payload.FSLayers...)
		payload.History = append([]step{{string(compatibility)}}, payload.History...)
		parent = id
	}
	signed, err := json.MarshalIndent(payload, "", "   ")
	if err != nil {
		return nil, "", nil, err
	}
	// A "pretty" JWS puts the signatures before the last brace and remembers where the
	// payload went on.
	length := len(signed) - 2 // without "\n}"
	encode := base64.RawURLEncoding.EncodeToString
	protected, err := json.Marshal(map[string]any{"formatLength": length, "formatTail": encode(signed[length:]), "time": spec.Created.Format(time.RFC3339)})
	if err != nil {
		return nil, "", nil, err
	}
	signatures, err := json.Marshal([]any{map[string]any{
		"header":    map[string]any{"alg": "ES256", "jwk": map[string]string{"crv": "P-256", "kty": "EC"}},
		"signature": encode(make([]byte, 64)),
		"protected": encode(protected),
	}})
	if err != nil {
		return nil, "", nil, err
	}
	raw = fmt.Appendf(nil, "%s,\n   \"signatures\": %s\n}", signed[:length], signatures)
	return raw, godigest.FromBytes(signed).String(), layers, nil
}
