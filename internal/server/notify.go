package server

import (
	"cmp"
	"context"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/controllers/drift"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
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

// followChanges adds the task that notifies about changes.
func (s *Server) followChanges(storage *kubestore.Getter) {
	s.notices = notices.New(notices.Options{
		DB:         s.DB,
		Changes:    storage,
		Notifier:   s.pushes.notifier,
		Queue:      s.pushes.spool.Outbox,
		Runs:       whatRuns{s.answerer, s.Usage},
		Clock:      s.Options.Clock,
		Registerer: meter.Process,
	})
	s.Tasks = append(s.Tasks, Task{Name: "notifications", Run: s.notices.Run, One: true})
}

// whatRuns finds the pods for notifications: a notices.Runs.
type whatRuns struct {
	*answers.Answerer
	usage *usage.Index
}

// Synced is part of notices.Runs.
func (w whatRuns) Synced() bool { return w.usage.Synced() }

// Pods is part of notices.Runs.
func (w whatRuns) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	return w.Use.Pods(digest, image)
}

// Drift is part of notices.Runs.
func (w whatRuns) Drift(ctx context.Context, tag reference.Reference) (message, image string, pods int, err error) {
	if !slices.ContainsFunc(w.NamesOf(tag), func(name reference.Reference) bool { return w.usage.Names(name.String()) }) {
		return "", "", 0, nil
	}
	found, err := w.DriftOf(ctx, tag)
	if err != nil {
		return "", "", 0, err
	}
	message, pods = drift.Message(tag.String(), found)
	return message, found.Now, pods, nil
}

// tagNotifier passes on what is found about tags: it is a drift.Notifier and an
// overwrites.Notifier.
type tagNotifier struct {
	*imageevents.Recorder
	server *Server
}

// Outdated records that pods run something else than a tag leads to, and notifies others.
func (n tagNotifier) Outdated(tag *imagev1.ImageTag, message string) {
	n.Recorder.Outdated(tag, message)
	if n.server.notices != nil {
		n.server.notices.Drifted(tag)
	}
}

// Turned records which verdicts turned, and sends notifications. If no verdict is known to have
// turned, it has the verdicts of the pods that run the image recorded and counted again.
func (n tagNotifier) Turned(digest string, image *imagev1.Image, turned []signatures.Change) {
	if len(turned) > 0 {
		n.server.turned(image, turned)
		return
	}
	n.server.runs.Recheck(imageruns.ByTag, digest)
	n.server.Verification.recount.Send()
}
