package admin

import (
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// UserPath is where OpenShift's clients ask who they are. `oc adm
// verify-image-signature` asks first and gives up without an answer, and `oc whoami`
// prints the answer.
const UserPath = "/apis/user.openshift.io/v1/users/~"

// user holds the fields of a user.openshift.io/v1 User that a client reads.
type user struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Groups            []string `json:"groups"`
}

// User answers GET with the User that makes the request. There are no other Users, and
// no other resource of the group.
func User() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			w.Header().Set("Allow", http.MethodGet)
			http.Error(w, "users can only be read", http.StatusMethodNotAllowed)
			return
		}
		caller, ok := request.UserFrom(r.Context())
		if !ok {
			http.Error(w, "the request has no user", http.StatusUnauthorized)
			return
		}
		answer(w, user{
			TypeMeta:   metav1.TypeMeta{APIVersion: "user.openshift.io/v1", Kind: "User"},
			ObjectMeta: metav1.ObjectMeta{Name: caller.GetName()},
			Groups:     caller.GetGroups(),
		})
	})
}
