package storedjson

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/gzipparts"
)

// gzipThreshold is the length above which the API server compresses lists, too.
const gzipThreshold = 128 << 10

// listMaxWait is how long a list waits for memory.
const listMaxWait = 2 * time.Second

// listEnd follows the items of a list.
const listEnd = "]}\n"

// list answers with the objects that read returns. If it reads a damaged object before it has
// written anything, it calls next instead. If it reads one later, it aborts the connection, and
// next answers later lists.
func (k *kind) list(w http.ResponseWriter, req *http.Request, read begin, next http.Handler) {
	share := k.lists.reserve(req.Context())
	defer share.release()
	waiting, cancel := context.WithTimeout(req.Context(), k.maxWait)
	err := share.wait(waiting, weight(listRun))
	if cancel(); err != nil {
		k.answer(w, req, "LIST", "cluster", func(w http.ResponseWriter, req *http.Request) {
			tooMany := apierrors.NewTooManyRequests("too many lists are in memory: ask for pages, or try again", 1)
			responsewriters.ErrorNegotiated(tooMany, k.codecs, k.Resource.GroupVersion(), w, req)
		})
		return
	}
	p, ok := read(req.Context(), share)
	if !ok {
		share.release()
		next.ServeHTTP(w, req)
		return
	}
	k.answer(w, req, "LIST", "cluster", func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		head, err := p.listHead()
		if err == nil {
			err = k.writeList(ctx, w, p, head, responsewriters.ContentEncodingSupported(req, features.APIResponseCompression) == "gzip" && p.long(ctx))
		}
		if err == nil {
			return
		}
		// The status has been sent. Only aborting the connection can signal failure now.
		if k.unreadable.Load() != nil {
			slog.ErrorContext(ctx, "a list ended at an object that cannot be read; the next list will report it", "resource", k.Resource, "err", err)
		} else {
			slog.Log(ctx, verbose, "a list ended early", "resource", k.Resource, "err", err)
		}
		panic(http.ErrAbortHandler)
	})
}

func (k *kind) writeList(ctx context.Context, w http.ResponseWriter, p *scan, head []byte, compressed bool) error {
	w.Header().Set("Content-Type", "application/json")
	f := k.plain
	if compressed {
		f = k.gzip
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
	}
	var to sink = plainSink{w}
	if compressed {
		to = gzipparts.NewWriter(w)
	}
	first := f.piece(head)
	if len(p.head) == 0 {
		if err := to.Write(first.bytes, first.sum); err != nil {
			return err
		}
	} else if err := f.send(ctx, p, framing{first: first}, to, func(int) error { return nil }); err != nil {
		return err
	}
	end := f.piece([]byte(listEnd))
	if err := to.Write(end.bytes, end.sum); err != nil {
		return err
	}
	return to.Close()
}

// long reports whether the list is large enough for the API server to compress it.
func (p *scan) long(ctx context.Context) bool {
	if p.size > gzipThreshold || !p.more {
		return p.size > gzipThreshold
	}
	_, size, err := p.k.source.Totals(ctx)
	return err == nil && size > gzipThreshold
}

// listHead returns the list's JSON up to its items.
func (p *scan) listHead() ([]byte, error) {
	b := []byte(`{"kind":` + strconv.Quote(p.k.Kind.Kind+"List") + `,"apiVersion":` + strconv.Quote(p.k.Resource.GroupVersion().String()) +
		`,"metadata":{"resourceVersion":"` + strconv.FormatInt(p.rev, 10) + `"`)
	if p.last != "" {
		token, err := storage.EncodeContinue("/"+p.last+"\x00", "/", p.rev)
		if err != nil {
			return nil, err
		}
		b = append(b, `,"continue":`+strconv.Quote(token)...) // base64: nothing needs escaping
		b = append(b, `,"remainingItemCount":`...)
		b = strconv.AppendInt(b, p.remaining, 10)
	}
	return append(b, `},"items":[`...), nil
}
