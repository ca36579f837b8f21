package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// jobs is the queue of pushes, as far as admission uses it.
type jobs interface {
	Enqueue(ctx context.Context, events []push.Event) error
	Find(ctx context.Context, receiver, key string) (*push.Job, error)
	Retry(ctx context.Context, id int64) error
}

// Admitter answers admission from the stored Images of pods.
type Admitter struct {
	Answerer *answers.Answerer
	Policies func(context.Context) (*policy.Set, error) // the policies in force
	Clock    clock.PassiveClock
	Queue    jobs
	clusters *clusters.Clusters

	mu sync.Mutex
	// waiting are the pods that wait for an import, by the image: the places of admission bound
	// them.
	waiting map[awaited][]*admission.Pod
	lent    *db.DB // where pods of other servers wait, too; nil for a single server
}

// maxAwaited is how often an import may fail while a pod waits for it. The queue keeps trying after
// that.
const maxAwaited = 3

// awaited is an image that pods of a cluster wait for.
type awaited struct {
	cluster string
	image   reference.Reference
}

func (s *Server) newAdmission() *admission.Handler {
	o := admission.Options{
		Verdicts: s.admitter, Cluster: usage.Local, RegisterMetrics: registerMetrics,
		Known: func(cluster string) bool {
			return slices.ContainsFunc(s.Config.Clusters, func(c config.Cluster) bool { return c.Name == cluster })
		},
		// A quarter of the changes that can be in flight: one caller may have half of them.
		MaxWaiting: max(1, cmp.Or(s.Options.MaxWrites, 200)/4),
	}
	if s.cluster != nil {
		o.Cluster, o.Exempt = s.Options.Cluster.called(s.Config), []string{s.cluster.Namespace}
	}
	return admission.New(o)
}

// policiesInForce fails before all policies are read.
func (v *verification) policiesInForce(ctx context.Context) (*policy.Set, error) {
	select {
	case <-v.Keeper.Ready():
		if err := v.Keeper.Current(ctx); err != nil {
			return nil, err
		}
		return v.live.Set(), nil
	default:
		return nil, cmp.Or(v.Keeper.Loaded(), errors.New("the policies are still being read"))
	}
}

// Judge is part of [admission.Verdicts].
func (a *Admitter) Judge(ctx context.Context, pod admission.Pod, image reference.Reference) (admission.Judgement, error) {
	set, err := a.Policies(ctx)
	if err != nil {
		return admission.Judgement{}, err
	}
	if image == (reference.Reference{}) {
		return admission.Judgement{Findings: unknownTo(policiesIn(set, pod.Namespace), "the reference cannot be parsed, so it is unknown which policies cover it")}, nil
	}
	image = image.Pulled()
	pull, err := a.Answerer.Pull(ctx, image)
	if err != nil {
		return admission.Judgement{}, fmt.Errorf("looking up %s: %w", image, err)
	}
	by, asked := signatures.PoliciesFor(image, pod.Namespace, set), image
	if len(by) == 0 && pull.Reference != image {
		// a mirror's name, which no policy covers, does not slip past one
		by, asked = signatures.PoliciesFor(pull.Reference, pod.Namespace, set), pull.Reference
	}
	if len(by) == 0 {
		return admission.Judgement{Digest: pull.Digest}, nil
	}
	if pull.Image == nil || pull.Reference != asked {
		return a.missing(ctx, pod, image, pull.Digest, by, pull.Why)
	}
	now := a.Clock.Now()
	verdict := signatures.Ask(pull.Image, asked, pod.Namespace, set, now, pull.Indexes)
	j := admission.Judgement{Digest: pull.Digest}
	stale, why := signatures.TooOld(by, asked, pull.Checked, now)
	if len(stale) > 0 { // the registry is asked first
		if j, err = a.missing(ctx, pod, image, pull.Digest, stale, why); err != nil {
			return admission.Judgement{}, err
		}
	}
	fresh := slices.DeleteFunc(slices.Clone(by), func(p *policy.Policy) bool { return slices.Contains(stale, p) })
	found := findings(fresh, verdict, asked, now)
	for i := range found {
		if asked.Digest == "" {
			found[i].Reason += "; " + signatures.TagAge(asked, pull.Checked, now)
		}
	}
	j.Findings = append(j.Findings, found...)
	return j, nil
}

// policiesIn are the policies of the cluster and of a namespace.
func policiesIn(set *policy.Set, namespace string) []*policy.Policy {
	return slices.DeleteFunc(slices.Clone(set.Policies()), func(p *policy.Policy) bool { return p.Namespace != "" && p.Namespace != namespace })
}

// findings returns a finding for each policy that is not met by a verdict.
func findings(by []*policy.Policy, v annotation.Verdict, image reference.Reference, now time.Time) []admission.Finding {
	if verdicts.IsVerified(v.Verified) {
		return nil
	}
	if v.Verified == verdicts.Excepted {
		return excepted(by, v, now)
	}
	if len(v.Unmet) > 0 {
		by = slices.DeleteFunc(slices.Clone(by), func(p *policy.Policy) bool { return !slices.Contains(v.Unmet, p.ID()) })
	}
	reason := v.Verified + ": " + cmp.Or(v.Message, "it has no signature in "+image.Bare().String())
	if v.Verified == verdicts.VerifiedUnknown && !signatures.Forced(v) {
		return unknownTo(by, reason)
	}
	found := make([]admission.Finding, 0, len(by))
	for _, p := range by {
		found = append(found, admission.Finding{Policy: p.ID(), Action: modeOf(p), Reason: reason})
	}
	return found
}

// excepted returns findings about an image that exceptions of the policies let through: the audit
// log has them, and whoever creates the pod is warned before the exception ends.
func excepted(by []*policy.Policy, v annotation.Verdict, now time.Time) (found []admission.Finding) {
	action := admission.Audit
	if until, err := time.Parse(time.RFC3339, v.Until); err != nil || until.Sub(now) < policy.ExceptionEndsSoon {
		action = admission.Warn
	}
	for _, p := range by {
		if len(v.Unmet) == 0 || slices.Contains(v.Unmet, p.ID()) {
			found = append(found, admission.Finding{Policy: p.ID(), Action: min(action, modeOf(p)), Reason: v.Message})
		}
	}
	return found
}

// unknownTo returns a finding for each policy that it is unknown whether it is met.
func unknownTo(by []*policy.Policy, reason string) []admission.Finding {
	found := make([]admission.Finding, 0, len(by))
	for _, p := range by {
		action := admission.Deny
		switch p.Admission.Unknown {
		case policy.UnknownAllow:
			action = admission.Allow
		case policy.UnknownWarn:
			action = admission.Warn
		}
		found = append(found, admission.Finding{Policy: p.ID(), Action: min(action, modeOf(p)), Unknown: true, Reason: reason})
	}
	return found
}

func modeOf(p *policy.Policy) admission.Action {
	switch p.Admission.Mode {
	case policy.ModeWarn:
		return admission.Warn
	case policy.ModeAudit:
		return admission.Audit
	default:
		return admission.Deny
	}
}

// missing is the judgement about an image that must be imported first.
func (a *Admitter) missing(ctx context.Context, pod admission.Pod, image reference.Reference, digest string, by []*policy.Policy, why string) (admission.Judgement, error) {
	job, err := a.Queue.Find(ctx, push.OfCluster(pod.Cluster), image.String())
	if err != nil {
		return admission.Judgement{}, fmt.Errorf("reading the queue: %w", err)
	}
	if job != nil && job.Error != "" {
		why = strings.TrimPrefix(why+"; it could not be imported: "+job.Error, "; ")
	}
	return admission.Judgement{
		Digest: digest, Findings: unknownTo(by, "Unknown: "+cmp.Or(why, "it has not been imported yet")),
		Pending: true, Missing: true,
		GivenUp: job != nil && (job.State == push.Dead || job.State == push.Waiting && job.Attempts >= maxAwaited),
	}, nil
}

// Import is part of [admission.Verdicts]. A job that waits or was given up becomes due at once.
func (a *Admitter) Import(ctx context.Context, pod admission.Pod, image reference.Reference) (done func(), err error) {
	image = image.Pulled()
	if done, err = a.wait(ctx, &pod, awaited{pod.Cluster, image}); err != nil {
		return nil, err
	}
	e := push.Event{Receiver: push.OfCluster(pod.Cluster), Action: push.Runs, Host: image.Host, Repository: image.Repository, Tag: image.Tag, Digest: image.Digest}
	if err := hasten(ctx, a.Queue, e); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// hasten puts an event into the queue. If a job about it waits there, or was given up, that becomes
// due at once.
func hasten(ctx context.Context, queue jobs, e push.Event) error {
	job, err := queue.Find(ctx, e.Receiver, e.Key())
	switch {
	case err != nil:
		return err
	case job == nil:
		return queue.Enqueue(ctx, []push.Event{e})
	case job.State == push.Leased:
		return nil
	}
	if err := queue.Retry(ctx, job.ID); !errors.Is(err, push.ErrNoSuchJob) {
		return err
	}
	return nil // a worker is doing it, or has done it
}

// wait lends the credentials of a pod to an import until done is called. If the server that leads
// does the import, it is told whose they are.
func (a *Admitter) wait(ctx context.Context, pod *admission.Pod, image awaited) (done func(), err error) {
	if a.lent != nil {
		return a.lend(ctx, pod, image)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting[image] = append(a.waiting[image], pod)
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(a.waiting[image]), func(p *admission.Pod) bool { return p == pod })
		if a.waiting[image] = left; len(left) == 0 {
			delete(a.waiting, image)
		}
	}, nil
}

const (
	// lentFor is longer than any admission takes.
	lentFor = 2 * time.Minute
	// maxLent is how many pods that wait for an image are looked at.
	maxLent = 100
)

// lentPrefix is below which the pods of all servers are that wait for an image.
func lentPrefix(image awaited) string {
	sum := sha256.Sum256([]byte(image.cluster + "\x00" + image.image.String()))
	return fmt.Sprintf("/tidewaiter.dev/awaited/%x/", sum[:16])
}

// lend is wait with all servers. The stored job names the pod's secrets and has none of their
// contents.
func (a *Admitter) lend(ctx context.Context, pod *admission.Pod, image awaited) (done func(), err error) {
	value, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	key := lentPrefix(image) + string(uuid.NewUUID())
	rev, err := a.lent.Put(ctx, key, 0, value, db.PutOptions{TTL: lentFor})
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), etcdPatience)
		defer cancel()
		_, _ = a.lent.Delete(ctx, key, rev) // otherwise it expires
	}, err
}

// Keychains returns the credentials of the pods that use an image, and of those that wait for it on
// admission, which no list has yet.
func (a *Admitter) Keychains(ctx context.Context, cluster string, image reference.Reference) (all []authn.Keychain, unread, err error) {
	waiting, err := a.awaiting(ctx, awaited{cluster, image.Pulled()})
	if err != nil {
		return nil, nil, err
	}
	var pullers []clusters.Puller
	for _, p := range waiting {
		pullers = append(pullers, clusters.Puller{Namespace: p.Namespace, ServiceAccount: p.ServiceAccount, Secrets: p.PullSecrets})
	}
	return a.clusters.Keychains(ctx, cluster, image, pullers...)
}

// awaiting returns the pods that wait for an image on admission.
func (a *Admitter) awaiting(ctx context.Context, image awaited) ([]*admission.Pod, error) {
	if a.lent == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Clone(a.waiting[image]), nil
	}
	page, err := a.lent.Range(ctx, db.RangeOptions{Prefix: lentPrefix(image), Limit: maxLent})
	if err != nil {
		return nil, err
	}
	var pods []*admission.Pod
	for _, kv := range page.KVs {
		p := &admission.Pod{}
		if json.Unmarshal(kv.Value, p) == nil && p.Cluster == image.cluster {
			pods = append(pods, p)
		}
	}
	return pods, nil
}
