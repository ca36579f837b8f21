package server

import (
	"cmp"
	"context"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/controllers/notices"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// openNotifier prepares a listening server to tell others what happens.
func (s *Server) openNotifier(context.Context) (err error) {
	if s.listener != nil {
		s.pushes.notifier, err = s.Config.Notifier(cmp.Or(s.Options.TLS.AdvertiseURL, s.URL), s.Options.Clock)
	}
	return err
}

// followChanges adds the task that has others told.
func (s *Server) followChanges(storage *kubestore.Getter) {
	s.notices = notices.New(notices.Options{
		DB:         s.DB,
		Changes:    storage,
		Notifier:   s.pushes.notifier,
		Queue:      s.pushes.spool.Outbox,
		Runs:       whatRuns{s},
		Clock:      s.Options.Clock,
		Registerer: meter.Process,
	})
	s.Tasks = append(s.Tasks, Task{Name: "notifications", Run: s.notices.Run, One: true})
}

// whatRuns is what notifications say about pods.
type whatRuns struct{ *Server }

// Synced is part of notices.Runs.
func (w whatRuns) Synced() bool { return w.Usage.Synced() }

// Pods is part of notices.Runs.
func (w whatRuns) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	return w.answerer.Use.Pods(digest, image)
}

// PodsNaming is part of notices.Runs.
func (w whatRuns) PodsNaming(ctx context.Context, image *imagev1.Image, place reference.Reference, namespace, verified string) (n int, complete bool, err error) {
	return w.answerer.PodsNaming(ctx, image, place, namespace, verified)
}

// Overwritten is part of notices.Runs.
func (w whatRuns) Overwritten(ctx context.Context, tag *imagev1.ImageTag) (*answers.Overwritten, error) {
	return w.answerer.Overwritten(ctx, tag)
}

// Drift is part of notices.Runs.
func (w whatRuns) Drift(ctx context.Context, tag reference.Reference) (message, image string, pods int, err error) {
	if !slices.ContainsFunc(w.answerer.NamesOf(tag), func(name reference.Reference) bool { return w.Usage.Names(name.String()) }) {
		return "", "", 0, nil
	}
	found, err := w.answerer.DriftOf(ctx, tag)
	if err != nil {
		return "", "", 0, err
	}
	message, pods = drift.Message(tag.String(), found)
	return message, found.Now, pods, nil
}

// tagNotifier passes on what is found about tags: it is a drift.Notifier and an
// overwrites.Notifier.
type tagNotifier struct{ *Server }

// Outdated records that pods run something else than a tag leads to, and notifies others.
func (n tagNotifier) Outdated(tag *imagev1.ImageTag, message string) {
	n.Events.Outdated(tag, message)
	if n.notices != nil {
		n.notices.Drifted(tag)
	}
}

func (n tagNotifier) Overwritten(tag *imagev1.ImageTag, message string) {
	n.Events.Overwritten(tag, message)
}

// Turned records which verdicts turned, and notifies others. If none is known to have, it has those
// of what runs the image recorded and counted again.
func (n tagNotifier) Turned(digest string, image *imagev1.Image, turned []signatures.Change) {
	if len(turned) > 0 {
		n.turned(image, turned)
		return
	}
	n.runs.Recheck(digest)
	n.Verification.Inventory.RecountRunning()
}
