package server

import (
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/web"
)

// Options are the flags of every verb that opens a data directory.
type Options struct {
	DataDir      string
	ConfigFile   string
	EventTTL     time.Duration
	serviceCIDRs []string
	nodePorts    string
	podLogsDir   string
	Policy       string
	Quota        int64        // bytes; 0 for none
	Etcd         etcd.Options // none without servers
	// of the credentials that several servers share; empty for DataDir/pki
	PKIDir  string
	Backups backup.Options // none without a folder
	// Isolated imports pushes without the credentials and the lookaside storage of the server's
	// user.
	Isolated bool
	// Console has the web console served.
	Console bool
	// Audit configures the audit log; nil for none.
	Audit *options.AuditOptions
	// MaxReads and MaxWrites bound the requests in flight; see web.Config.
	MaxReads, MaxWrites int
	Authentication      *web.Authentication // nil for the defaults
	TLS                 web.TLS
	// TracingFile configures where spans are sent, see web.NewTracer. If empty, none are sent.
	TracingFile string
	// Access configures how a listening server authorizes requests; nil for the defaults.
	Access *access.Options
	// Cluster has the flags of a server in a cluster that knows the callers.
	Cluster ClusterOptions
	// Clock is for tests; nil is the real one.
	Clock clock.WithTickerAndDelayedExecution
	// ReplaceParts, if set, changes the parts of the server, as BenchmarkWithout does.
	ReplaceParts func(*Server, *Parts)
}

// AddFlags adds the flags of a server that opens a data directory, in named sections.
func (o *Options) AddFlags(fss *cliflag.NamedFlagSets) {
	f := fss.FlagSet("data")
	f.StringVar(&o.DataDir, "data-dir", cli.DefaultDataDir, "directory that holds the database, the certificates and the administrator's credential")
	f.Int64Var(&o.Quota, "quota-backend-bytes", 0, "most bytes that the database may use; beyond it only deletions and small updates succeed; 0 means limited only by the disk")
	f.StringVar(&o.Backups.Dir, "backup-dir", "", "existing folder for scheduled backups; without it none are made")
	f.DurationVar(&o.Backups.Every, "backup-every", 24*time.Hour, "interval between scheduled backups")
	f.IntVar(&o.Backups.Keep, "backup-keep", 7, "number of scheduled backups to keep")
	f.DurationVar(&o.EventTTL, "event-ttl", coreapi.DefaultEventTTL, "how long to keep an Event after its last write")
	f.StringVar(&o.PKIDir, "pki-dir", "", "existing directory of the credentials that several servers share (experimental); by default pki in the data directory")

	AddEtcdFlags(fss.FlagSet("etcd"), &o.Etcd)

	f = fss.FlagSet("images")
	f.StringVar(&o.ConfigFile, "config", "", "configuration file (YAML)")
	f.StringVar(&o.Policy, "policy", "", "file or folder of ClusterImagePolicy documents, which say who must have signed what; read again when it changes")

	f = fss.FlagSet("services and pods")
	f.StringSliceVar(&o.serviceCIDRs, "service-cluster-ip-range", []string{coreapi.DefaultServiceCIDR}, "range to allocate cluster IPs from; for dual stack two, one of each IP family")
	f.StringVar(&o.nodePorts, "service-node-port-range", coreapi.DefaultNodePorts, "range to allocate node ports from, as FIRST-LAST")
	f.StringVar(&o.podLogsDir, "pod-logs-dir", "", "absolute path of a directory with the pods' CRI log directories, such as /var/log/pods")
}

// AddEtcdFlags adds kube-apiserver's flags for etcd.
func AddEtcdFlags(f *pflag.FlagSet, o *etcd.Options) {
	f.StringSliceVar(&o.Servers, "etcd-servers", nil, "etcd servers (SCHEME://HOST:PORT) that hold the objects of several servers (experimental, docs/tasks/scale.md); the database is then this server's copy")
	f.StringVar(&o.CAFile, "etcd-cafile", "", "certificate authorities of etcd")
	f.StringVar(&o.CertFile, "etcd-certfile", "", "client certificate for etcd")
	f.StringVar(&o.KeyFile, "etcd-keyfile", "", "key of the client certificate for etcd")
	f.StringVar(&o.Prefix, "etcd-prefix", "/tidewaiter", "beginning of all keys in etcd, the same for servers that share them")
}

// coreOptions are the options of the core kinds.
func (o *Options) coreOptions(cfg *config.Config) coreapi.Options {
	return coreapi.Options{
		NewestFirst:  kubestore.NewestFirst,
		EventTTL:     o.EventTTL,
		ServiceCIDRs: o.serviceCIDRs,
		NodePorts:    o.nodePorts,
		PodLogs:      podlogs.Options{Dir: o.podLogsDir, Kubelet: kubeletOptions(cfg.Kubelet)},
		Uncollected:  []schema.GroupResource{imagev1.Resource("images"), imagev1.Resource("imagetags"), packages.GroupVersion.WithResource(packages.Resource).GroupResource()},
	}
}

// kubeletOptions are the options for reading logs from kubelets; nil if the configuration names
// none.
func kubeletOptions(k *config.Kubelet) *podlogs.KubeletOptions {
	if k == nil {
		return nil
	}
	return &podlogs.KubeletOptions{Address: k.Address, CertFile: k.CertFile, KeyFile: k.KeyFile, CAFile: k.CAFile}
}
