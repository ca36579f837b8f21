package admission

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/warn"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// Path is the path for reviews. The name of the cluster with the pod may follow it.
const Path = "/apis/tidewaiter.dev/v1/admissionreviews"

// maxReview bounds an AdmissionReview, in bytes: it has the new and the old pod as JSON, each as
// large as etcd accepts.
const maxReview = 6 << 20

const (
	defaultTimeout = 10 * time.Second // Kubernetes' own
	maxTimeout     = 30 * time.Second // Kubernetes' own
	pollInterval   = 100 * time.Millisecond

	maxMessages = 8   // findings that a refusal or the warnings name
	maxMessage  = 512 // bytes of one message
	maxWarning  = 250 // bytes; API servers cut a warning that is longer
)

// Options configure a Handler. Verdicts and Cluster are required.
type Options struct {
	Verdicts Verdicts
	// Cluster is the cluster for requests to Path without a name, and Others are the clusters that
	// requests may name.
	Cluster string
	Others  []string
	// Exempt are namespaces of Cluster whose pods are always admitted.
	Exempt []string
	// MaxWaiting bounds the places for waiting on unknown images. Default 50.
	MaxWaiting int
	// Recorder records what is admitted; may be nil.
	Recorder Recorder
	// Registerer gets the metrics; may be nil.
	Registerer meter.Registerer
	// Clock is for tests; nil is the real one.
	Clock clock.WithTickerAndDelayedExecution
	// Logger gets refusals. Default slog.Default().
	Logger *slog.Logger
}

// Recorder records what is admitted.
type Recorder interface {
	// Admitted records an image of an admitted pod: the strictest action of the policies and its
	// reason. unknown is true if it is not known whether the image meets the policies. It does not
	// wait.
	Admitted(cluster, namespace, image string, as admit.Action, unknown bool, message string)
}

// Handler answers AdmissionReviews about pods. It is safe for concurrent use.
type Handler struct {
	Options
	places   *waitSlots
	metrics  *admissionMetrics
	warnings warn.Limiter
}

// New returns a Handler.
func New(o Options) *Handler {
	o.MaxWaiting = cmp.Or(o.MaxWaiting, 50)
	o.Clock = cmp.Or[clock.WithTickerAndDelayedExecution](o.Clock, clock.RealClock{})
	return &Handler{Options: o, places: newWaitSlots(o.MaxWaiting), metrics: newMetrics(o.Registerer), warnings: warn.Limiter{Logger: o.Logger}}
}

// Serve answers requests to Path, and passes the others to next.
func (h *Handler) Serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		below, ok := strings.CutPrefix(r.URL.Path, Path)
		if !ok || r.Method != http.MethodPost || below != "" && below[0] != '/' {
			next.ServeHTTP(w, r)
			return
		}
		h.serve(w, r, strings.Trim(below, "/"))
	})
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, cluster string) {
	start := h.Clock.Now()
	cluster = cmp.Or(cluster, h.Cluster)
	if cluster != h.Cluster && !slices.Contains(h.Others, cluster) {
		http.Error(w, fmt.Sprintf("there is no cluster %.64q in the configuration; %s without a name accepts any", cluster, Path), http.StatusNotFound)
		return
	}
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" {
		http.Error(w, "an AdmissionReview must be application/json", http.StatusUnsupportedMediaType)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		http.Error(w, fmt.Sprintf("an AdmissionReview has at most %d bytes", maxReview), http.StatusRequestEntityTooLarge)
		return
	}
	if err != nil {
		http.Error(w, "the AdmissionReview ended early", http.StatusBadRequest)
		return
	}
	in, err := parseReview(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	decision, waited := "exempt", false
	answer := &admissionv1.AdmissionResponse{Allowed: true}
	switch {
	case !in.pods:
		answer.Warnings = []string{printable.Line(fmt.Sprintf("Tidewaiter judges pods when their images change, not %s of %s: narrow the webhook's rules", in.request.Operation, in.request.Resource.Resource), maxWarning)}
	case in.isMirror(), cluster == h.Cluster && slices.Contains(h.Exempt, in.request.Namespace):
	default:
		var found []finding
		found, waited, err = h.judge(r.Context(), cluster, in, start.Add(answerTime(r.URL.Query().Get("timeout"))))
		if err != nil {
			h.metrics.reviews.WithLabelValues("failed").Inc()
			if r.Context().Err() != nil {
				return // the caller has left
			}
			h.warnings.Warn("failed", "A pod cannot be judged on admission; the API server's failurePolicy decides", "cluster", cluster, "namespace", in.request.Namespace, "err", err)
			http.Error(w, "the stored data about the pod's images could not be read; the server's log has the reason", http.StatusInternalServerError)
			return
		}
		decision = h.decide(answer, cluster, in, found).String()
	}
	answer.UID = in.request.UID
	h.metrics.reviews.WithLabelValues(decision).Inc()
	h.metrics.duration.WithLabelValues(strconv.FormatBool(waited)).Observe(h.Clock.Since(start).Seconds())
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: admissionv1.SchemeGroupVersion.String(), Kind: "AdmissionReview"}, Response: answer,
	}) // the caller may be gone
}

// answerTime returns the time within which to answer an API server that waits for timeout.
func answerTime(timeout string) time.Duration {
	d, err := time.ParseDuration(timeout)
	if err != nil || d <= 0 {
		d = defaultTimeout
	}
	d = min(d, maxTimeout)
	return d - max(d/10, min(d, 200*time.Millisecond)) // sending the answer takes time, too
}

// finding is an image of a pod with its judgement.
type finding struct {
	image string
	admit.Judgement
}

// judge returns the judgements on the images of a pod. It first waits for the import of unknown
// images.
func (h *Handler) judge(ctx context.Context, cluster string, in *review, deadline time.Time) (found []finding, waited bool, err error) {
	p := Pod{Cluster: cluster, Namespace: in.request.Namespace, ServiceAccount: cmp.Or(in.pod.Spec.ServiceAccountName, "default")}
	for _, s := range in.pod.Spec.ImagePullSecrets {
		p.PullSecrets = append(p.PullSecrets, s.Name)
	}
	images := in.added()
	if len(images) > maxImages {
		return []finding{{Judgement: admit.Judgement{Findings: []admit.Finding{{Action: admit.Deny, Reason: fmt.Sprintf("the pod names %d images; at most %d are judged", len(images), maxImages)}}}}}, false, nil
	}
	for _, image := range images {
		f := finding{image: image}
		if f.Judgement, err = h.Verdicts.Judge(ctx, p, parse(image)); err != nil {
			return nil, false, err
		}
		found = append(found, f)
	}
	if isDecided(found) || in.request.DryRun != nil && *in.request.DryRun {
		return found, false, nil
	}
	return found, true, h.await(ctx, p, found, deadline)
}

// isDecided reports whether waiting is over: every image is known, or a known image already refuses
// the pod.
func isDecided(found []finding) bool {
	pending := false
	for _, f := range found {
		if !f.Pending && f.Findings.Worst() == admit.Deny {
			return true
		}
		pending = pending || f.Pending
	}
	return !pending
}

// parse parses an image's name as the kubelet does. It returns the zero Reference for text that is
// not a reference.
func parse(image string) reference.Reference {
	ref, err := reference.Parse(image)
	if err != nil {
		return reference.Reference{}
	}
	return ref
}

// await starts the import of missing images, and returns when the pod is decided or no import is
// left. An image without a place waits until another image of the pod gives up its place; a pod
// without any place is answered at once. If the caller has gone away, its places stay taken until
// the deadline.
func (h *Handler) await(ctx context.Context, p Pod, found []finding, deadline time.Time) error {
	defer limits.Pause(ctx)()
	held := make([]*place, len(found)) // nil for an image without a place
	defer func() {
		all := func() {
			for _, got := range held {
				h.leave(got)
			}
		}
		if ctx.Err() == nil {
			all()
			return
		}
		h.Clock.AfterFunc(deadline.Sub(h.Clock.Now()), all)
	}()
	ticker := h.Clock.NewTicker(pollInterval)
	defer ticker.Stop()
	over := h.Clock.NewTimer(deadline.Sub(h.Clock.Now()))
	defer over.Stop()
	for first := true; ; first = false {
		waits, err := h.turn(ctx, p, found, held, first)
		if err != nil {
			return err
		}
		if isDecided(found) || !waits {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C():
			return nil
		case <-ticker.C():
		}
	}
	return nil
}

// place is a place for waiting. done ends the request for an import.
type place struct {
	*waitSlot
	done func()
}

// leave gives a place back; nil is none.
func (h *Handler) leave(p *place) {
	if p == nil {
		return
	}
	h.places.release(p.waitSlot)
	p.done()
}

// turn judges pending images again, frees places that are no longer needed, and takes places for
// images that need one. waits is false if no image has a place.
func (h *Handler) turn(ctx context.Context, p Pod, found []finding, held []*place, first bool) (waits bool, err error) {
	for i := range found {
		if !first && found[i].Pending {
			j, err := h.Verdicts.Judge(ctx, p, parse(found[i].image))
			if err != nil {
				return false, err
			}
			// an import that was given up before is tried once more for this pod
			j.Pending = j.Pending && !(j.GivenUp && held[i] != nil)
			found[i].Judgement = j
		}
		if held[i] != nil && (!found[i].Pending || held[i].isLost()) {
			h.leave(held[i])
			held[i] = nil
		}
	}
	if isDecided(found) {
		return false, nil
	}
	for i := range found {
		if found[i].Pending && held[i] == nil {
			held[i] = h.take(ctx, p, &found[i])
		}
		waits = waits || held[i] != nil
	}
	return waits, nil
}

// take takes a place for an image, and queues its import if the image is missing. It returns nil if
// no place is free or the import cannot be queued.
func (h *Handler) take(ctx context.Context, p Pod, f *finding) *place {
	slot := h.places.acquire(owner{p.Cluster, p.Namespace})
	if slot == nil {
		f.addReason(tooMany)
		return nil
	}
	got := &place{slot, func() {}}
	if f.Missing == (reference.Reference{}) {
		return got
	}
	done, err := h.Verdicts.Import(ctx, p, f.Missing)
	if err != nil {
		h.warnings.Warn("import", "Queueing an image of a pod for import failed", "image", f.image, "err", err)
		h.leave(got)
		f.addReason("it cannot be queued for import")
		f.Pending = false
		return nil
	}
	got.done = done
	return got
}

const tooMany = "too many admissions are waiting for images: try again"

// addReason adds a reason why the image is unknown.
func (f *finding) addReason(more string) {
	f.Findings = slices.Clone(f.Findings)
	for i := range f.Findings {
		f.Findings[i].Reason += "; " + more
	}
}

// decide writes the findings to the answer, and returns the decision on the pod.
func (h *Handler) decide(answer *admissionv1.AdmissionResponse, cluster string, in *review, found []finding) admit.Action {
	worst := admit.Allow
	var refusals, audited []string
	for _, f := range found {
		worst = max(worst, f.Findings.Worst())
	}
	// known findings come before unknown ones
	for i := range 2 * len(found) {
		f, unknown := found[i%len(found)], i >= len(found)
		for _, by := range f.Findings {
			if by.Action == admit.Allow || by.Unknown != unknown {
				continue
			}
			text := f.text(by)
			audited = append(audited, by.Action.String()+": "+text)
			switch {
			case by.Action == admit.Deny:
				refusals = append(refusals, text)
			case by.Action == admit.Warn && len(answer.Warnings) < maxMessages:
				answer.Warnings = append(answer.Warnings, printable.Line(text, maxWarning))
			}
		}
	}
	if worst != admit.Deny {
		h.record(cluster, in, found)
	}
	if worst == admit.Allow {
		return worst
	}
	answer.AuditAnnotations = map[string]string{"findings": strings.Join(bounded(audited), "; ")}
	h.warnings.Warn(cluster+"/"+in.request.Namespace+"/"+worst.String(), "A pod names images that do not meet a policy", "cluster", cluster, "namespace", in.request.Namespace,
		"pod", in.name(), "user", in.request.UserInfo.Username, "decision", worst.String(), "dryRun", in.request.DryRun != nil && *in.request.DryRun, "findings", answer.AuditAnnotations["findings"])
	if worst == admit.Deny {
		answer.Allowed = false
		answer.Result = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: strings.Join(bounded(refusals), "; ")}
	}
	return worst
}

// record records the images of an admitted pod.
func (h *Handler) record(cluster string, in *review, found []finding) {
	if h.Recorder == nil || in.request.DryRun != nil && *in.request.DryRun {
		return
	}
	for _, f := range found {
		unknown, message := false, ""
		for _, by := range f.Findings {
			if unknown = unknown || by.Unknown; message == "" && (by.Unknown || by.Action == f.Findings.Worst() && by.Action != admit.Allow) {
				message = f.text(by)
			}
		}
		h.Recorder.Admitted(cluster, in.request.Namespace, f.image, f.Findings.Worst(), unknown, message)
	}
}

// text returns a message with the image, the policy and the reason.
func (f finding) text(by admit.Finding) string {
	if f.image == "" {
		return by.Reason
	}
	image := printable.Line(f.image, maxMessage/2)
	if f.Digest != "" && !strings.Contains(f.image, f.Digest) {
		image += " (" + reference.ShortDigest(f.Digest) + ")"
	}
	does := "does not meet"
	if by.Unknown {
		does = "is not known to meet"
	}
	return printable.Line(fmt.Sprintf("image %s %s policy %s: %s", image, does, strconv.Quote(by.Policy), by.Reason), maxMessage)
}

// bounded returns the first messages, and a last one with the number of the others.
func bounded(messages []string) []string {
	if len(messages) <= maxMessages {
		return messages
	}
	return append(messages[:maxMessages:maxMessages], fmt.Sprintf("and %d more", len(messages)-maxMessages))
}
