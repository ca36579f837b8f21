package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/openshift/api/image/docker10"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// MaxConfigSize is the largest image config that is read, in bytes.
const MaxConfigSize = 8 << 20

// Config is an image's configuration (OCI image-spec "config", Docker image spec v1.2), and also
// the v1Compatibility of a schema 1 manifest, which has the same fields.
type Config struct {
	Platform
	Created *time.Time `json:"created"`
	Author  string     `json:"author"`
	// Config has the defaults for running a container; nil if the image has none.
	Config  *RunConfig `json:"config"`
	RootFS  RootFS     `json:"rootfs"`
	History []History  `json:"history"`

	// Fields of Docker's format only.
	ID              string     `json:"id"`
	Parent          string     `json:"parent"`
	Comment         string     `json:"comment"`
	Container       string     `json:"container"`
	ContainerConfig *RunConfig `json:"container_config"`
	DockerVersion   string     `json:"docker_version"`
}

// RunConfig is docker10.DockerConfig in the forms that exist: early Docker wrote commands as a
// plain string.
type RunConfig struct {
	docker10.DockerConfig
	Entrypoint command `json:"Entrypoint"`
	Cmd        command `json:"Cmd"`

	// Fields that docker10 lacks, as they are written: see runConfig.
	Healthcheck json.RawMessage `json:"Healthcheck"`
	StopSignal  json.RawMessage `json:"StopSignal"`
	Shell       json.RawMessage `json:"Shell"`
	ArgsEscaped json.RawMessage `json:"ArgsEscaped"`
	StopTimeout json.RawMessage `json:"StopTimeout"`
}

// command is a list of arguments, or one string.
type command []string

// UnmarshalJSON accepts a list of strings, a string, or null.
func (c *command) UnmarshalJSON(b []byte) error {
	var one string
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &one); err != nil {
			return err
		}
		*c = command{one}
		return nil
	}
	var list []string
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	*c = list
	return nil
}

// docker returns the plain docker10 type, its text printable.
func (c *RunConfig) docker() *docker10.DockerConfig {
	if c == nil {
		return nil
	}
	d := c.DockerConfig
	d.Entrypoint, d.Cmd = c.Entrypoint, c.Cmd
	for _, text := range []*string{&d.Hostname, &d.Domainname, &d.User, &d.CPUSet, &d.Image, &d.VolumesFrom, &d.WorkingDir} {
		*text = printable.Text(*text)
	}
	for _, list := range []*[]string{&d.PortSpecs, &d.Env, &d.Cmd, &d.DNS, &d.Entrypoint, &d.SecurityOpts, &d.OnBuild} {
		*list = printableList(*list)
	}
	d.ExposedPorts, d.Volumes = printableMap(d.ExposedPorts), printableMap(d.Volumes)
	d.Labels = printableMap(d.Labels)
	return &d
}

// printableList returns list with printable texts. It copies a list that it changes, as configs are
// shared.
func printableList(list []string) []string {
	copied := false
	for i, s := range list {
		if text := printable.Text(s); text != s {
			if !copied {
				list, copied = slices.Clone(list), true
			}
			list[i] = text
		}
	}
	return list
}

// printableMap returns m with printable texts. It copies a map that it changes. If keys become
// equal, it keeps the one that sorts last.
func printableMap[V any](m map[string]V) map[string]V {
	isPrintable := true
	for key, value := range m {
		text, ok := any(value).(string)
		if printable.Text(key) != key || ok && printable.Text(text) != text {
			isPrintable = false
			break
		}
	}
	if isPrintable {
		return m
	}
	out := make(map[string]V, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		value := m[key]
		if text, ok := any(value).(string); ok {
			value = any(printable.Text(text)).(V)
		}
		out[printable.Text(key)] = value
	}
	return out
}

// RootFS lists the digests of the uncompressed layers, the base layer first.
type RootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// History is one step of an image's making, the first step first.
type History struct {
	Created    *time.Time `json:"created"`
	CreatedBy  string     `json:"created_by"`
	Author     string     `json:"author"`
	Comment    string     `json:"comment"`
	EmptyLayer bool       `json:"empty_layer"`
}

// ParseConfig reads an image config. It follows encoding/json, so that it gets the same values as a
// container runtime. It ignores unknown fields and invalid times.
func ParseConfig(raw []byte) (*Config, error) {
	if len(raw) > MaxConfigSize {
		return nil, fmt.Errorf("config of %d bytes is %w: the limit is %d", len(raw), ErrTooLarge, MaxConfigSize)
	}
	if trimmed := bytes.TrimLeft(raw, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, fmt.Errorf("config: %w: not a JSON object", ErrInvalid)
	}
	c, ok := readConfig(raw)
	if !ok {
		c = &Config{}
		if err := json.Unmarshal(raw, c); err != nil {
			if c = withoutTimes(raw); c == nil {
				return nil, fmt.Errorf("config: %w JSON: %v", ErrInvalid, err)
			}
		}
	}
	if c.Created != nil {
		// RFC 3339 has four digits for the year; a zone offset can push a time past them.
		if y := c.Created.UTC().Year(); y < 0 || y > 9999 {
			c.Created = nil
		}
	}
	return c, nil
}

// withoutTimes reads a config in which only times are invalid. It returns nil if other parts are
// invalid, too.
func withoutTimes(raw []byte) *Config {
	var undated struct {
		Config
		Created json.RawMessage `json:"created"`
		History []struct {
			History
			Created json.RawMessage `json:"created"`
		} `json:"history"`
	}
	if json.Unmarshal(raw, &undated) != nil {
		return nil
	}
	c := undated.Config
	if json.Unmarshal(undated.Created, &c.Created) != nil {
		c.Created = nil
	}
	for i := range undated.History {
		c.History = append(c.History, undated.History[i].History)
	}
	return &c
}
