package web

import (
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	authorizerunion "k8s.io/apiserver/pkg/authorization/union"
)

// healthPaths answer without a credential: exactly these, and nothing below them.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// newAuthorizer lets everyone read the health endpoints, and leaves all other requests to next. If
// next is nil, only system:masters may do anything else.
func newAuthorizer(next authorizer.Authorizer) (authorizer.Authorizer, error) {
	health, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return nil, err
	}
	if next == nil {
		next = authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)
	}
	return authorizerunion.New(
		authorizerunion.NamedAuthorizer{AuthorizerName: "health", Authorizer: health},
		authorizerunion.NamedAuthorizer{AuthorizerName: "configured", Authorizer: next},
	)
}
