package manifest

import (
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/plainjson"
)

// readConfig reads a config that is plain JSON, which almost all are; false of any other.
func readConfig(raw []byte) (*Config, bool) {
	r := plainjson.New(raw)
	c := configOf(r)
	return c, r.Done()
}

var configFields = plainjson.Fields{
	"architecture", "os", "os.version", "os.features", "variant", "created", "author", "config", "rootfs", "history",
	"id", "parent", "comment", "container", "container_config", "docker_version",
}

func configOf(r *plainjson.Reader) *Config {
	c := &Config{}
	for key := range configFields.Of(r) {
		switch key {
		case "architecture":
			c.Architecture = r.Text()
		case "os":
			c.OS = r.Text()
		case "os.version":
			c.OSVersion = r.Text()
		case "os.features":
			c.OSFeatures = r.Texts()
		case "variant":
			c.Variant = r.Text()
		case "created":
			c.Created = plainjson.Pointer(r, readTime)
		case "author":
			c.Author = r.Text()
		case "config":
			c.Config = plainjson.Pointer(r, readRunConfig)
		case "rootfs":
			c.RootFS = readRootFS(r)
		case "history":
			c.History = plainjson.List(r, readHistory)
		case "id":
			c.ID = r.Text()
		case "parent":
			c.Parent = r.Text()
		case "comment":
			c.Comment = r.Text()
		case "container":
			c.Container = r.Text()
		case "container_config":
			c.ContainerConfig = plainjson.Pointer(r, readRunConfig)
		case "docker_version":
			c.DockerVersion = r.Text()
		default:
			r.Skip()
		}
	}
	return c
}

func readTime(r *plainjson.Reader) (t time.Time) {
	if err := t.UnmarshalJSON(r.Raw()); err != nil {
		r.Fail()
	}
	return t
}

var rootFSFields = plainjson.Fields{"type", "diff_ids"}

func readRootFS(r *plainjson.Reader) (fs RootFS) {
	if r.Null() {
		return fs
	}
	for key := range rootFSFields.Of(r) {
		switch key {
		case "type":
			fs.Type = r.Text()
		case "diff_ids":
			fs.DiffIDs = r.Texts()
		default:
			r.Skip()
		}
	}
	return fs
}

var historyFields = plainjson.Fields{"created", "created_by", "author", "comment", "empty_layer"}

func readHistory(r *plainjson.Reader) (h History) {
	if r.Null() {
		return h
	}
	for key := range historyFields.Of(r) {
		switch key {
		case "created":
			h.Created = plainjson.Pointer(r, readTime)
		case "created_by":
			h.CreatedBy = r.Text()
		case "author":
			h.Author = r.Text()
		case "comment":
			h.Comment = r.Text()
		case "empty_layer":
			h.EmptyLayer = r.Flag()
		default:
			r.Skip()
		}
	}
	return h
}

var runConfigFields = plainjson.Fields{
	"Hostname", "Domainname", "User", "Memory", "MemorySwap", "CpuShares", "Cpuset", "AttachStdin", "AttachStdout", "AttachStderr",
	"PortSpecs", "ExposedPorts", "Tty", "OpenStdin", "StdinOnce", "Env", "Cmd", "Dns", "Image", "Volumes", "VolumesFrom",
	"WorkingDir", "Entrypoint", "NetworkDisabled", "SecurityOpts", "OnBuild", "Labels",
}

func readRunConfig(r *plainjson.Reader) (c RunConfig) {
	for key := range runConfigFields.Of(r) {
		switch key {
		case "Hostname":
			c.Hostname = r.Text()
		case "Domainname":
			c.Domainname = r.Text()
		case "User":
			c.User = r.Text()
		case "Memory":
			c.Memory = r.Number()
		case "MemorySwap":
			c.MemorySwap = r.Number()
		case "CpuShares":
			c.CPUShares = r.Number()
		case "Cpuset":
			c.CPUSet = r.Text()
		case "AttachStdin":
			c.AttachStdin = r.Flag()
		case "AttachStdout":
			c.AttachStdout = r.Flag()
		case "AttachStderr":
			c.AttachStderr = r.Flag()
		case "PortSpecs":
			c.PortSpecs = r.Texts()
		case "ExposedPorts":
			c.ExposedPorts = plainjson.Map(r, readNothing)
		case "Tty":
			c.Tty = r.Flag()
		case "OpenStdin":
			c.OpenStdin = r.Flag()
		case "StdinOnce":
			c.StdinOnce = r.Flag()
		case "Env":
			c.Env = r.Texts()
		case "Cmd":
			c.Cmd = r.Texts()
		case "Dns":
			c.DNS = r.Texts()
		case "Image":
			c.Image = r.Text()
		case "Volumes":
			c.Volumes = plainjson.Map(r, readNothing)
		case "VolumesFrom":
			c.VolumesFrom = r.Text()
		case "WorkingDir":
			c.WorkingDir = r.Text()
		case "Entrypoint":
			c.Entrypoint = r.Texts()
		case "NetworkDisabled":
			c.NetworkDisabled = r.Flag()
		case "SecurityOpts":
			c.SecurityOpts = r.Texts()
		case "OnBuild":
			c.OnBuild = r.Texts()
		case "Labels":
			c.Labels = plainjson.Map(r, (*plainjson.Reader).Text)
		default:
			r.Skip()
		}
	}
	return c
}

// readNothing reads {}, which is how a set is written.
func readNothing(r *plainjson.Reader) (nothing struct{}) {
	if r.Open('{') {
		r.Fail()
	}
	return nothing
}
