// Package config reads the configuration file, and makes of it what servers and imports need: options of importers,
// finders of signatures, mirrors.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	"go.yaml.in/yaml/v3"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/db/trusted"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/web/hooks/hookconfig"
)

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

// Config is the file given by --config. Unknown keys are errors, so that a misspelt key is noticed.
type Config struct {
	Registries []Registry `yaml:"registries"`
	// AuthFile has the credentials for registries, as podman login and docker login write them. Without it, all files
	// that skopeo looks for are read.
	AuthFile string `yaml:"authFile"`
	// ImageDigestMirrors and ImageTagMirrors are the specs of ImageDigestMirrorSets and ImageTagMirrorSets
	// (config.openshift.io/v1): where references with and without a digest are read.
	ImageDigestMirrors []Mirrors `yaml:"imageDigestMirrors"`
	ImageTagMirrors    []Mirrors `yaml:"imageTagMirrors"`
	// AllowedNetworks are ranges, such as 10.1.0.0/16, that registries and signature stores may lead the importer into
	// with redirects and token servers, although the ranges are not public.
	AllowedNetworks []string `yaml:"allowedNetworks"`
	// RegistriesDir is a folder of registries.d files that is read in place of the user's and the system's
	// (containers-registries.d(5)): they name the lookaside storage of signatures.
	RegistriesDir string `yaml:"registriesDir"`
	// Clusters are the clusters whose pods are followed.
	Clusters []Cluster `yaml:"clusters"`
	// OwnPodsOnly says that no cluster runs images beside the server's own pods. Without clusters and without it, it is not known
	// what runs.
	OwnPodsOnly bool `yaml:"ownPodsOnly"`
	// Workloads are the kinds of the clusters that need images, beside those of Kubernetes and OpenShift.
	Workloads []Workload `yaml:"workloads"`
	// ImportRunning has the images of the server's own pods imported; true if it is left out.
	ImportRunning *bool `yaml:"importRunning"`
	// TrustedRoots are files that the server keeps up to date from TUF repositories.
	TrustedRoots []TrustedRoot         `yaml:"trustedRoots"`
	Kubelet      *Kubelet              `yaml:"kubelet"`
	Receivers    []hookconfig.Receiver `yaml:"receivers"`
	Hooks        Hooks                 `yaml:"hooks"`
	// Notify are the receivers of notifications.
	Notify  []notify.Receiver `yaml:"notify"`
	Sweep   Sweep             `yaml:"sweep"`
	Streams Streams           `yaml:"streams"`

	file     string    // the path of the file
	document yaml.Node // for the lines of errors
}

// Hooks says where webhooks are received beside the server's own port.
type Hooks struct {
	// Listen, as host:port, serves /hooks/ and nothing else over plain HTTP,
	// for registries that cannot be told to trust ca.crt.
	Listen string `yaml:"listen"`
}

// Sweep says how repositories are swept for pushes whose webhooks were lost.
type Sweep struct {
	// Repositories are given as host/path; by default none is swept.
	Repositories []string `yaml:"repositories"`
	// Every is how often they are swept, such as 6h, and scheduled tags of streams imported.
	Every time.Duration `yaml:"every"`
}

// Streams says which ImageStreams exist.
type Streams struct {
	// Auto makes a stream for each repository that has a known tag and that no stream follows; it is on unless it is
	// false.
	Auto *bool `yaml:"auto"`
	// Registry is the host[:port] of the registry that has this server for its image API, as OpenShift's registry
	// knows itself. A stream that follows no other repository follows <namespace>/<name> there, and pushes to it are
	// mappings.
	Registry string `yaml:"registry"`
	// PublicRegistry is the host[:port] by which Registry is reached from elsewhere.
	PublicRegistry string `yaml:"publicRegistry"`
	// AllowedRegistriesForImport are the registries that users may have the server ask, in the form of OpenShift's
	// configuration; all if it is left out.
	AllowedRegistriesForImport []registryLocation `yaml:"allowedRegistriesForImport"`
	// Namespaces say where Auto makes streams; the streams of other repositories are made in default.
	Namespaces []namespaceRule `yaml:"namespaces"`

	rules streams.Rules // the parsed Namespaces
}

// Rules are the parsed Namespaces.
func (c *Streams) Rules() streams.Rules { return c.rules }

// namespaceRule says in which namespace the streams of the repositories below a prefix are made.
type namespaceRule struct {
	// Prefix is a host with its port, or a host and the beginning of a path. Of several prefixes above a repository
	// the longest counts, by the elements of the path.
	Prefix string `yaml:"prefix"`
	// Namespace is a namespace that no other rule has, and not default.
	Namespace string `yaml:"namespace"`
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
	// DomainName is a host, with its port unless that is the protocol's; an asterisk matches any text.
	DomainName string `yaml:"domainName"`
	// Insecure allows plain HTTP: the port is 80 if none is given.
	Insecure bool `yaml:"insecure"`
}

// AllowedRegistries are the registries that users may have the server ask, in the form of OpenShift's configuration.
func (c Streams) AllowedRegistries() (out []configv1.RegistryLocation) {
	for _, l := range c.AllowedRegistriesForImport {
		out = append(out, configv1.RegistryLocation{DomainName: l.DomainName, Insecure: l.Insecure})
	}
	return out
}

// Registry has an administrator's settings for a registry or a part of it.
type Registry struct {
	// Prefix is a host with its port, or a host and the beginning of a path; the longest one that matches counts.
	Prefix string `yaml:"prefix"`
	// Insecure allows plain HTTP and unverified TLS.
	Insecure bool `yaml:"insecure"`
	// TokenHosts are hosts, beside the registry, whose token server may see credentials, and may have private
	// addresses.
	TokenHosts []string `yaml:"tokenHosts"`
	// Blocked refuses to import from there.
	Blocked bool `yaml:"blocked"`
	// RequestsPerSecond and RequestsAtATime bound the requests to the host; only an entry for a whole host may have
	// them. Zero adapts the first, and makes the second 8, or --jobs.
	RequestsPerSecond float64 `yaml:"requestsPerSecond"`
	RequestsAtATime   int     `yaml:"requestsAtATime"`
	// CAFile has authorities beside the system's, as PEM blocks; only for a whole host.
	CAFile string `yaml:"caFile"`
	// CertDir is a folder like those in certs.d (containers-certs.d(5)): *.crt are authorities, *.cert and *.key
	// client certificates; only for a whole host.
	CertDir string `yaml:"certDir"`
}

// Mirrors are the mirrors of one source.
type Mirrors struct {
	// Source is a host, a host and the beginning of a path, or *.example.com.
	Source string `yaml:"source"`
	// Mirrors stand for Source; they are asked before it, in order.
	Mirrors []string `yaml:"mirrors"`
	// MirrorSourcePolicy is AllowContactingSource, the default, or NeverContactSource.
	MirrorSourcePolicy string `yaml:"mirrorSourcePolicy"`
}

// Kubelet says how to reach the kubelets that have the logs of pods.
// Files are relative to the configuration file.
type Kubelet struct {
	// Address is host or host:port, with {hostIP} and {nodeName} filled in.
	Address  string `yaml:"address"`
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	CAFile   string `yaml:"caFile"`
}

// Cluster is a cluster whose pods are followed.
type Cluster struct {
	// Name is the cluster's name here, a DNS label.
	Name string `yaml:"name"`
	// Kubeconfig says where the cluster is and has a credential that may list and watch pods and workloads. It is read again when it
	// changes. Without it the server is in the cluster, and uses its service account.
	Kubeconfig string `yaml:"kubeconfig"`
	// Context is a context of the kubeconfig; empty is its current one.
	Context string `yaml:"context"`
	// ExcludedNamespaces are those whose pods are left out.
	ExcludedNamespaces []string `yaml:"excludedNamespaces"`
	// ImportRunning has the images of the cluster's pods imported, with the pods' pull secrets; true if it is left out.
	ImportRunning *bool `yaml:"importRunning"`
	// WithoutWorkloads has only pods followed: images that workloads need without running them may be deleted.
	WithoutWorkloads bool `yaml:"withoutWorkloads"`
}

// Workload is a kind whose objects need images, whether they run pods or not.
type Workload struct {
	// Group and Resource are those of the API: argoproj.io and rollouts.
	Group    string `yaml:"group"`
	Resource string `yaml:"resource"`
	// Path leads to the pod template: spec.template. An asterisk matches each key or item.
	Path string `yaml:"path"`
}

// TrustedRoot is a file with a trusted root that is kept up to date from a TUF
// repository. Policies name the file.
type TrustedRoot struct {
	File string `yaml:"file"`
	// Mirror is the repository's URL, and RootFile its root.json, with which trust
	// begins. Without both it is sigstore's public repository.
	Mirror   string `yaml:"mirror"`
	RootFile string `yaml:"rootFile"`
	// Target is the name in the repository; trusted_root.json if it is empty.
	Target string `yaml:"target"`
}

// ImportsRunning reports whether the images of a cluster's pods are imported; the cluster may be the server itself.
func (c *Config) ImportsRunning(cluster string) bool {
	for i := range c.Clusters {
		if c.Clusters[i].Name == cluster {
			return ptr.Deref(c.Clusters[i].ImportRunning, true)
		}
	}
	return ptr.Deref(c.ImportRunning, true)
}

// Changed returns the top keys, without those of except, of which two configurations say something else.
func Changed(a, b *Config, except ...string) (keys []string) {
	was, is := reflect.ValueOf(*a), reflect.ValueOf(*b)
	for i := range was.NumField() {
		field := was.Type().Field(i)
		key := field.Tag.Get("yaml")
		if field.IsExported() && !slices.Contains(except, key) && !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			keys = append(keys, key)
		}
	}
	return keys
}

// resolve makes the file names in c, which are relative to dir, absolute or relative to the process.
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

// Fault is an error about a key, such as "registries[0].caFile". It names the file, and the line of the key or of what is
// nearest above it.
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
	c := &Config{file: path}
	if path == "" {
		return c, nil
	}
	data, err := trusted.ReadFile(path, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = cli.WithHint(err, "leave --config out to run with the defaults")
	}
	if err != nil {
		return nil, err
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
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
	if err := c.readRules(); err != nil {
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
		out = append(out, pull.Registry{Prefix: r.Prefix, Insecure: r.Insecure, TokenHosts: r.TokenHosts, Blocked: r.Blocked, RequestsPerSecond: r.RequestsPerSecond, RequestsAtATime: r.RequestsAtATime})
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
		if canonical, err := reference.ParseHost(host); err == nil { // else the importer says what is wrong
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
