// Package admin holds the HTTP handlers of a server beside the Kubernetes API: they
// show the spool of pushes, the progress of verifying signatures, and who the caller
// is. The server lets administrators alone reach them. Each handler works over an
// interface that is defined here.
package admin

import (
	"encoding/json"
	"net/http"
)

// answer writes v as JSON. An error means that the client is gone.
func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}
