package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/pkg/kubeapiserver/options"
)

// Options configure how requests are authorized. They are kube-apiserver's own, with its flags.
type Options struct {
	*options.BuiltInAuthorizationOptions
}

// NewOptions returns kube-apiserver's defaults, but with roles (RBAC) as the mode.
func NewOptions() *Options {
	return &Options{options.NewBuiltInAuthorizationOptions()}
}

// offered are the modes that make sense here. Node needs Node objects, which are not
// served, and RBAC has superseded ABAC.
var offered = []string{modes.ModeRBAC, modes.ModeWebhook, modes.ModeAlwaysAllow, modes.ModeAlwaysDeny}

// AddFlags adds kube-apiserver's flags, except ABAC's.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.BuiltInAuthorizationOptions.AddFlags(f)
	f.Lookup("authorization-mode").Usage = "authorizers, asked in this order: " + strings.Join(offered, ", ") + ` (default RBAC, unless --authorization-config is given)`
	_ = f.MarkHidden("authorization-policy-file")
}

// Validate returns what is wrong with the options.
func (o *Options) Validate() error {
	_, err := o.config(nil)
	return err
}

// config returns the configuration of the options, with roles read by f.
func (o *Options) config(f informers.SharedInformerFactory) (*authorizer.Config, error) {
	if o.AuthorizationConfigurationFile == "" && len(o.Modes) == 0 {
		o.Modes = []string{modes.ModeRBAC}
	}
	if err := errors.Join(o.BuiltInAuthorizationOptions.Validate()...); err != nil {
		return nil, err
	}
	c, err := o.ToAuthorizationConfig(f)
	if err != nil {
		return nil, err
	}
	for _, a := range c.AuthorizationConfiguration.Authorizers {
		if !slices.Contains(offered, string(a.Type)) {
			return nil, fmt.Errorf("authorization mode %s is not supported; choose from %s", a.Type, strings.Join(offered, ", "))
		}
	}
	return c, nil
}
