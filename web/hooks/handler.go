package hooks

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gorilla/mux"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/warn"
	"github.com/tidewaiter/tidewaiter/web/limits"
)

// ReceiverAnnotation is the annotation in the audit log with the receiver of a delivery. "" stands
// for receivers that do not exist.
const ReceiverAnnotation = "tidewaiter.dev/receiver"

// bodies are the bodies of one kind that a receiver holds in memory.
type bodies struct {
	*limits.Bodies
	most int // bytes of one
}

func newBodies(most int) *bodies {
	return &bodies{limits.NewBodies(maxBodies, max(maxHeldBytes, 2*(most+1))), most}
}

// maxEvents bounds the events of a delivery.
const maxEvents = 1000

// Bounds of bodies.
const (
	maxBodyBytes = 1 << 20 // unless vendor.maxBody says otherwise
	// maxBodies is how many bodies of one kind a receiver holds at once. maxHeldBytes
	// is how many bytes they may take, or two of the largest if that is more.
	maxBodies    = 1024
	maxHeldBytes = 32 << 20
	// bodyTimeout is how long a sender may take to send its body.
	bodyTimeout = 10 * time.Second
)

// Options of New.
type Options struct {
	// Receivers are the endpoints; names must differ.
	Receivers []Receiver
	// Dir is the folder for relative file names in Receivers, usually the configuration file's.
	Dir string
	// Spool takes the events. Required.
	Spool Spool
	// Registerer gets the Handler's metrics; may be nil.
	Registerer meter.Registerer
	// Clock is the clock; nil is the real one.
	Clock clock.PassiveClock
	// Logger logs each delivery. Default slog.Default().
	Logger *slog.Logger
}

// Handler serves the webhooks of a set of receivers. Its paths start with /hooks/,
// wherever the Handler is mounted.
type Handler struct {
	router    *mux.Router
	receivers atomic.Pointer[map[string]*receiver]
	dir       string    // of relative file names
	absent    *receiver // stands for receivers that do not exist
	spool     Spool
	metrics   *hookMetrics
	timeout   time.Duration // bodyTimeout, except in tests
	now       func() time.Time
	log       *slog.Logger

	unauthorized, refused warn.Limiter
}

// New validates the receivers and reads their files.
func New(o Options) (*Handler, error) {
	if o.Spool == nil {
		return nil, errors.New("webhooks need a spool")
	}
	o.Clock = cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{})
	o.Logger = cmp.Or(o.Logger, slog.Default())
	h := &Handler{
		dir:     o.Dir,
		absent:  newAbsent(o.Clock.Now),
		spool:   o.Spool,
		metrics: newMetrics(o.Registerer),
		timeout: bodyTimeout,
		now:     o.Clock.Now,
		log:     o.Logger,

		unauthorized: warn.Limiter{Logger: o.Logger},
		refused:      warn.Limiter{Logger: o.Logger},
	}
	h.receivers.Store(&map[string]*receiver{})
	h.router = mux.NewRouter()
	h.router.HandleFunc("/hooks/{name}", h.deliver).Methods(http.MethodPost)
	h.router.HandleFunc("/hooks/{name}/{token}", h.deliver).Methods(http.MethodPost)
	return h, h.Replace(o.Receivers)
}

// Replace replaces the receivers, and reads their files. An unchanged receiver keeps its Heard.
// After an error, the former receivers stay. Replace must not be called twice at the same time.
func (h *Handler) Replace(receivers []Receiver) error {
	before, now := *h.receivers.Load(), map[string]*receiver{}
	var errs []error
	for _, r := range receivers {
		if now[r.Name] != nil {
			errs = append(errs, fmt.Errorf("receiver %q is declared twice", r.Name))
		}
		if rc := before[r.Name]; rc != nil && reflect.DeepEqual(rc.declared, r) {
			now[r.Name] = rc
			continue
		}
		rc, err := newReceiver(r, h.dir, h.now, h.absent.unknown)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		now[r.Name] = rc
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	h.receivers.Store(&now)
	return nil
}

// Receivers returns the receivers as they were declared, by name.
func (h *Handler) Receivers() []Receiver {
	receivers := *h.receivers.Load()
	all := make([]Receiver, 0, len(receivers))
	for _, rc := range receivers {
		all = append(all, rc.declared)
	}
	slices.SortFunc(all, func(a, b Receiver) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// HearsAll reports whether a receiver gets the pushes to all repositories of a host, which is in
// its canonical form.
func (h *Handler) HearsAll(host string) bool {
	for _, rc := range *h.receivers.Load() {
		if len(rc.Repositories) == 0 && rc.allows(host) {
			return true
		}
	}
	return false
}

// ServeHTTP answers one delivery.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.router.ServeHTTP(w, r) }

func (h *Handler) deliver(w http.ResponseWriter, r *http.Request) {
	start := h.now()
	vars := mux.Vars(r)
	rc := (*h.receivers.Load())[vars["name"]]
	if rc == nil {
		rc = h.absent
	}
	audit.AddAuditAnnotation(r.Context(), ReceiverAnnotation, rc.Name)
	name, out := rc.Name, h.serve(w, r, rc, vars["token"])
	if out.status == http.StatusUnauthorized && r.ProtoMajor == 1 {
		// Otherwise the server would wait for the body before the answer.
		w.Header().Set("Connection", "close")
	}
	reply(w, out.status, out)

	h.metrics.requests.WithLabelValues(name, strconv.Itoa(out.status)).Inc()
	h.metrics.duration.WithLabelValues(name).Observe(h.now().Sub(start).Seconds())
	h.warn(r, name, out)
	rc.heard.note(out, h.now())
	// This is the access log. It leaves out the rest of the request's path, which may
	// be a secret.
	h.log.InfoContext(r.Context(), "Webhook", "receiver", name, "status", out.status,
		"queued", out.Queued, "refused", out.Refused, "why", out.Why, "remote", r.RemoteAddr, "duration", h.now().Sub(start), "err", out.err)
}

// warn logs a refused delivery if its sender, or its registry, is at fault.
func (h *Handler) warn(r *http.Request, receiver string, out outcome) {
	address := limits.Address(r.RemoteAddr)
	switch {
	case out.status == http.StatusUnauthorized:
		// The rest of the path may be a secret, and so may the text in the place of a
		// receiver's name.
		h.unauthorized.Warn(address, "a webhook without the receiver's secret was refused", "address", r.RemoteAddr, "path", "/hooks/"+cmp.Or(receiver, "(unknown)"), "err", out.err)
	case out.Refused[reasonHost] > 0:
		h.refused.Warn(receiver+" "+reasonHost, "a webhook reports a registry that its receiver does not cover", "receiver", receiver, "host", out.host, "address", r.RemoteAddr, "events", out.Refused[reasonHost],
			"do", "if the registry is yours, name its host in the receiver's hosts")
	case out.mistake != "":
		h.refused.Warn(receiver, "a webhook contains nothing that its receiver understands", "receiver", receiver, "address", r.RemoteAddr, "why", out.mistake)
	}
}

// outcome is the result of a delivery; its exported fields are the answer's body.
type outcome struct {
	status  int
	err     error          // for the log
	host    string         // a host that was refused, for the log
	mistake string         // what is wrong with a payload, for the log
	Message string         `json:"message,omitempty"`
	Queued  int            `json:"queued"`
	Refused map[string]int `json:"refused,omitempty"` // by reason
	// Why is a sentence about why an event was refused. If there are several, one about a host that is
	// not covered is preferred.
	Why string `json:"why,omitempty"`
}

// delivery is the part of a request that a decoder sees.
type delivery struct {
	header http.Header
	body   []byte
	hosts  []string // of the receiver, canonical
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, rc *receiver, token string) outcome {
	held := rc.known
	var signatures [][]byte
	unproved := !rc.knows(r, token)
	if unproved {
		var claimed bool
		if signatures, claimed = rc.signatures(r, token); !claimed {
			return failed(errUnauthorized)
		}
		held = rc.unknown
	}
	body, err := held.Read(w, r, limits.Address(r.RemoteAddr), held.most, h.timeout, nil)
	defer body.Release()
	if err != nil {
		if unproved && !errors.Is(err, limits.ErrBusy) {
			// for the log; the answer does not show the cause
			err = fmt.Errorf("%w: %w", errUnauthorized, err)
		}
		return failed(err)
	}
	b := body.Bytes()
	if unproved {
		signer := rc
		if len(signatures) == 0 {
			signer = h.absent // checking takes as long, and no signature can be right
		}
		if !signer.signed(b, signatures) {
			return failed(errUnauthorized)
		}
	}
	if !json.Valid(b) {
		return failed(errNotJSON)
	}
	h.metrics.received.WithLabelValues(rc.Name).Inc()

	out := outcome{status: http.StatusOK, Refused: map[string]int{}}
	events, err := rc.vendor.decode(&delivery{header: r.Header, body: b, hosts: rc.hosts})
	if err != nil {
		out.Refused[reasonMalformed]++
		out.mistake = mistake(rc, r.Header, b, err)
	} else if !slices.ContainsFunc(events, ofRepository) {
		out.mistake = mistake(rc, r.Header, b, nil)
	}
	if out.mistake != "" {
		out.Why = printable.Line(out.mistake, maxWhy)
	}
	if len(events) > maxEvents {
		return failed(errTooManyEvents)
	}
	if len(events) == 0 && err == nil {
		events = []push.Event{{}} // the code below refuses an event without an action
	}
	checked := make([]push.Event, 0, len(events))
	for _, e := range events {
		event, reason := rc.check(e)
		if reason != "" {
			out.Refused[reason]++
			if out.Why == "" || reason == reasonHost && out.mistake == "" {
				out.Why = rc.explain(reason, e)
			}
			if reason == reasonHost {
				out.host = e.Host
			}
			continue
		}
		checked = append(checked, event)
	}
	for reason, n := range out.Refused {
		h.metrics.refused.WithLabelValues(rc.Name, reason).Add(float64(n))
	}
	if len(checked) == 0 {
		out.Message = "nothing of interest to a receiver of type " + rc.Type
		if out.mistake != "" {
			out.Message = "not understood by a receiver of type " + rc.Type
		}
		return out
	}
	if err := h.spool.Enqueue(r.Context(), checked); err != nil {
		out.status, out.Message, out.err = http.StatusServiceUnavailable, "the queue cannot be written; send it again", err
		return out
	}
	for _, e := range checked {
		h.metrics.events.WithLabelValues(rc.Name, string(e.Action)).Inc()
	}
	out.status, out.Queued = http.StatusAccepted, len(checked)
	return out
}

// mistake describes the type of a payload that a receiver cannot decode, or in which it finds no
// events; "" if nothing is wrong.
func mistake(rc *receiver, header http.Header, body []byte, err error) string {
	for _, name := range append([]string{"distribution"}, Types()...) {
		// other types are variants of it
		v := vendors[name]
		if v.decode == nil || name == rc.Type {
			continue
		}
		// A payload with a malformed event may still have the right type, and any JSON object can be read
		// as an event without a repository.
		events, _ := v.decode(&delivery{header: header, body: body, hosts: rc.hosts})
		if slices.ContainsFunc(events, ofRepository) {
			return fmt.Sprintf("this is a payload of type %s, but the receiver has type %s: change the type of one of them", name, rc.Type)
		}
	}
	if err == nil {
		return "" // it does not report pushes
	}
	return fmt.Sprintf("this is not a payload of type %s: %v", rc.Type, err)
}

func ofRepository(e push.Event) bool { return e.Repository != "" }

var (
	errNotJSON       = errors.New("the body is not JSON; set the content type of the hook to application/json")
	errTooManyEvents = fmt.Errorf("the body holds over %d events; send fewer at a time", maxEvents)
)

// failed converts an error to an answer. It is for errors before the spool is called.
func failed(err error) outcome {
	out := outcome{err: err, Message: err.Error()}
	switch {
	case errors.Is(err, errUnauthorized):
		out.status, out.Message = http.StatusUnauthorized, errUnauthorized.Error()
	case errors.Is(err, limits.ErrTooLarge), errors.Is(err, errTooManyEvents):
		out.status = http.StatusRequestEntityTooLarge
	case errors.Is(err, limits.ErrSlow):
		out.status = http.StatusRequestTimeout
	case errors.Is(err, limits.ErrBusy):
		out.status = http.StatusServiceUnavailable
	default: // not JSON, or incomplete
		out.status = http.StatusBadRequest
	}
	return out
}

func reply(w http.ResponseWriter, status int, out outcome) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	switch status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="tidewaiter hooks"`)
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(out) // the events are stored even if the sender has disconnected
}
