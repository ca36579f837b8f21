package manifest

import (
	"encoding/json"
	"time"

	"github.com/openshift/api/image/docker10"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/plainjson"
)

// readConfig reads a config that is plain JSON, which almost all are; ok is false for any other.
func readConfig(raw []byte) (*Config, bool) { return plain(raw, readWhole) }

// readMetadata reads a dockerImageMetadata that is plain JSON, as derived ones are; ok is false for
// any other.
func readMetadata(raw []byte) (*docker10.DockerImage, bool) { return plain(raw, readDockerImage) }

// plain reads a document that is an object and plain JSON; ok is false for any other.
func plain[T any](raw []byte, read func(*plainjson.Reader) T) (*T, bool) {
	r := plainjson.New(raw)
	if r.Null() {
		return nil, false
	}
	v := read(r)
	return &v, r.Done()
}

func readTime(r *plainjson.Reader) (t time.Time) {
	if err := t.UnmarshalJSON(r.Raw()); err != nil {
		r.Fail()
	}
	return t
}

func readLocalTime(r *plainjson.Reader) metav1.Time { return metav1.Time{Time: r.Time()} }

func readAny(r *plainjson.Reader) json.RawMessage { return r.Raw() }

// readNothing reads {}, which is how a set is written.
func readNothing(r *plainjson.Reader) (nothing struct{}) {
	if r.Open('{') {
		r.Fail()
	}
	return nothing
}

func readDockerConfig(r *plainjson.Reader) docker10.DockerConfig {
	c := readRunConfig(r)
	d := c.DockerConfig
	d.Entrypoint, d.Cmd = c.Entrypoint, c.Cmd
	return d
}
