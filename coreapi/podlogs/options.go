package podlogs

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// mostStreams is how many logs are read from files at once, unless [Options.MaxStreams] is set, or
// the process may open fewer than eight times as many files.
const mostStreams = 512

func defaultMaxStreams() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return mostStreams
	}
	return int(min(limit.Cur/8, mostStreams))
}

// defaultKubeletPort is the kubelet's TLS port.
const defaultKubeletPort = 10250

// Options configure the sources of logs. The zero value has no source: every request is refused
// with a reason.
type Options struct {
	// Dir is the absolute path of the directory that holds the pods' log
	// directories, such as /var/log/pods; empty for none.
	Dir string
	// MaxStreams limits the logs read from Dir at once; 0 means
	// DefaultMaxStreams.
	MaxStreams int
	// Kubelet reaches the kubelets of the pods' nodes; nil for none.
	Kubelet *KubeletOptions
	// Clock gives the time from which sinceSeconds counts back; nil is the system's.
	Clock clock.PassiveClock
}

// KubeletOptions configure how to reach the kubelet of a pod's node.
//
// A caller who may write a pod's status chooses its status.hostIP, and so the host to connect to.
// The certificate authority keeps the client certificate from being shown to a stranger.
type KubeletOptions struct {
	// Address is the kubelet's host, or host:port, with {hostIP} standing
	// for the pod's status.hostIP and {nodeName} for its spec.nodeName;
	// empty means {hostIP}. The port is DefaultKubeletPort unless given.
	Address string
	// CertFile and KeyFile name the PEM files of the client certificate.
	CertFile, KeyFile string
	// CAFile names the PEM file of the authority that signs the kubelets'
	// serving certificates. Without it only requests with
	// insecureSkipTLSVerifyBackend are served.
	CAFile string
}

// Check returns an error if logs cannot be read with these options. It also reads the files that
// they name.
func (o Options) Check() error {
	if o.Dir != "" && !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("pod log directory %q: give an absolute path", o.Dir)
	}
	if o.MaxStreams < 0 {
		return fmt.Errorf("at most %d pod log streams: give a positive number", o.MaxStreams)
	}
	if k := o.Kubelet; k != nil {
		if (k.CertFile == "") != (k.KeyFile == "") {
			return errors.New("kubelet client: give both the certificate and its key, or neither")
		}
		if _, _, err := k.endpoint("192.0.2.1", "node"); err != nil {
			return fmt.Errorf("kubelet address %q: %w", k.Address, err)
		}
		if err := k.checkFiles(); err != nil {
			return fmt.Errorf("kubelet client: %w", err)
		}
	}
	return nil
}

// checkFiles refuses files that another user could have written, and a key that
// another user can read.
func (o KubeletOptions) checkFiles() error {
	var errs []error
	for _, file := range []string{o.CertFile, o.CAFile} {
		if file != "" {
			errs = append(errs, trusted.CheckPath(file))
		}
	}
	if o.KeyFile != "" {
		errs = append(errs, trusted.CheckSecretPath(o.KeyFile))
	}
	return errors.Join(errs...)
}

// endpoint fills in the template of the address.
func (o KubeletOptions) endpoint(hostIP, nodeName string) (host, port string, err error) {
	template := cmp.Or(o.Address, "{hostIP}")
	if strings.Contains(template, "{hostIP}") && net.ParseIP(hostIP) == nil {
		return "", "", fmt.Errorf("status.hostIP is %q: not an IP address", hostIP)
	}
	address := strings.NewReplacer("{hostIP}", hostIP, "{nodeName}", nodeName).Replace(template)
	host, port = address, strconv.Itoa(defaultKubeletPort)
	if net.ParseIP(address) == nil { // a bare IPv6 address is full of colons
		if h, p, err := net.SplitHostPort(address); err == nil {
			host, port = h, p
		} else if strings.ContainsAny(address, ":[]") {
			return "", "", fmt.Errorf("%q is neither a host nor host:port: %w", address, err)
		}
	}
	if net.ParseIP(host) == nil {
		if problems := utilvalidation.IsDNS1123Subdomain(host); len(problems) > 0 {
			return "", "", fmt.Errorf("host %q: %s", host, strings.Join(problems, "; "))
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", "", fmt.Errorf("port %q is not a number from 1 to 65535", port)
	}
	return host, port, nil
}
