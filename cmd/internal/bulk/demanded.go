package bulk

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/attestation"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// DemandedBy has the demands of the policies of a server or of a data directory. A dry run contacts
// no server and judges nothing, so it has no demands.
type DemandedBy struct {
	set     *policy.Set
	unknown bool // the server does not show its policies, so everything may be demanded
}

// Demands is part of find.Demands.
func (d *DemandedBy) Demands(image reference.Reference) (signatures, attestations bool) {
	if d.unknown {
		return true, true
	}
	return d.set.Demands(image)
}

// Read reads the policies of a server. The server shows policies from files as objects, too.
func (d *DemandedBy) Read(ctx context.Context, config *restclient.Config) {
	set, err := shownPolicies(ctx, config)
	if err != nil {
		slog.Debug("The server does not show its policies, so each image is searched for everything that a policy may demand", "err", err)
	}
	d.set, d.unknown = set, err != nil
}

// configv1 is the group and version of policies, which are OpenShift's.
var configv1 = schema.GroupVersion{Group: "config.openshift.io", Version: "v1"}

// shownList is a list of policies as the server shows them. A client needs no more of
// policyapi.ImagePolicyList, whose package has the storage, too.
type shownList struct {
	metav1.ListMeta `json:"metadata"`
	Items           []struct {
		metav1.ObjectMeta `json:"metadata"`
		Spec              policy.DocumentSpec `json:"spec"`
	} `json:"items"`
}

// shownPolicies returns the policies of a server with their names, their scopes and how many
// attestations each demands.
func shownPolicies(ctx context.Context, config *restclient.Config) (*policy.Set, error) {
	config = restclient.CopyConfig(config)
	config.APIPath, config.GroupVersion = "/apis", &configv1
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	client, err := restclient.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	var all []*policy.Policy
	for _, resource := range []string{"clusterimagepolicies", "imagepolicies"} {
		err := pages.Each(ctx, metav1.ListOptions{Limit: 50}, func(ctx context.Context, o metav1.ListOptions) (*shownList, error) {
			body, err := client.Get().Resource(resource).Param("limit", strconv.FormatInt(o.Limit, 10)).Param("continue", o.Continue).DoRaw(ctx)
			if err != nil {
				return nil, err
			}
			list := &shownList{} // both kinds have this form
			return list, json.Unmarshal(body, list)
		}, func(list *shownList) error {
			for _, o := range list.Items {
				p := policy.DenyAll(o.Namespace, o.Name, &o.Spec)
				p.Attestations = make([]*attestation.Demand, len(o.Spec.Policy.Attestations))
				all = append(all, p)
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", resource, err)
		}
	}
	return policy.NewSet(all)
}
