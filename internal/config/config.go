// Package config reads the configuration file, and makes of it what servers and imports need:
// options of importers, finders of signatures, mirrors.
package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/web/hooks/hookconfig"
)

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

// Config is the file that `tidewaiter serve`, `import` and `verify` read with `--config`: one YAML
// document of at most 1 MiB. All keys are optional; unknown ones are mistakes. File names are
// relative to the file, which other users must not be able to
// [write](../design/security.md#files-of-other-users). `tidewaiter config check FILE` finds
// mistakes.
//
// A server reads the file every ten seconds, and applies a change when two reads in a row find the
// same content. It applies changes in sections that are marked `at once`; others need a restart. A
// file with a mistake changes nothing. Nor does a file that is empty, or that has become a
// beginning of its former self, because it may be half written: if you deleted its end on purpose,
// end it with a comment. The server reads secrets, kubeconfigs and credentials when it uses them.
// [Other files](importing.md#how-registries-are-reached) apply to registries, too.
type Config struct {
	// Registries are settings of registries. Only the entry with the longest matching prefix counts.
	Registries []Registry `yaml:"registries" reload:"importer"`
	// AuthFile has credentials, as podman login and docker login write them; by default the files
	// that skopeo reads.
	AuthFile string `yaml:"authFile" example:"auth.json" reload:"importer"`
	// ImageDigestMirrors are mirrors for references with a digest, as in ImageDigestMirrorSets.
	ImageDigestMirrors []Mirrors `yaml:"imageDigestMirrors" reload:"importer"`
	// ImageTagMirrors are mirrors for references without a digest, as in ImageTagMirrorSets.
	ImageTagMirrors []Mirrors `yaml:"imageTagMirrors" reload:"importer"`
	// AllowedNetworks are ranges that are not public, to which redirects and token servers of
	// registries may lead all the same.
	AllowedNetworks []string `yaml:"allowedNetworks" example:"[10.1.0.0/16]" reload:"importer"`
	// RegistriesDir is a folder of registries.d files, which name lookaside storage of signatures.
	RegistriesDir string `yaml:"registriesDir" example:"registries.d" reload:"importer"`
	// Clusters are the clusters whose pods and workloads the server follows; see cluster.md.
	Clusters []Cluster `yaml:"clusters"`
	// ImportRunning imports the images that the server's own pods run.
	ImportRunning *bool `yaml:"importRunning" example:"true"`
	// OwnPodsOnly is true if no cluster runs images of this server. Without it and without Clusters,
	// it is unknown what runs.
	OwnPodsOnly bool `yaml:"ownPodsOnly" example:"false"`
	// Workloads are further kinds that need images, in every cluster that serves them.
	Workloads []Workload `yaml:"workloads"`
	// TrustedRoots are files that the server updates from TUF repositories; see signatures.md.
	TrustedRoots []TrustedRoot `yaml:"trustedRoots"`
	// Receivers are registries that report pushes; see webhooks.md.
	Receivers []hookconfig.Receiver `yaml:"receivers" reload:"receivers"`
	// Hooks are a port for webhooks alone.
	Hooks Hooks `yaml:"hooks"`
	// Notify has the receivers of notifications; see notifications.md.
	Notify []notify.Receiver `yaml:"notify" reload:"notify"`
	// Sweep lists repositories again, in case a webhook was lost.
	Sweep Sweep `yaml:"sweep" reload:"sweep"`
	// Records are the bounds on the records of what ran; see records.md.
	Records Records `yaml:"records" reload:"records"`
	// Streams are settings of ImageStreams; see streams.md.
	Streams Streams `yaml:"streams"`
	// Kubelet says how the server reaches kubelets for the logs of pods; see coreapi.md.
	Kubelet *Kubelet `yaml:"kubelet"`

	immutable reference.Prefixes[policy.TagPatterns] // the parsed ImmutableTags of Registries

	file     string    // the path of the file
	document yaml.Node // for the lines of errors
	content  []byte    // of the file
}

// Hooks says where webhooks are received beside the server's own port.
type Hooks struct {
	// Listen is an address for plain HTTP, for registries that cannot be made to trust ca.crt.
	Listen string `yaml:"listen" example:"127.0.0.1:6480"`
}

// Sweep says how repositories are swept for pushes whose webhooks were lost.
type Sweep struct {
	// Repositories are at most 1,000 names or patterns (*, ?, ** at the end). A pattern selects
	// repositories from the registry's catalog.
	Repositories []string `yaml:"repositories" example:"[\"registry.example.com:5000/team/app\", \"harbor.example.com/prod/**\"]"`
	// Every is also how often scheduled tags of streams are imported, and what pods run is checked; at
	// least a minute.
	Every time.Duration `yaml:"every" example:"6h"`
	// Entries are at most 100 further parts, each with an interval and a list of its own.
	Entries []queue.SweepEntry `yaml:"entries"`
}

// CheckSweep says what is wrong with Sweep.
func (c *Config) CheckSweep() error {
	err := queue.SweepOptions(c.Sweep).Validate()
	if at, ok := errors.AsType[*queue.SweepError](err); ok {
		return c.Fault("sweep."+at.Key, at.Err)
	}
	return err
}

// Records says which records of what ran are kept after their end.
type Records struct {
	// Keep is for how long records are kept after their end; by default 400d.
	Keep string `yaml:"keep" example:"400d"`
	// Most is the largest number of records; by default 1000000, with etcd 100000.
	Most int64 `yaml:"most" example:"1000000"`
}

// KeepFor is for how long a record is kept.
func (r Records) KeepFor() (time.Duration, error) {
	keep, err := ParseAge(cmp.Or(r.Keep, "400d"))
	if err != nil || keep < time.Hour {
		return 0, fmt.Errorf("%q is not a duration of an hour or more, such as 400d or 12h", r.Keep)
	}
	return keep, nil
}

// ParseAge reads a duration, which may be in days, such as 400d or 12h.
func ParseAge(text string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	return time.ParseDuration(text)
}

// checkRecords says what is wrong with Records.
func (c *Config) checkRecords() error {
	if _, err := c.Records.KeepFor(); err != nil {
		return c.Fault("records.keep", err)
	}
	if c.Records.Most < 0 {
		return c.Fault("records.most", errors.New("it is a number of records"))
	}
	return nil
}

// Streams says which ImageStreams exist.
type Streams struct {
	// Auto creates an ImageStream for each repository with a known tag, if none follows it.
	Auto *bool `yaml:"auto" example:"true"`
	// Registry is the own address of an OpenShift registry that uses this server as its image API.
	Registry string `yaml:"registry" example:"image-registry.example.com:5000"`
	// PublicRegistry is the address of Registry for clients elsewhere.
	PublicRegistry string `yaml:"publicRegistry" example:"images.example.com"`
	// AllowedRegistriesForImport are the registries from which users may have the server import; by
	// default all.
	AllowedRegistriesForImport []registryLocation `yaml:"allowedRegistriesForImport"`
	// Namespaces are the namespaces in which streams of repositories are created, if not in default.
	Namespaces []namespaceRule `yaml:"namespaces"`

	rules streams.Rules // the parsed Namespaces
}

// Rules are the parsed Namespaces.
func (c *Streams) Rules() streams.Rules { return c.rules }

// namespaceRule says in which namespace the streams of the repositories below a prefix are made.
type namespaceRule struct {
	// Prefix is as that of registries.
	Prefix string `yaml:"prefix" example:"registry.example.com/team"`
	// Namespace is of this Prefix alone, and not default.
	Namespace string `yaml:"namespace" example:"team-a"`
}

// readRules reads Namespaces.
func (c *Config) readRules() error {
	var rules []streams.Rule
	for _, n := range c.Streams.Namespaces {
		rules = append(rules, streams.Rule(n))
	}
	var wrong int
	var err error
	if c.Streams.rules, wrong, err = streams.NewRules(rules); err != nil {
		return c.Fault(fmt.Sprintf("streams.namespaces[%d]", wrong), err)
	}
	return nil
}

// registryLocation is a registry in the form of OpenShift's configuration.
type registryLocation struct {
	// DomainName is a host, with its port unless that is the protocol's.
	DomainName string `yaml:"domainName" example:"\"*.example.org:5000\""`
	// Insecure allows plain HTTP, by default at port 80.
	Insecure bool `yaml:"insecure" example:"true"`
}

// Registry has an administrator's settings for a registry or a part of it.
type Registry struct {
	// Prefix is a host with its port, or a host and the beginning of a path; or the host of a store
	// to which a registry redirects. It may have a private address.
	Prefix string `yaml:"prefix" example:"registry.example.com:5000"`
	// Insecure allows plain HTTP and certificates that cannot be verified.
	Insecure bool `yaml:"insecure" example:"false"`
	// Blocked refuses to import from there.
	Blocked bool `yaml:"blocked" example:"false"`
	// CAFile has authorities beside the system's (PEM). This and the next three are for a whole
	// host.
	CAFile string `yaml:"caFile" example:"example-ca.crt"`
	// CertDir is a folder as in certs.d: *.crt are authorities, *.cert and *.key client
	// certificates.
	CertDir string `yaml:"certDir" example:"certs/example"`
	// RequestsPerSecond is adapted if it is 0; see importing.md.
	RequestsPerSecond float64 `yaml:"requestsPerSecond" example:"0"`
	// RequestsAtATime is 8 if it is 0, or --jobs if that is more.
	RequestsAtATime int `yaml:"requestsAtATime" example:"0"`
	// TokenHosts are the token servers on other hosts that may get its credentials: HOST or HOST:PORT.
	// They may have private addresses. See importing.md.
	TokenHosts []string `yaml:"tokenHosts" example:"[auth.example.com]"`
	// ImmutableTags are patterns of tags that must not move. The longest prefix that has the key
	// counts; [] is none. See signatures.md.
	ImmutableTags []string `yaml:"immutableTags" example:"[\"v*\", \"*-release\"]"`
	// Signatures is a repository that has further signatures of these images, as cosign writes them
	// with COSIGN_REPOSITORY. See signatures.md.
	Signatures string `yaml:"signatures" example:"registry.example.com:5000/signatures"`
}

// Mirrors are the mirrors of one source.
type Mirrors struct {
	// Source is a host, with or without the beginning of a path, or *.example.com. The longest
	// counts alone.
	Source string `yaml:"source" example:"quay.io/acme"`
	// Mirrors stand for Source, and are asked before it, in order.
	Mirrors []string `yaml:"mirrors" example:"[mirror.example.com/acme]"`
	// MirrorSourcePolicy is AllowContactingSource, or NeverContactSource for this Source in both
	// lists.
	MirrorSourcePolicy string `yaml:"mirrorSourcePolicy" example:"AllowContactingSource"`
}

// Kubelet says how to reach the kubelets that have the logs of pods.
// Files are relative to the configuration file.
type Kubelet struct {
	// Address is a host, with or without a port, in which {hostIP} and {nodeName} are filled in.
	Address string `yaml:"address" example:"\"{nodeName}:10250\""`
	// CertFile has the client certificate.
	CertFile string `yaml:"certFile" example:"kubelet.crt"`
	// KeyFile has its key.
	KeyFile string `yaml:"keyFile" example:"kubelet.key"`
	// CAFile has the kubelets' authorities.
	CAFile string `yaml:"caFile" example:"kubelet-ca.crt"`
}

// Cluster is a cluster whose pods are followed.
type Cluster struct {
	// Name is a DNS label.
	Name string `yaml:"name" example:"prod"`
	// Kubeconfig is by default that of the cluster that the server is in.
	Kubeconfig string `yaml:"kubeconfig" example:"prod.kubeconfig"`
	// Context is by default the kubeconfig's current one.
	Context string `yaml:"context" example:"prod"`
	// ExcludedNamespaces have pods that are left out.
	ExcludedNamespaces []string `yaml:"excludedNamespaces" example:"[kube-system]"`
	// ImportRunning imports what the pods run, with their pull secrets.
	ImportRunning *bool `yaml:"importRunning" example:"true"`
	// WithoutWorkloads follows pods alone: what a workload needs and no pod runs may be deleted.
	WithoutWorkloads bool `yaml:"withoutWorkloads" example:"false"`
}

// Workload is a kind whose objects need images, whether they run pods or not.
type Workload struct {
	// Group is the API's.
	Group string `yaml:"group" example:"argoproj.io"`
	// Resource is the plural, in any version.
	Resource string `yaml:"resource" example:"rollouts"`
	// Path leads to a pod template; * stands for each key or item there.
	Path string `yaml:"path" example:"spec.template"`
}

// TrustedRoot is a file with a trusted root that is kept up to date from a TUF
// repository. Policies name the file.
type TrustedRoot struct {
	// File is what policies name as trustedRootPath.
	File string `yaml:"file" example:"trusted_root.json"`
	// Mirror is the repository's URL; without Mirror and RootFile sigstore's public one.
	Mirror string `yaml:"mirror" example:"https://tuf.example.com"`
	// RootFile is its root.json, with which trust begins.
	RootFile string `yaml:"rootFile" example:"tuf-root.json"`
	// Target is the name in the repository; this is the default.
	Target string `yaml:"target" example:"trusted_root.json"`
}

// ImportsRunning reports whether the images of a cluster's pods are imported; the cluster may be
// the server itself.
func (c *Config) ImportsRunning(cluster string) bool {
	for i := range c.Clusters {
		if c.Clusters[i].Name == cluster {
			return ptr.Deref(c.Clusters[i].ImportRunning, true)
		}
	}
	return ptr.Deref(c.ImportRunning, true)
}

// Changed returns the top keys of which two configurations say something else, by the part of a
// server that takes them over. Those of the part "" wait for a restart.
func Changed(a, b *Config) map[string][]string {
	was, changed := reflect.ValueOf(*a), map[string][]string{}
	for field, is := range reflect.ValueOf(*b).Fields() {
		if field.IsExported() && !reflect.DeepEqual(was.FieldByIndex(field.Index).Interface(), is.Interface()) {
			part := field.Tag.Get("reload")
			changed[part] = append(changed[part], field.Tag.Get("yaml"))
		}
	}
	return changed
}

// resolve makes the file names in c, which are relative to dir, absolute or relative to the
// process.
func (c *Config) resolve(dir string) {
	names := []*string{&c.RegistriesDir, &c.AuthFile}
	for i := range c.Registries {
		names = append(names, &c.Registries[i].CAFile, &c.Registries[i].CertDir)
	}
	for i := range c.TrustedRoots {
		names = append(names, &c.TrustedRoots[i].File, &c.TrustedRoots[i].RootFile)
	}
	for i := range c.Clusters {
		names = append(names, &c.Clusters[i].Kubeconfig)
	}
	for i := range c.Notify {
		n := &c.Notify[i]
		names = append(names, &n.URLFile, &n.SecretFile, &n.TokenFile, &n.CAFile)
	}
	if k := c.Kubelet; k != nil {
		names = append(names, &k.CertFile, &k.KeyFile, &k.CAFile)
	}
	for _, name := range names {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(dir, *name)
		}
	}
}

// Fault is an error about a key, such as "registries[0].caFile". It names the file, and the line of
// the key or of what is nearest above it.
func (c *Config) Fault(path string, err error) error {
	at := ""
	if line := lineOf(&c.document, path); line > 0 {
		at = fmt.Sprintf("line %d: ", line)
	}
	return fmt.Errorf("%s: %s%s: %w", c.file, at, path, err)
}

// Path is the path of the file; empty if there is none.
func (c *Config) Path() string { return c.file }

// Load reads the file at path; an empty path is an empty configuration.
func Load(path string) (*Config, error) {
	if path == "" {
		return &Config{}, nil
	}
	data, err := Read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

// Content returns what the file held when the configuration was loaded.
func (c *Config) Content() []byte { return c.content }

// Read returns what a configuration file holds.
func Read(path string) ([]byte, error) {
	data, err := trusted.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = cli.WithHint(err, "leave --config out to run with the defaults")
	}
	return data, err
}

// Parse reads data as Load reads the file at path.
func Parse(path string, data []byte) (*Config, error) {
	c := &Config{file: path, content: data}
	var err error
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		if is := policy.Recognize(data); is != "" {
			return nil, fmt.Errorf("%s: it is %s, not a configuration: give policies in --policy (docs/reference/signatures.md)", path, is)
		}
		return nil, fmt.Errorf("%s: %w", path, explainKeys(data, reflect.TypeFor[Config](), err))
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it holds more than one YAML document", path)
	}
	_ = yaml.Unmarshal(data, &c.document) // it was read above
	if c.Streams.Registry != "" {
		if c.Streams.Registry, err = reference.ParseHost(c.Streams.Registry); err != nil {
			return nil, c.Fault("streams.registry", err)
		}
	}
	if c.Streams.PublicRegistry != "" {
		if c.Streams.Registry == "" {
			return nil, c.Fault("streams.publicRegistry", errors.New("this is another name for streams.registry, which is not set"))
		}
		if c.Streams.PublicRegistry, err = reference.ParseHost(c.Streams.PublicRegistry); err != nil {
			return nil, c.Fault("streams.publicRegistry", err)
		}
	}
	for i, l := range c.Streams.AllowedRegistriesForImport {
		if _, err := filepath.Match(l.DomainName, ""); err != nil || l.DomainName == "" || strings.Contains(l.DomainName, "/") {
			return nil, c.Fault(fmt.Sprintf("streams.allowedRegistriesForImport[%d].domainName", i), fmt.Errorf("%q is not a host, with or without a port", l.DomainName))
		}
	}
	if err := errors.Join(c.readRules(), c.checkRecords(), c.readImmutable()); err != nil {
		return nil, err
	}
	if c.OwnPodsOnly && len(c.Clusters) > 0 {
		return nil, c.Fault("ownPodsOnly", errors.New("true says that no cluster runs images, and clusters names some: leave one of them out"))
	}
	for i, w := range c.Workloads {
		if w.Resource == "" || w.Resource != strings.ToLower(w.Resource) || w.Path == "" || strings.Contains(w.Group+w.Resource, "/") || slices.Contains(strings.Split(w.Path, "."), "") {
			err := cli.WithHint(errors.New("it needs the plural of a resource, and a path to a pod template"), "{group: argoproj.io, resource: rollouts, path: spec.template}")
			return nil, c.Fault(fmt.Sprintf("workloads[%d]", i), err)
		}
	}
	c.resolve(filepath.Dir(path))
	return c, nil
}

func (c *Config) registries() []pull.Registry {
	out := make([]pull.Registry, 0, len(c.Registries))
	for _, r := range c.Registries {
		out = append(out, pull.Registry{Prefix: r.Prefix, Insecure: r.Insecure, TokenHosts: r.TokenHosts, Blocked: r.Blocked, RequestsPerSecond: r.RequestsPerSecond, RequestsAtATime: r.RequestsAtATime, Signatures: r.Signatures})
	}
	return out
}

func (c *Config) allowedNetworks() (guard.Networks, error) {
	networks, err := guard.ParseNetworks(c.AllowedNetworks)
	if err != nil {
		return nil, c.Fault("allowedNetworks", err)
	}
	return networks, nil
}

// Files are the options for reading the machine's files about registries.
func (c *Config) Files() containers.Options { return containers.Options{AuthFile: c.AuthFile} }

// mirrors returns the mirrors of both kinds, by source.
func (c *Config) mirrors() ([]containers.Mirrors, error) {
	var out []containers.Mirrors
	add := func(key string, list []Mirrors, put func(*containers.Mirrors, []string)) error {
		for i, m := range list {
			policy := m.MirrorSourcePolicy
			if policy != "" && policy != "NeverContactSource" && policy != "AllowContactingSource" {
				return c.Fault(fmt.Sprintf("%s[%d].mirrorSourcePolicy", key, i), fmt.Errorf("%q is neither NeverContactSource nor AllowContactingSource", policy))
			}
			at := slices.IndexFunc(out, func(have containers.Mirrors) bool { return have.Source == m.Source })
			if at < 0 {
				at = len(out)
				out = append(out, containers.Mirrors{Source: m.Source})
			}
			put(&out[at], m.Mirrors)
			out[at].NeverContactSource = out[at].NeverContactSource || policy == "NeverContactSource"
		}
		return nil
	}
	return out, errors.Join(
		add("imageDigestMirrors", c.ImageDigestMirrors, func(to *containers.Mirrors, m []string) { to.Digests = append(to.Digests, m...) }),
		add("imageTagMirrors", c.ImageTagMirrors, func(to *containers.Mirrors, m []string) { to.Tags = append(to.Tags, m...) }),
	)
}

// certificates returns the certificates of the registries, by host.
func (c *Config) certificates() (map[string]containers.Certificates, error) {
	out := map[string]containers.Certificates{}
	for i, r := range c.Registries {
		if r.CAFile == "" && r.CertDir == "" {
			continue
		}
		host, _, below := strings.Cut(strings.TrimSuffix(r.Prefix, "/"), "/")
		if below {
			return nil, c.Fault(fmt.Sprintf("registries[%d]", i), fmt.Errorf("certificates apply to a whole host: give caFile and certDir to the entry with the prefix %q", host))
		}
		if canonical, err := reference.ParseHost(host); err == nil {
			// else the importer says what is wrong
			host = canonical
		}
		certs := containers.Certificates{Dir: r.CertDir}
		if r.CAFile != "" {
			var err error
			if certs.CA, err = trusted.ReadFile(r.CAFile, maxFile); err != nil {
				return nil, c.Fault(fmt.Sprintf("registries[%d].caFile", i), err)
			}
		}
		out[host] = certs
	}
	return out, nil
}
