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

// Options say how requests are authorized: kube-apiserver's own, by its flags.
type Options struct {
	*options.BuiltInAuthorizationOptions
}

// NewOptions has kube-apiserver's defaults, but that roles decide.
func NewOptions() *Options {
	return &Options{options.NewBuiltInAuthorizationOptions()}
}

// offered are the modes that make sense here. Node knows kubelets by their Node
// objects, which are not served, and ABAC has been superseded by RBAC.
var offered = []string{modes.ModeRBAC, modes.ModeWebhook, modes.ModeAlwaysAllow, modes.ModeAlwaysDeny}

// AddFlags adds kube-apiserver's flags, but that of ABAC.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.BuiltInAuthorizationOptions.AddFlags(f)
	f.Lookup("authorization-mode").Usage = "who decides what a caller may do, asked in this order: " + strings.Join(offered, ", ") + ` (default RBAC, unless --authorization-config is given)`
	_ = f.MarkHidden("authorization-policy-file")
}

// Validate says what is wrong with the options.
func (o *Options) Validate() error {
	_, err := o.config(nil)
	return err
}

// config is what the options say, with roles read by f.
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
			return nil, fmt.Errorf("authorization mode %s is not offered; there are %s", a.Type, strings.Join(offered, ", "))
		}
	}
	return c, nil
}
