package server

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
)

// verification has a server's policies in force, from files and objects, and what is to be judged
// and counted again because of a change. The tasks that do so wait for these signals, and are made
// later.
type verification struct {
	isBroken atomic.Bool // the files, when they were read last

	path   string // of the file or folder of policies; empty when there is none
	clock  clock.WithTicker
	files  *policy.Set
	live   *signatures.Live
	Keeper *policyapi.Keeper // nil until assemble

	requests *reverify.Requests // of the sweeper
	recount  reconcile.Signal   // has what runs counted again
	rules    reconcile.Signal   // has all tags looked at that must not move
	changes  reverify.Changes   // of Images, by any writer; nil if they are not followed
}

// tallies count with the same sweep.
type tallies []reverify.Tally

// Begin is part of reverify.Tally.
func (all tallies) Begin() {
	for _, t := range all {
		t.Begin()
	}
}

// Resume is part of reverify.Tally.
func (all tallies) Resume() bool {
	for i, t := range all {
		if !t.Resume() {
			all[:i].End(errNotResumed)
			return false
		}
	}
	return true
}

// errNotResumed ends the resumed counts if one of the tallies could not resume.
var errNotResumed = errors.New("not all counts can go on")

// Count is part of reverify.Tally.
func (all tallies) Count(image *imagev1.Image) {
	for _, t := range all {
		t.Count(image)
	}
}

// Gone is part of reverify.Tally.
func (all tallies) Gone(name string) {
	for _, t := range all {
		t.Gone(name)
	}
}

// End is part of reverify.Tally.
func (all tallies) End(err error) {
	for _, t := range all {
		t.End(err)
	}
}

// openVerification loads the policies of path, or none if path is empty. It refuses policies that
// cannot work. The clock c times the rereading of the files.
func openVerification(path string, c clock.WithTicker) (*verification, error) {
	set, err := config.LoadPolicies(path)
	if err != nil {
		return nil, err
	}
	return &verification{
		path: path, clock: c, files: set, live: signatures.NewLive(set, clock.RealClock{}),
		requests: reverify.NewRequests(), recount: reconcile.NewSignal(), rules: reconcile.NewSignal(),
	}, nil
}

// Demands is part of find.Demands.
func (v *verification) Demands(image reference.Reference) (signatures, attestations bool) {
	return v.live.Set().Demands(image)
}

// resync brings the stored verdicts up to date with the policies in force.
func (v *verification) resync() {
	v.rules.Send()
	v.recount.Send()
	v.requests.Resync()
}

// connect makes the sweeper, which reads and writes Images with config, and what counts with it.
func (v *verification) connect(config *restclient.Config, counted inventory.Options) (*reverify.Sweeper, *inventory.Counter, error) {
	images, err := imageclient.New(config)
	if err != nil {
		return nil, nil, err
	}
	counted.Tags, counted.Images, counted.Recount = images, images, v.recount
	counter := inventory.New(counted)
	return reverify.New(reverify.Options{
		Images: images, Policies: v.live, Tally: tallies{v.Keeper, counter}, Changes: v.changes, Requests: v.requests, Registerer: meter.Process,
	}), counter, nil
}

// keepVerdicts keeps policies and verdicts up to date until ctx ends.
func (v *verification) keepVerdicts(ctx context.Context, sweeper *reverify.Sweeper, events *imageevents.Recorder) error {
	meter.Register(meter.Process, policyReloads, policyLoaded)
	policyLoaded.Set(1)
	var background sync.WaitGroup
	defer background.Wait()
	if v.path != "" {
		w := &policy.Watcher{Path: v.path, Clock: v.clock, Follower: reloads{v, events}}
		background.Go(func() { w.Run(ctx, v.files) })
	}
	background.Go(func() { v.Keeper.Run(ctx) })
	select {
	case <-ctx.Done():
	case <-v.Keeper.Ready(): // a verdict without some policies would have to be judged twice
		sweeper.Run(ctx)
	}
	return nil
}

// reloads are reloads of the files of policies, about which Events are recorded.
type reloads struct {
	*verification
	events *imageevents.Recorder
}

// Changed takes over the policies of changed files: affected images are judged again.
func (v reloads) Changed(ctx context.Context, set *policy.Set) {
	if err := v.Keeper.SetFiles(ctx, set); err != nil {
		v.Broken(ctx, err)
		return
	}
	policyReloads.WithLabelValues("success").Inc()
	policyLoaded.Set(1)
	if v.isBroken.Swap(false) {
		slog.Warn("Policies can be reloaded again, and the new ones are in force", "path", v.path)
	}
	slog.Info("Policies were reloaded", "path", v.path, "policies", len(set.Policies()))
	v.events.Record(v.object(), false, "PolicyReloaded", "signatures are verified by the new policies")
}

// Broken records that the files cannot be used.
func (v reloads) Broken(_ context.Context, err error) {
	v.isBroken.Store(true)
	policyReloads.WithLabelValues("error").Inc()
	policyLoaded.Set(0)
	slog.Error("Policies cannot be reloaded, the old ones stay in force", "err", err, "path", v.path)
	v.events.Record(v.object(), true, "PolicyInvalid", "the old policies stay in force: "+err.Error())
}

// object is the object of Events about files of policies. It is not the objects that show
// these policies, as those have not changed.
func (v *verification) object() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "config.openshift.io/v1", Kind: "ClusterImagePolicy", Name: filepath.Base(v.path)}
}

var (
	policyReloads = meter.CounterVec("policy", "reloads_total", "Attempts to reload policy files that changed, by result: success, error.", "result")
	policyLoaded  = meter.Gauge("policy", "last_reload_successful", "1 if the policies in force are those of the files, 0 if the files are broken and older policies are in force.")
)
