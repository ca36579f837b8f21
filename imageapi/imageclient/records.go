package imageclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// recordTime is how long a request with records may take.
const recordTime = time.Minute

// records sends items, one request at a time. Items that arrive meanwhile wait, and the next
// request carries all of them. Each waiting caller has one item, so the callers bound the items.
type records struct {
	rest rest.Interface
	// refused is set if the server takes no records: it is older, or its roles do not allow it.
	refused atomic.Bool

	mu      sync.Mutex
	waiting []*recorded
	running bool
}

// recorded is an item that is sent.
type recorded struct {
	ctx    context.Context // the caller's
	item   json.RawMessage
	done   chan struct{}
	result record.Result
	err    error
}

// Record has the server record an item. It returns [record.ErrUnsupported] if the server takes no
// records, or not one of this size.
func (c *Client) Record(ctx context.Context, item *record.Item) (*record.Result, error) {
	r := &c.records
	if r.refused.Load() {
		return nil, record.ErrUnsupported
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(item); err != nil {
		return nil, err
	}
	if text.Len() > record.MaxBytes {
		return nil, record.ErrUnsupported
	}
	asked := &recorded{ctx: ctx, item: text.Bytes(), done: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, asked)
	start := !r.running
	r.running = true
	r.mu.Unlock()
	if start {
		go r.run()
	}
	select {
	case <-asked.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if asked.err == nil && asked.result.Error != nil {
		asked.err = &apierrors.StatusError{ErrStatus: *asked.result.Error}
	}
	return &asked.result, asked.err
}

// run sends items until none waits.
func (r *records) run() {
	for {
		r.mu.Lock()
		n, size := 0, 0
		for n < len(r.waiting) && n < record.MaxItems && (n == 0 || size+len(r.waiting[n].item) <= record.MaxBytes) {
			size += len(r.waiting[n].item)
			n++
		}
		batch := r.waiting[:n:n]
		if r.waiting = r.waiting[n:]; n == 0 {
			r.waiting = nil
			r.running = false
		}
		r.mu.Unlock()
		if n == 0 {
			return
		}
		r.send(batch)
	}
}

// send sends items, and hands the answers to their callers.
func (r *records) send(batch []*recorded) {
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"apiVersion":%q,"kind":%q,"spec":{"items":[`, record.GroupVersion.String(), record.Kind)
	for i, asked := range batch {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(asked.item)
	}
	body.WriteString(`]}}`)
	// A caller that gives up does not cancel the items of the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(batch[0].ctx), recordTime)
	defer cancel()
	var answer record.ImageRecord
	raw, err := r.rest.Post().Resource(record.Resource).Param("fieldValidation", "Ignore").SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body.Bytes()).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(raw, &answer)
	}
	if err == nil && len(answer.Status.Items) != len(batch) {
		err = fmt.Errorf("the server gave %s to %s", table.Quantity(len(answer.Status.Items), "answer"), table.Quantity(len(batch), "item"))
	}
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsRequestEntityTooLargeError(err) && len(batch) == 1 {
		r.refused.Store(!apierrors.IsRequestEntityTooLargeError(err))
		err = record.ErrUnsupported
	}
	if apierrors.IsInvalid(err) && len(batch) > 1 { // of one item, which an older server does not know
		for i := range batch {
			r.send(batch[i : i+1])
		}
		return
	}
	for i, asked := range batch {
		if asked.err = err; err == nil {
			asked.result = answer.Status.Items[i]
		}
		close(asked.done)
	}
}
