package clusters

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// A pod belongs to what made its controller, as far as the controller's name tells that.
func TestOwner(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 11, 24, 16, 45, 0, 0, time.UTC)
	minutes := created.Unix() / 60
	for _, test := range []struct {
		kind, name  string
		labels      map[string]string
		annotations map[string]string
		want        string
	}{
		{"", "", nil, nil, "Pod/p"},
		{"Node", "worker", nil, nil, "Pod/p"},
		{"ReplicaSet", "app-5d4f", map[string]string{"pod-template-hash": "5d4f"}, nil, "Deployment/app"},
		{"ReplicaSet", "app-5d4f", nil, nil, "ReplicaSet/app-5d4f"},
		{"ReplicaSet", "other", map[string]string{"pod-template-hash": "5d4f"}, nil, "ReplicaSet/other"},
		{"ReplicaSet", "app-5d4f", map[string]string{"rollouts-pod-template-hash": "5d4f"}, nil, "Rollout/app"},
		{"ReplicationController", "app-1", nil, map[string]string{"openshift.io/deployment-config.name": "app"}, "DeploymentConfig/app"},
		{"Job", fmt.Sprintf("nightly-%d", minutes), nil, nil, "CronJob/nightly"},
		{"Job", "migrate-3", nil, nil, "Job/migrate-3"},
		{"Job", "migrate", nil, nil, "Job/migrate"},
		{"Job", fmt.Sprint(minutes), nil, nil, fmt.Sprintf("Job/%d", minutes)},
		{"StatefulSet", "db", nil, nil, "StatefulSet/db"},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "p", Labels: test.labels, Annotations: test.annotations, CreationTimestamp: metav1.NewTime(created)}}
		if test.kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Other", Name: "other"}, {Kind: test.kind, Name: test.name, Controller: ptr.To(true)}}
		}
		obj, err := reduce(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := obj.(*pod).spec().Workload; got != test.want {
			t.Errorf("%s %s: %q, want %q", test.kind, test.name, got, test.want)
		}
	}
}

// A container has run once a node tells that, and a restart does not change when.
func TestStartedAndFinished(t *testing.T) {
	t.Parallel()
	at := func(minute int) metav1.Time {
		return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.Local))
	}
	waits := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	runs := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(1)}}
	over := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at(1), FinishedAt: at(3)}}
	for _, test := range []struct {
		id          string
		state, last corev1.ContainerState
		want        int64
	}{
		{"", runs, corev1.ContainerState{}, 0},
		{"x@sha256:1", waits, corev1.ContainerState{}, 0},
		{"x@sha256:1", runs, corev1.ContainerState{}, at(1).Unix()},
		{"x@sha256:1", waits, over, at(1).Unix()},
		{"x@sha256:1", over, corev1.ContainerState{}, at(1).Unix()},
		{"x@sha256:1", corev1.ContainerState{}, corev1.ContainerState{}, at(0).Unix()},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}}
		if got := started(p, corev1.ContainerStatus{ImageID: test.id, State: test.state, LastTerminationState: test.last}); got != test.want {
			t.Errorf("%+v: started %d, want %d", test, got, test.want)
		}
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(0)}, Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{State: over}}}}
	if got := finished(p); got != 0 {
		t.Errorf("a pod that runs has finished at %d", got)
	}
	p.Status.Phase = corev1.PodSucceeded
	if got := finished(p); got != at(3).Unix() {
		t.Errorf("a pod has finished at %d, want %d", got, at(3).Unix())
	}
}

// However many gaps there are, no moment of one is ever said to have been seen.
func TestGapsAreNeverLost(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	r, now := ClusterRecords{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	var missed []time.Time
	for range 3 * maxGaps {
		now = now.Add(time.Duration(1+rnd.IntN(3600)) * time.Second)
		from := now
		now = now.Add(time.Duration(1+rnd.IntN(3600)) * time.Second)
		if rnd.IntN(2) == 0 {
			r.Miss(from, time.Time{})
		}
		r.Miss(from, now)
		missed = append(missed, from, from.Add(now.Sub(from)/2))
	}
	if len(r.Unseen) != maxGaps {
		t.Errorf("%d gaps are kept, want %d", len(r.Unseen), maxGaps)
	}
	for _, at := range missed {
		if len(r.GapsIn(at, at)) == 0 {
			t.Errorf("the gap at %s is lost", at)
		}
	}
	r.Miss(now.Add(time.Hour), time.Time{})
	if got := r.UnseenIn(now.Add(2*time.Hour), time.Time{}); len(got) != 1 || got[0].Until != nil || !got[0].From.Time.Equal(now.Add(2*time.Hour)) {
		t.Errorf("a gap that goes on is %v", got)
	}
}

// Nothing is known after the time until when the records are whole; if that was not stored, after
// the time since when they are.
func TestKnownUntil(t *testing.T) {
	t.Parallel()
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 2, 3, minute, 0, 0, time.UTC)) }
	for _, one := range []struct{ since, until, want metav1.Time }{
		{at(1), at(5), at(5)},
		{at(1), metav1.Time{}, at(1)},
		{at(1), at(20), at(10)}, // by a clock that was ahead
		{at(20), metav1.Time{}, at(10)},
	} {
		r := ClusterRecords{Since: one.since, Until: one.until}
		if got := r.KnownUntil(at(10).Time); !got.Equal(one.want.Time) {
			t.Errorf("since %s until %s: %s, want %s", one.since, one.until, got, one.want)
		}
	}
}
