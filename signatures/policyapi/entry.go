package policyapi

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// entry caches an object for the keeper, so that a write of one object does not read and parse the
// others. It is immutable: a change replaces it.
type entry struct {
	uid        types.UID
	generation int64
	specDigest [sha256.Size]byte // of the spec as JSON
	revision   int64
	status     PolicyStatus

	// The policy of an object that a client wrote. If there is a fault, it trusts no signer.
	policy *policy.Policy
	fault  fault

	// The fields of an object that shows a file; shows is "" for others.
	shows     string
	admission policy.Admission
	spec      *policy.DocumentSpec
}

// entryOf returns the entry of an object. If the spec is unchanged, it reuses the parsed policy. It
// compares the spec, not the generation, because direct writes to the storage need not increment
// that.
func (k *Keeper) entryOf(o object) *entry {
	e := &entry{uid: o.GetUID(), generation: o.GetGeneration(), status: *o.status(), admission: admissionOf(o)}
	e.revision, _ = strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if e.shows = o.GetAnnotations()[FileAnnotation]; e.shows != "" {
		e.spec = o.spec()
		return e
	}
	text, unencodable := json.Marshal(o.spec())
	e.specDigest = sha256.Sum256(text)
	k.mu.Lock()
	before := k.objects[keyOf(o)]
	k.mu.Unlock()
	if before != nil && before.policy != nil && before.uid == e.uid && before.specDigest == e.specDigest && unencodable == nil {
		e.policy, e.fault = before.policy, before.fault
		if before.admission != e.admission {
			p := *before.policy
			p.Admission = e.admission
			e.policy = &p
		}
		return e
	}
	var err error
	if e.policy, err = policy.New(o.GetNamespace(), o.GetName(), o.spec()); err != nil {
		e.fault = fault{ReasonInvalid, fmt.Sprintf("an older version accepted it, but this one cannot use it, so nothing that it covers is trusted: %v", err)}
		e.policy = policy.DenyAll(o.GetNamespace(), o.GetName(), o.spec())
	}
	e.policy.Admission = e.admission
	return e
}

// knows reports whether the keeper's entry of an object is at least as new as a revision.
func (k *Keeper) knows(key types.NamespacedName, rev int64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.objects[key]
	return e != nil && e.revision >= rev
}

// note stores the latest entry of an object; e is nil if the object is gone. The caller holds mu.
func (k *Keeper) note(key types.NamespacedName, e *entry) {
	if e == nil {
		delete(k.objects, key)
	} else if before := k.objects[key]; before == nil || before.revision < e.revision {
		k.objects[key] = e
	}
}
