package web

import (
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
)

// healthPaths answer without a credential, exactly and not below.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// newAuthorizer lets everyone read the health endpoints and system:masters do
// everything. No other identity is granted anything.
func newAuthorizer() (authorizer.Authorizer, error) {
	health, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return nil, err
	}
	return authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "health", Authorizer: health},
		authorizerunion.NamedAuthorizer{AuthorizerName: "masters", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
	)
}
