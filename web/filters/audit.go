// Package filters has the filters around the handlers of Kubernetes' API server: the audit, write
// deadlines, bounds of bodies and labels, and authentication that logs and limits failures.
package filters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
)

const (
	// auditFileMiB and auditFiles bound the default log to 19 × 10 MiB = 199.2 MB. That counts its
	// current file, its older files, and the one more that exists for a moment.
	auditFileMiB = 10
	auditFiles   = 17

	// maxAuditText bounds, in bytes, each text of an event that callers choose. maxAuditTexts
	// bounds the entries of a list of such texts. A request's line and headers may have 1 MiB.
	maxAuditText  = 1024
	maxAuditTexts = 32

	// refusalBurst and refusalsPerSecond bound the refusals in the default log, separately for
	// strangers and for known callers. So a caller cannot push records of changes out of the log by
	// being refused often.
	refusalBurst      = 1000
	refusalsPerSecond = 1

	// cutOffAnnotation marks a request whose answer began and was cut off: the caller left, or the
	// deadline passed. The event has the code with which the answer began.
	cutOffAnnotation = "tidewaiter.dev/answer-cut-off"

	// leftOutAnnotation of a refusal is the number of refusals before it that were not logged.
	leftOutAnnotation = "tidewaiter.dev/refusals-left-out"
)

// defaultAuditPolicy is in force without a policy file. A policy cannot select by outcome, so
// ownRecords leaves out reads that were not refused.
const defaultAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// NewAuditOptions returns Kubernetes' options of auditing. By default the log at path records who
// changed what and who was refused, at the level Metadata. Together with its older files it takes
// at most 200 MB. A policy file is followed as in kube-apiserver.
func NewAuditOptions(path string) *options.AuditOptions {
	o := options.NewAuditOptions()
	o.LogOptions.Path = path
	o.LogOptions.MaxSize, o.LogOptions.MaxBackups = auditFileMiB, auditFiles
	return o
}

// ApplyAudit makes cfg write the audit log that o describes.
func ApplyAudit(cfg *genericapiserver.Config, o *options.AuditOptions) error {
	if o == nil {
		return nil
	}
	b := &auditBackend{}
	if o.PolicyFile == "" {
		b.own = newOwnRecords(clock.RealClock{})
		path, remove, err := defaultPolicyFile("/dev/fd")
		if err != nil {
			return fmt.Errorf("preparing the audit: %w", err)
		}
		defer remove()
		withPolicy := *o
		withPolicy.PolicyFile = path
		o = &withPolicy
	}
	err := o.ApplyTo(cfg)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		slog.Warn("the disk is full: the audit log cannot be opened; requests are not audited until the next start", "path", o.LogOptions.Path, "err", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("preparing the audit: %w", err)
	}
	if cfg.AuditBackend != nil {
		b.Backend = cfg.AuditBackend
		cfg.AuditBackend = b
	}
	return nil
}

// defaultPolicyFile makes a file with the default policy, because the options read a policy only
// from a file. The file can be read once. It is a pipe, which needs no disk, if open files have
// paths below fds. Otherwise, as in a chroot, it is a temporary file.
func defaultPolicyFile(fds string) (path string, remove func(), err error) {
	if _, err := os.Stat(fds); err != nil {
		file, err := os.CreateTemp("", "tidewaiter-audit-policy-*")
		if err != nil {
			return "", nil, err
		}
		remove = func() { _ = os.Remove(file.Name()) }
		_, err = file.WriteString(defaultAuditPolicy)
		if err = errors.Join(err, file.Close()); err != nil {
			remove()
		}
		return file.Name(), remove, err
	}
	policy, write, err := os.Pipe()
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = policy.Close() }
	_, err = write.WriteString(defaultAuditPolicy)
	if err = errors.Join(err, write.Close()); err != nil {
		remove()
	}
	return fmt.Sprintf("%s/%d", fds, policy.Fd()), remove, err
}

// auditBackend prepares events for the log. It bounds the texts that callers choose, and removes
// possible secrets.
type auditBackend struct {
	audit.Backend
	own *ownRecords // nil where a policy file chooses the events
}

// ProcessEvents implements audit.Sink.
func (b *auditBackend) ProcessEvents(events ...*auditinternal.Event) bool {
	kept := events
	if b.own != nil {
		kept = events[:0:0]
		for _, e := range events {
			if b.own.keep(e) {
				kept = append(kept, e)
			}
		}
	}
	if len(kept) == 0 {
		return true
	}
	for _, e := range kept {
		boundEvent(e)
		if hasToken(e.ObjectRef) {
			e.RequestObject, e.ResponseObject = nil, nil
		}
	}
	return b.Backend.ProcessEvents(kept...)
}

// hasToken reports whether a request or an answer about o holds a token. With a policy file, events
// may contain objects.
func hasToken(o *auditinternal.ObjectReference) bool {
	return o != nil && (o.Resource == "tokenreviews" || o.Resource == "serviceaccounts" && o.Subresource == "token")
}

// ownRecords chooses the events of the default log.
type ownRecords struct {
	strangers, known refusals
}

// refusals limits the rate of logged refusals, and counts those that it leaves out.
type refusals struct {
	rate    flowcontrol.PassiveRateLimiter
	leftOut atomic.Int64
}

func newOwnRecords(c clock.PassiveClock) *ownRecords {
	o := &ownRecords{}
	for _, r := range []*refusals{&o.strangers, &o.known} {
		r.rate = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(refusalsPerSecond, refusalBurst, c)
	}
	return o
}

// keep reports whether e is logged: a change once it is done, or a refusal.
func (o *ownRecords) keep(e *auditinternal.Event) bool {
	code := int32(0)
	if e.ResponseStatus != nil {
		code = e.ResponseStatus.Code
	}
	stranger := code == http.StatusUnauthorized || code == http.StatusTooManyRequests && e.User.Username == ""
	// A request that fails authentication has an event of this stage only.
	if e.Stage == auditinternal.StageResponseStarted && !stranger {
		return false
	}
	// they change nothing, and the audit log of the calling cluster has the answers
	reads := e.ObjectRef != nil && e.ObjectRef.Resource == "admissionreviews"
	switch e.Verb {
	case "get", "list", "watch", "head", "options":
		reads = true
	}
	switch {
	case stranger, e.User.Username == "" && code >= http.StatusBadRequest && !reads:
		return o.strangers.keep(e)
	case code == http.StatusForbidden, code == http.StatusTooManyRequests:
		return o.known.keep(e)
	case reads:
		return e.Stage == auditinternal.StagePanic
	}
	return true
}

func (r *refusals) keep(e *auditinternal.Event) bool {
	if !r.rate.TryAccept() {
		r.leftOut.Add(1)
		return false
	}
	if n := r.leftOut.Swap(0); n > 0 {
		e.Annotations = maps.Clone(e.Annotations)
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		e.Annotations[leftOutAnnotation] = strconv.FormatInt(n, 10)
	}
	return true
}

// boundEvent cuts the texts that callers choose.
func boundEvent(e *auditinternal.Event) {
	e.RequestURI = boundText(withoutUnknownValues(e.RequestURI))
	e.AuditID = boundText(e.AuditID)
	e.Verb = boundText(e.Verb)
	if len(e.SourceIPs) > maxAuditTexts {
		// the last one is the address of the connection
		e.SourceIPs = e.SourceIPs[len(e.SourceIPs)-maxAuditTexts:]
	}
	if o := e.ObjectRef; o != nil {
		for _, s := range []*string{&o.Namespace, &o.Name, &o.Resource, &o.Subresource, &o.APIGroup, &o.APIVersion} {
			*s = boundText(*s)
		}
	}
	if s := e.ResponseStatus; s != nil {
		s.Message = boundText(s.Message)
		if d := s.Details; d != nil && (len(d.Name) > maxAuditText || len(d.Causes) > maxAuditTexts) {
			s.Details = &metav1.StatusDetails{Group: d.Group, Kind: d.Kind, Name: boundText(d.Name)}
		}
	}
	if u := e.ImpersonatedUser; u != nil {
		u.Username, u.UID = boundText(u.Username), boundText(u.UID)
		u.Groups = boundTexts(u.Groups)
		if len(u.Extra) > maxAuditTexts {
			u.Extra = nil
		}
		for key, values := range u.Extra {
			if len(key) > maxAuditText {
				delete(u.Extra, key)
				continue
			}
			u.Extra[key] = boundTexts(values)
		}
	}
	for key, value := range e.Annotations {
		if len(value) > maxAuditText {
			e.Annotations[key] = boundText(value)
		}
	}
}

func boundText[T ~string](s T) T {
	if len(s) <= maxAuditText {
		return s
	}
	return T(strings.ToValidUTF8(string(s[:maxAuditText]), "")) + "…"
}

func boundTexts[T ~[]string](all T) T {
	all = all[:min(len(all), maxAuditTexts)]
	for i, s := range all {
		if len(s) > maxAuditText {
			bounded := append(T(nil), all...)
			for j := range bounded[i:] {
				bounded[i+j] = boundText(bounded[i+j])
			}
			return bounded
		}
	}
	return all
}

// auditedParameters are the query parameters of Kubernetes' requests and ours. The value of any
// other may be a secret, for instance a token that a client sends where none belongs.
var auditedParameters = sets.New("allowWatchBookmarks", "container", "continue", "dryRun", "exclude", "fieldManager",
	"fieldSelector", "fieldValidation", "follow", "force", "gracePeriodSeconds", "labelSelector", "limit", "limitBytes",
	"orphanDependents", "pretty", "previous", "propagationPolicy", "resourceVersion", "resourceVersionMatch", "seconds",
	"sendInitialEvents", "sinceSeconds", "sinceTime", "stream", "tailLines", "timeout", "timeoutSeconds", "timestamps",
	"verbose", "watch")

// withoutUnknownValues returns uri without the values of unknown parameters.
func withoutUnknownValues(uri string) string {
	path, query, found := strings.Cut(uri, "?")
	if !found {
		return uri
	}
	parts := strings.FieldsFunc(query, func(r rune) bool { return r == '&' || r == ';' })
	for i, part := range parts {
		name, _, _ := strings.Cut(part, "=")
		if auditedParameters.Has(name) {
			continue
		}
		parts[i] = "leftout"
	}
	return path + "?" + strings.Join(parts, "&")
}

// WithoutAuditedObjects keeps the API server's handlers from encoding objects for an audit that
// keeps none. At the level Metadata they encode each object that they get, take its name, and drop
// the rest. That costs more than the rest of the audit. [AuditNames] adds the name without encoding
// the object.
func WithoutAuditedObjects(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		if audit.AuditContextFrom(ctx).GetEventLevel() == auditinternal.LevelMetadata {
			switch info, _ := request.RequestInfoFrom(ctx); info.Verb {
			case "create", "update":
				r = r.WithContext(unaudited{ctx})
			}
		}
		next.ServeHTTP(w, r)
	})
}

// unaudited is a context that hides its audit context.
type unaudited struct{ context.Context }

// auditedKey is the key for the context below an unaudited one.
type auditedKey struct{}

// Value implements context.Context.
func (c unaudited) Value(key any) any {
	if key == (auditedKey{}) {
		return c.Context
	}
	v := c.Context.Value(key)
	if _, is := v.(*audit.AuditContext); is {
		return nil
	}
	return v
}

// AuditNames adds the names of written objects to the audit: the name in the request's object or,
// if it has none, the generated name.
type AuditNames struct{}

var (
	_ admission.MutationInterface   = AuditNames{}
	_ admission.ValidationInterface = AuditNames{}
)

// Handles implements admission.Interface.
func (AuditNames) Handles(operation admission.Operation) bool {
	return operation == admission.Create || operation == admission.Update
}

// Admit implements admission.MutationInterface.
func (n AuditNames) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return n.Validate(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (AuditNames) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	audited, is := ctx.Value(auditedKey{}).(context.Context)
	if !is {
		return nil
	}
	if object, err := meta.Accessor(a.GetObject()); err == nil && object.GetName() != "" {
		bare := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
		}}
		audit.LogRequestObject(audited, bare, metav1.SchemeGroupVersion, a.GetResource(), a.GetSubresource(), bareObjects)
	}
	if several, ok := a.GetObject().(interface{ Audited() []string }); ok {
		audit.AddAuditAnnotation(audited, AuditObjects, strings.Join(several.Audited(), " "))
	}
	return nil
}

// AuditObjects is the annotation of an audit event with the names of the objects in a request about
// several objects.
const AuditObjects = "tidewaiter.dev/objects"

// bareObjects encodes metadata without an object.
var bareObjects = func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	return serializer.NewCodecFactory(scheme).WithoutConversion()
}()

// AuditCutOff makes the audit record a cut-off answer with the code with which it began. The API
// server's handlers panic to cut off an answer, for example when the caller leaves during a write.
// The audit would record each panic as a fault of the server, 500, although the object may be
// stored. So AuditCutOff stops the panic, and [CutOff] panics again outside of the audit.
func AuditCutOff(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			fault := recover()
			if fault == nil {
				return
			}
			if fault == http.ErrAbortHandler && audit.AuditContextFrom(r.Context()).GetEventResponseStatus() != nil {
				audit.AddAuditAnnotation(r.Context(), cutOffAnnotation, "true")
			}
			if !isCutOff(r) {
				panic(fault)
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// CutOff cuts off the answers whose panics AuditCutOff has stopped.
func CutOff(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if isCutOff(r) {
			panic(http.ErrAbortHandler)
		}
	})
}

func isCutOff(r *http.Request) bool {
	_, is := audit.AuditContextFrom(r.Context()).GetEventAnnotation(cutOffAnnotation)
	return is
}

// WithHookAudit audits deliveries like other requests, but without their paths, because any part of
// a path may be a secret. hooks records the receiver in an annotation.
func WithHookAudit(hooks http.Handler, c *genericapiserver.Config) http.Handler {
	type pathKey struct{}
	h := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		withPath := *r
		withPath.URL = r.Context().Value(pathKey{}).(*url.URL)
		hooks.ServeHTTP(w, &withPath)
	}))
	h = CutOff(filters.WithAudit(AuditCutOff(h), c.AuditBackend, c.AuditPolicyRuleEvaluator, nil))
	h = filters.WithRequestReceivedTimestamp(h)
	h = filters.WithAuditInit(h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := request.WithRequestInfo(r.Context(), &request.RequestInfo{Path: hooksPath, Verb: strings.ToLower(r.Method)})
		withoutPath := r.WithContext(context.WithValue(ctx, pathKey{}, r.URL))
		withoutPath.URL = &url.URL{Path: hooksPath}
		h.ServeHTTP(w, withoutPath)
	})
}

// hooksPath replaces the path of a delivery in the audit.
const hooksPath = "/hooks/"
