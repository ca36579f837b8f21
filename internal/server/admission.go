package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// jobs is the queue of pushes, as far as admission uses it.
type jobs interface {
	Enqueue(ctx context.Context, events []push.Event) error
	Find(ctx context.Context, source push.Source, key string) (*push.Job, error)
	Retry(ctx context.Context, id int64) error
}

// Admitter answers admission from the stored Images of pods.
type Admitter struct {
	Answerer *answers.Answerer
	Queue    jobs
	clusters *clusters.Clusters

	mu sync.Mutex
	// waiting are the pods that wait for an import, by the image: the places of admission bound
	// them.
	waiting map[awaited][]*admission.Pod
	lent    *db.DB // where pods of other servers wait, too; nil for a single server
}

// awaited is an image that pods of a cluster wait for.
type awaited struct {
	cluster string
	image   reference.Reference
}

func (s *Server) newAdmission() *admission.Handler {
	o := admission.Options{
		Verdicts: s.admitter, Cluster: usage.Local, Registerer: meter.Process, Recorder: s.runs,
		// A quarter of the changes that can be in flight: one caller may have half of them.
		MaxWaiting: max(1, cmp.Or(s.Options.MaxWrites, 200)/4),
	}
	for _, c := range s.Config.Clusters {
		o.Others = append(o.Others, c.Name)
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
func (a *Admitter) Judge(ctx context.Context, pod admission.Pod, image reference.Reference) (admit.Judgement, error) {
	return a.Answerer.Admit(ctx, pod.Cluster, pod.Namespace, image)
}

// Import is part of [admission.Verdicts]. A job that waits or was given up becomes due at once.
func (a *Admitter) Import(ctx context.Context, pod admission.Pod, image reference.Reference) (done func(), err error) {
	if done, err = a.wait(ctx, &pod, awaited{pod.Cluster, image}); err != nil {
		return nil, err
	}
	e := push.Event{Source: push.OfCluster(pod.Cluster), Action: push.Runs, Host: image.Host, Repository: image.Repository, Tag: image.Tag, Digest: image.Digest}
	if err := hasten(ctx, a.Queue, e); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// hasten puts an event into the queue. If a job about it waits there, or was given up, that becomes
// due at once.
func hasten(ctx context.Context, queue jobs, e push.Event) error {
	queued, err := queue.Find(ctx, e.Source, e.Key())
	switch {
	case err != nil:
		return err
	case queued == nil:
		return queue.Enqueue(ctx, []push.Event{e})
	case queued.State == job.Leased:
		return nil
	}
	if err := queue.Retry(ctx, queued.ID); !errors.Is(err, job.ErrNoSuchJob) {
		return err
	}
	return nil // a worker is doing it, or has done it
}

// wait lends the credentials of a pod to an import until done is called. If the leading server does
// the import, wait sends it the name of the pod.
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
	// maxLent bounds how many of the pods that wait for an image lend their credentials.
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
