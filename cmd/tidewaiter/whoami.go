package main

import (
	"encoding/json"
	"net/http"

	userv1 "github.com/openshift/api/user/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// currentUserPath is where OpenShift's clients ask who they are. `oc adm
// verify-image-signature` does so first and gives up without an answer, and it is
// what `oc whoami` prints.
const currentUserPath = "/apis/user.openshift.io/v1/users/~"

// serveCurrentUser answers with the User that makes the request. There are no
// others, and no other resource of the group.
func serveCurrentUser(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		http.Error(w, "users can only be read", http.StatusMethodNotAllowed)
		return
	}
	u, ok := request.UserFrom(r.Context())
	if !ok {
		http.Error(w, "nobody is logged in", http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(userv1.User{ // an error means that the client is gone
		TypeMeta:   metav1.TypeMeta{APIVersion: userv1.GroupVersion.String(), Kind: "User"},
		ObjectMeta: metav1.ObjectMeta{Name: u.GetName()},
		Groups:     u.GetGroups(),
	})
}
