package coreapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	netutils "k8s.io/utils/net"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
)

// Defaults of [Options], Kubernetes' own where it has one.
const (
	DefaultEventTTL       = time.Hour
	DefaultServiceCIDR    = "10.0.0.0/24"
	DefaultNodePorts      = "30000-32767"
	defaultRepairInterval = 3 * time.Minute
)

// minIPv4Mask is the mask of the largest IPv4 range, as in Kubernetes where it uses
// bitmaps.
const minIPv4Mask = 12

// Options are the choices that a server offers; the zero value means the
// defaults.
type Options struct {
	// NewestFirst has the storage list what the context that it returns is for by age, the newest
	// first; nil if it cannot.
	NewestFirst func(context.Context) context.Context

	// EventTTL is how long to keep an Event after its last write, in
	// whole seconds; 0 means DefaultEventTTL.
	EventTTL time.Duration

	// ServiceCIDRs are the one or two ranges, one for each IP family, that
	// cluster IPs come from; the first is the primary family. None means
	// DefaultServiceCIDR. Of an IPv6 range, the first 65,536 addresses are
	// used; an IPv4 range is a /12 at most.
	ServiceCIDRs []string
	// NodePorts is the range that node ports come from, as "first-last";
	// empty means DefaultNodePorts.
	NodePorts string
	// RepairInterval is how often services are compared with the addresses that were
	// handed out; 0 means DefaultRepairInterval.
	RepairInterval time.Duration

	// PodLogs configures the sources of pods' logs.
	PodLogs podlogs.Options

	// Tokens configures how tokens of service accounts are made.
	Tokens Tokens

	// Clusters configures the clusters whose pods are followed.
	Clusters clusters.Options
	// OnlyClusters leaves out Kubernetes' own kinds, and everything that works on them:
	// the server is an API server of a cluster that has them.
	OnlyClusters bool

	// Uncollected are resources that the server serves beside this package's, and whose objects are
	// not deleted with their owners.
	Uncollected []schema.GroupResource

	// Authorizer decides who may do what, and Rules lists what a user may do. With both, roles,
	// bindings and access reviews are served.
	Authorizer authorizer.Authorizer
	Rules      authorizer.RuleResolver

	// Identity names this server as the holder of its Lease in kube-system;
	// empty means the host's name. It is part of the Lease's name, so it is
	// a DNS subdomain.
	Identity string
	// NoLease is true if the caller holds a Lease of this server.
	NoLease bool
}

// settings are options with defaults filled in and texts parsed.
type settings struct {
	eventTTL       uint64 // seconds
	cidrs          []*net.IPNet
	nodePorts      utilnet.PortRange
	repairInterval time.Duration
	podLogs        podlogs.Options
	uncollected    []schema.GroupResource
	identity       string
}

// Validate returns what is wrong with the options.
func (o Options) Validate() error {
	_, err := o.complete()
	return err
}

func (o Options) complete() (*settings, error) {
	s := &settings{
		eventTTL:       uint64(o.EventTTL / time.Second),
		repairInterval: o.RepairInterval,
		podLogs:        o.PodLogs,
		uncollected:    o.Uncollected,
		identity:       o.Identity,
	}
	var problems []error
	switch {
	case o.EventTTL == 0:
		s.eventTTL = uint64(DefaultEventTTL / time.Second)
	case o.EventTTL < time.Second:
		problems = append(problems, fmt.Errorf("event TTL %s: give a second or more", o.EventTTL))
	}
	switch {
	case o.RepairInterval == 0:
		s.repairInterval = defaultRepairInterval
	case o.RepairInterval < 0:
		problems = append(problems, fmt.Errorf("repair interval %s: give a positive duration", o.RepairInterval))
	}
	if err := s.readCIDRs(o.ServiceCIDRs); err != nil {
		problems = append(problems, err)
	}
	ports := cmp.Or(o.NodePorts, DefaultNodePorts)
	if r, err := utilnet.ParsePortRange(ports); err != nil {
		problems = append(problems, fmt.Errorf("node ports: %w", err))
	} else if r.Base == 0 {
		problems = append(problems, fmt.Errorf("node ports %q: give a range that starts at 1 or above", ports))
	} else {
		s.nodePorts = *r
	}
	if s.identity == "" {
		host, err := os.Hostname()
		if err != nil {
			problems = append(problems, fmt.Errorf("no identity given, and no host name: %w", err))
		}
		s.identity = leaseSafe(host)
	}
	for _, p := range utilvalidation.IsDNS1123Subdomain(s.identity) {
		problems = append(problems, fmt.Errorf("identity %q: %s", s.identity, p))
	}
	return s, errors.Join(problems...)
}

func (s *settings) readCIDRs(cidrs []string) error {
	if len(cidrs) == 0 {
		cidrs = []string{DefaultServiceCIDR}
	}
	if len(cidrs) > 2 {
		return fmt.Errorf("%d service CIDRs: give one, or one for each IP family", len(cidrs))
	}
	for _, text := range cidrs {
		_, cidr, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			return fmt.Errorf("service CIDR: %w", err)
		}
		// The bitmap has a bit for each address and is written whole.
		if ones, bits := cidr.Mask.Size(); bits == 32 && ones < minIPv4Mask {
			return fmt.Errorf("service CIDR %s is too large: give a /%d or a smaller one", cidr, minIPv4Mask)
		}
		if netutils.RangeSize(cidr) < 8 {
			return fmt.Errorf("service CIDR %s has fewer than 8 addresses; give a larger one", cidr)
		}
		s.cidrs = append(s.cidrs, cidr)
	}
	if len(s.cidrs) == 2 && netutils.IsIPv6CIDR(s.cidrs[0]) == netutils.IsIPv6CIDR(s.cidrs[1]) {
		return fmt.Errorf("service CIDRs %s and %s are of one IP family; give one IPv4 and one IPv6 range", s.cidrs[0], s.cidrs[1])
	}
	return nil
}
