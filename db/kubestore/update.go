package kubestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
)

// state is the state from which an update or deletion starts.
type state struct {
	obj   runtime.Object // nil if it is unreadable, as stateReader.unreadable expects
	rev   int64          // 0 when the key does not exist
	data  []byte         // the encoded object, without revision
	stale bool           // the transformer wants the value rewritten
	// current is false for a suggestion, which may be out of date.
	current bool
}

// stateReader reads the state of one key.
type stateReader struct {
	s   *Store
	key string
	v   reflect.Value // the value that obj points to
	// missingOK makes a key that does not exist a zero object.
	missingOK bool
	// unreadable is true for an unsafe deletion, which expects an unreadable object; a readable one is
	// an error.
	unreadable bool
}

func (r *stateReader) read(ctx context.Context) (*state, error) {
	kv, ok, _, err := r.s.db.Get(ctx, r.key)
	if err != nil {
		return nil, r.s.interpret(err)
	}
	st := &state{obj: newLike(r.v), current: true}
	if !ok {
		if !r.missingOK {
			return nil, storage.NewKeyNotFoundError(r.key, 0)
		}
		return st, runtime.SetZeroValue(st.obj)
	}
	st.rev = kv.Rev
	st.data, st.stale, err = r.s.plain(ctx, kv)
	if err != nil {
		err = storage.NewInternalError(err)
	} else {
		err = r.s.decodeData(st.data, st.obj, st.rev)
	}
	switch {
	case r.unreadable && err == nil:
		return nil, storage.NewInvalidObjError(r.key, "unsafe deletion is not allowed because the object is decodable from storage")
	case r.unreadable:
		st.obj = nil
		return st, nil
	}
	return st, err
}

func newLike(v reflect.Value) runtime.Object {
	if u, ok := v.Addr().Interface().(runtime.Unstructured); ok {
		return u.NewEmptyInstance()
	}
	return reflect.New(v.Type()).Interface().(runtime.Object)
}

// suggested makes a state of the caller's copy of the object.
func (s *Store) suggested(obj runtime.Object) (*state, error) {
	rv, err := s.versioner.ObjectResourceVersion(obj)
	if err != nil {
		return nil, fmt.Errorf("couldn't get resource version: %w", err)
	}
	// Stored objects have no revision, so remove it while encoding.
	if err := s.versioner.PrepareObjectForStorage(obj); err != nil {
		return nil, fmt.Errorf("PrepareObjectForStorage failed: %w", err)
	}
	data, err := runtime.Encode(s.codec, obj)
	if err != nil {
		return nil, err
	}
	if err := s.versioner.UpdateObject(obj, rv); err != nil {
		return nil, err
	}
	return &state{obj: obj, rev: int64(rv), data: data}, nil
}

// start returns the state to begin with: the suggestion, or the stored object.
func (r *stateReader) start(ctx context.Context, suggestion runtime.Object) (*state, error) {
	if suggestion != nil && !r.unreadable {
		return r.s.suggested(suggestion)
	}
	return r.read(ctx)
}

// recheck handles a refusal that was based on st. If st was a suggestion and the object has changed
// meanwhile, it returns the current state for another attempt.
func (r *stateReader) recheck(ctx context.Context, st *state, refusal error) (*state, error) {
	if st.current {
		return nil, refusal
	}
	fresh, err := r.read(ctx)
	if err != nil {
		return nil, err
	}
	if fresh.rev == st.rev {
		return nil, refusal
	}
	return fresh, nil
}

// GuaranteedUpdate implements storage.Interface.
func (s *Store) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool,
	preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, suggestion runtime.Object) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	v, err := conversion.EnforcePtr(destination)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	reader := &stateReader{s: s, key: key, v: v, missingOK: ignoreNotFound}
	var st *state
	if suggestion == nil {
		st = s.recents.pop(key, v.Type())
	}
	if st == nil {
		if st, err = reader.start(ctx, suggestion); err != nil {
			return err
		}
	}
	for {
		if err := preconditions.Check(key, st.obj); err != nil {
			if st, err = reader.recheck(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		next, ttl, err := tryUpdate(st.obj, storage.ResponseMeta{ResourceVersion: uint64(st.rev)})
		if err != nil {
			if st, err = reader.recheck(ctx, st, err); err != nil {
				return err
			}
			continue
		}
		if err := s.versioner.PrepareObjectForStorage(next); err != nil {
			return fmt.Errorf("PrepareObjectForStorage failed: %w", err)
		}
		data, err := runtime.Encode(s.codec, next)
		if err != nil {
			return err
		}
		if !st.stale && bytes.Equal(data, st.data) {
			// The update changes nothing; make sure that this also holds for the stored object.
			if !st.current {
				if st, err = reader.read(ctx); err != nil {
					return err
				}
				if !bytes.Equal(data, st.data) {
					continue
				}
			}
			if !st.stale {
				return s.decodeData(st.data, destination, st.rev)
			}
		}
		var seconds uint64
		if ttl != nil {
			seconds = *ttl
		}
		rev, err := s.put(ctx, key, st.rev, data, next, seconds)
		if errors.Is(err, db.ErrConflict) {
			if st, err = reader.read(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		return s.returnWritten(key, data, next, destination, rev)
	}
}

// Delete implements storage.Interface.
func (s *Store) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions,
	validate storage.ValidateObjectFunc, suggestion runtime.Object, opts storage.DeleteOptions) error {
	key, err := s.prepareKey(key, false)
	if err != nil {
		return err
	}
	v, err := conversion.EnforcePtr(out)
	if err != nil {
		return fmt.Errorf("unable to convert output object to pointer: %w", err)
	}
	reader := &stateReader{s: s, key: key, v: v, unreadable: opts.ExpectTransformOrDecodeError && unsafeDeletionEnabled()}
	st, err := reader.start(ctx, suggestion)
	if err != nil {
		return err
	}
	for {
		refusal := error(nil)
		if preconditions != nil {
			refusal = preconditions.Check(key, st.obj)
		}
		if refusal == nil {
			refusal = validate(ctx, st.obj)
		}
		if refusal != nil {
			if st, err = reader.recheck(ctx, st, refusal); err != nil {
				return err
			}
			continue
		}
		resume := s.budget.pause(ctx)
		rev, err := s.db.Delete(ctx, key, st.rev)
		resume()
		if errors.Is(err, db.ErrConflict) {
			if st, err = reader.read(ctx); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return s.interpret(err)
		}
		s.recents.forget(key, rev)
		if reader.unreadable {
			return nil
		}
		return s.decodeData(st.data, out, rev)
	}
}
