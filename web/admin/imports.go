package admin

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// ImportsPath is where a server is asked to import a reference, or to ask its registry again.
const ImportsPath = "/tidewaiter/imports"

// ImportAnswer is the server's answer.
type ImportAnswer struct {
	// Reference is what is imported, whole.
	Reference string `json:"reference"`
}

// Imports answers a POST by asking for an import of the query's reference, as the user who asks.
// ask puts that into a queue and returns the whole reference. It may fail with an error of the API.
func Imports(ask func(ctx context.Context, reference, by string) (string, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "POST asks for an import", http.StatusMethodNotAllowed)
			return
		}
		by := ""
		if caller, ok := request.UserFrom(r.Context()); ok {
			by = caller.GetName()
		}
		whole, err := ask(r.Context(), r.URL.Query().Get("reference"), by)
		var status apierrors.APIStatus
		switch {
		case errors.As(err, &status):
			refuse(w, status.Status())
		case err != nil:
			refuse(w, apierrors.NewServiceUnavailable(err.Error()).Status())
		default:
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusAccepted)
			answer(w, ImportAnswer{whole})
		}
	})
}

// refuse answers with a Status, which clients show.
func refuse(w http.ResponseWriter, s metav1.Status) {
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(s.Code))
	answer(w, s)
}
