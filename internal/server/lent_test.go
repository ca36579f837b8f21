package server

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// A pod that waits at one server for an image lends its credentials to the server that imports, and
// no longer than it waits.
func TestPodsLendCredentialsToAllServers(t *testing.T) {
	t.Parallel()
	store := dbtest.NewTruth()
	open := func() *Admitter {
		d := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
		if err := d.Filled(t.Context()); err != nil {
			t.Fatal(err)
		}
		return &Admitter{lent: d}
	}
	here, leads := open(), open()
	ref, err := reference.Parse("registry.example.com/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	image := awaited{"prod", ref}
	done, err := here.wait(t.Context(), &admission.Pod{Cluster: "prod", Namespace: "team", ServiceAccount: "app", PullSecrets: []string{"pull"}}, image)
	if err != nil {
		t.Fatal(err)
	}
	pods, err := leads.awaiting(t.Context(), image)
	if err != nil || len(pods) != 1 || pods[0].Namespace != "team" || pods[0].ServiceAccount != "app" || len(pods[0].PullSecrets) != 1 {
		t.Errorf("the server that leads knows %+v, %v", pods, err)
	}
	if pods, err := leads.awaiting(t.Context(), awaited{"test", ref}); err != nil || len(pods) != 0 {
		t.Errorf("of another cluster: %+v, %v", pods, err)
	}
	done()
	if pods, err := leads.awaiting(t.Context(), image); err != nil || len(pods) != 0 {
		t.Errorf("after the pod has stopped waiting: %+v, %v", pods, err)
	}
}
