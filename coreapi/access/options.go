package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
)

// Options say how requests are authorized. Their flags have the names, defaults and
// meaning of kube-apiserver's, but that the mode is RBAC by default. So it is in the
// zero value.
type Options struct {
	// Modes are asked in this order, after system:masters: RBAC, Webhook,
	// AlwaysAllow, AlwaysDeny.
	Modes []string
	// ConfigFile is a file of kind AuthorizationConfiguration, read again when it
	// changes. It stands for everything else here.
	ConfigFile string
	// WebhookConfigFile is a kubeconfig of the service that the mode Webhook asks.
	WebhookConfigFile string
	// WebhookVersion is the version of SubjectAccessReview that it is asked with.
	WebhookVersion string
	// WebhookAuthorizedTTL and WebhookUnauthorizedTTL are how long its answers are
	// remembered; 0 stands for not at all.
	WebhookAuthorizedTTL, WebhookUnauthorizedTTL time.Duration

	flags *pflag.FlagSet
}

// offered are the modes that make sense here. Node knows kubelets by their Node
// objects, which are not served, and ABAC has been superseded by RBAC.
var offered = []string{modes.ModeRBAC, modes.ModeWebhook, modes.ModeAlwaysAllow, modes.ModeAlwaysDeny}

const (
	flagMode            = "authorization-mode"
	flagConfig          = "authorization-config"
	flagWebhookConfig   = "authorization-webhook-config-file"
	flagWebhookVersion  = "authorization-webhook-version"
	flagAuthorizedTTL   = "authorization-webhook-cache-authorized-ttl"
	flagUnauthorizedTTL = "authorization-webhook-cache-unauthorized-ttl"
)

// AddFlags adds the flags to f.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	o.flags = f
	f.StringSliceVar(&o.Modes, flagMode, []string{modes.ModeRBAC}, "who decides what a caller may do, in this order: "+strings.Join(offered, ", "))
	f.StringVar(&o.ConfigFile, flagConfig, "", "file of kind AuthorizationConfiguration, read again when it changes; instead of the other flags of authorization")
	f.StringVar(&o.WebhookConfigFile, flagWebhookConfig, "", "kubeconfig of the service that the mode Webhook asks")
	f.StringVar(&o.WebhookVersion, flagWebhookVersion, "v1beta1", "version of SubjectAccessReview that the webhook is asked with")
	f.DurationVar(&o.WebhookAuthorizedTTL, flagAuthorizedTTL, 5*time.Minute, "how long a webhook's yes is remembered")
	f.DurationVar(&o.WebhookUnauthorizedTTL, flagUnauthorizedTTL, 30*time.Second, "how long a webhook's no is remembered")
}

// Validate says what is wrong with the options.
func (o Options) Validate() error {
	_, _, err := o.configuration()
	return err
}

// configuration returns what the options say, and the text of ConfigFile.
func (o Options) configuration() (*apiserver.AuthorizationConfiguration, string, error) {
	if o.ConfigFile == "" {
		c, err := o.fromModes()
		return c, "", err
	}
	for _, name := range []string{flagMode, flagWebhookConfig, flagWebhookVersion, flagAuthorizedTTL, flagUnauthorizedTTL} {
		if o.flags != nil && o.flags.Changed(name) {
			return nil, "", fmt.Errorf("--%s and --%s: give one of them", flagConfig, name)
		}
	}
	c, text, err := authorizer.LoadAndValidateFile(o.ConfigFile, cel.NewDefaultCompiler(), nil)
	if err != nil {
		return nil, "", fmt.Errorf("--%s %s: %w", flagConfig, o.ConfigFile, err)
	}
	for _, a := range c.Authorizers {
		if !slices.Contains(offered, string(a.Type)) {
			return nil, "", fmt.Errorf("--%s %s: type %s is not offered; there are %s", flagConfig, o.ConfigFile, a.Type, strings.Join(offered, ", "))
		}
	}
	return c, text, nil
}

func (o Options) fromModes() (*apiserver.AuthorizationConfiguration, error) {
	if len(o.Modes) == 0 {
		o.Modes = []string{modes.ModeRBAC}
	}
	var errs []error
	given := sets.New(o.Modes...)
	if len(given) != len(o.Modes) {
		errs = append(errs, fmt.Errorf("--%s %s: name each mode once", flagMode, strings.Join(o.Modes, ",")))
	}
	for _, m := range sets.List(given.Difference(sets.New(offered...))) {
		errs = append(errs, fmt.Errorf("--%s %s is not offered; there are %s", flagMode, m, strings.Join(offered, ", ")))
	}
	if given.Has(modes.ModeWebhook) != (o.WebhookConfigFile != "") {
		errs = append(errs, fmt.Errorf("--%s %s and --%s: give both or neither", flagMode, modes.ModeWebhook, flagWebhookConfig))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	c := &apiserver.AuthorizationConfiguration{}
	for _, m := range o.Modes {
		a := apiserver.AuthorizerConfiguration{Type: apiserver.AuthorizerType(m), Name: authorizer.GetNameForAuthorizerMode(m)}
		if m == modes.ModeWebhook {
			a.Name, a.Webhook = "default", o.webhook()
		}
		c.Authorizers = append(c.Authorizers, a)
	}
	return c, nil
}

// webhook is what kube-apiserver makes of these flags: a webhook that does not
// answer has no opinion.
func (o Options) webhook() *apiserver.WebhookConfiguration {
	return &apiserver.WebhookConfiguration{
		AuthorizedTTL:              metav1.Duration{Duration: o.WebhookAuthorizedTTL},
		CacheAuthorizedRequests:    o.WebhookAuthorizedTTL != 0,
		UnauthorizedTTL:            metav1.Duration{Duration: o.WebhookUnauthorizedTTL},
		CacheUnauthorizedRequests:  o.WebhookUnauthorizedTTL != 0,
		Timeout:                    metav1.Duration{Duration: 30 * time.Second},
		FailurePolicy:              apiserver.FailurePolicyNoOpinion,
		SubjectAccessReviewVersion: o.WebhookVersion,
		ConnectionInfo: apiserver.WebhookConnectionInfo{
			Type:           apiserver.AuthorizationWebhookConnectionInfoTypeKubeConfigFile,
			KubeConfigFile: &o.WebhookConfigFile,
		},
	}
}
