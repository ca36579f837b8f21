package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// Bounds of the memory of pages. While a page is made, it holds answers of the API. After that, it
// holds its text until the browser has read it.
const (
	maxPages = 8 // made at a time
	maxOfOne = 3 // made at a time for each person
	// A page is heavy if the API's answers to it have more than lightPage bytes. One answer may have
	// up to maxAnswer, so maxHeavy pages at a time may be heavy, and one of them for each person.
	lightPage = 1 << 20
	maxHeavy  = 2
	// After a heavy page, the person's next one waits for pageRest times the time that it took, at
	// most longestRest. Making it takes a processor, and collecting its garbage takes another.
	pageRest    = 5
	longestRest = 2 * time.Second
	// pageWait is how long a page may wait for its turn.
	pageWait = 10 * time.Second
	// maxPage bounds the text of a page, in bytes. maxUnread bounds the text of all finished pages
	// that browsers have not read yet.
	maxPage   = 8 << 20
	maxUnread = 32 << 20
)

// turn is the permission to make a page.
type turn struct {
	v   *visit
	end func()

	answered atomic.Int64 // bytes of the API's answers
	heavy    sync.Once    // guards the rest
	endHeavy func()
	err      error
}

// over returns a turn that has ended.
func over() *turn { return &turn{end: func() {}, endHeavy: func() {}} }

// errManyPages is the error after a page has waited for its turn for pageWait.
var errManyPages = &apiError{Code: http.StatusTooManyRequests, Message: "Too many pages are being made."}

// acquireTurn waits until the person may have another page made.
func (v *visit) acquireTurn() (*turn, error) {
	t := over()
	t.v = v
	end, err := v.acquire(v.making)
	if err == nil {
		t.end, v.call.turn = end, t
	}
	return t, err
}

// acquire waits for a place in of.
func (v *visit) acquire(of *room.Room) (release func(), err error) {
	ctx, cancel := context.WithTimeout(v.ctx(), pageWait)
	defer cancel()
	if release, err = of.Acquire(ctx, v.who(), 1); err != nil {
		return nil, errManyPages
	}
	return release, nil
}

// who returns the person for whom pages are counted: the user, or else the remote address.
func (v *visit) who() string {
	if v.user != "" {
		return string(v.user)
	}
	host, _, _ := net.SplitHostPort(v.r.RemoteAddr) // a cluster need not give the user's name
	return host
}

// count counts n more bytes of an answer. If this makes the page heavy, count waits until the
// person may have a heavy page.
func (t *turn) count(n int) error {
	if t.answered.Add(int64(n)) <= lightPage {
		return nil
	}
	t.heavy.Do(func() { t.endHeavy, t.err = t.v.beginHeavy() })
	return t.err
}

// beginHeavy waits until the person may have a heavy page and there is a place for one.
func (v *visit) beginHeavy() (end func(), err error) {
	rested, err := v.acquire(v.resting)
	if err != nil {
		return func() {}, err
	}
	made, err := v.acquire(v.heavy)
	if err != nil {
		return rested, err
	}
	began := time.Now()
	return func() {
		made()
		time.AfterFunc(min(pageRest*time.Since(began), longestRest), rested)
	}, nil
}

// work takes one of the processors that pages share with the API's lists, to parse answers or to
// write text; done gives it back. No call of the API may be made before that.
func (t *turn) work() (done func()) {
	if t == nil || t.v == nil {
		return func() {}
	}
	return t.v.turn(t.v.ctx(), nil, string(t.v.user), t.v.r.RemoteAddr).Begin()
}

// done ends the turn. The caller must have no call of the API under way.
func (t *turn) done() {
	t.endHeavy()
	t.end()
}

// inTurn makes a page in its turn, and sends it after the turn. A live page of Events needs no
// turn, because it holds one Event at a time.
func (v *visit) inTurn(handle func(*visit) error) error {
	if v.r.URL.Path == Root+livePath {
		return handle(v)
	}
	t, err := v.acquireTurn()
	if err != nil {
		return err
	}
	made := &made{ResponseWriter: v.w, v: v, turn: t}
	defer func() { made.turn.done() }()
	v.w = made
	if err := handle(v); err != nil {
		v.w, v.call.turn = made.ResponseWriter, nil
		return err
	}
	_ = made.send() // an error means that the browser is gone
	return nil
}

// pageText collects the text of a page, at most maxPage bytes.
type pageText struct{ bytes.Buffer }

// errLargePage is the error of a page whose text has more than maxPage bytes.
var errLargePage = &apiError{Code: http.StatusRequestEntityTooLarge, Message: text(fmt.Sprintf("The page has more than %d MiB of text. The command line shows all of it.", maxPage>>20))}

// Write implements io.Writer.
func (t *pageText) Write(p []byte) (int, error) {
	if t.Len()+len(p) > maxPage {
		return 0, errLargePage
	}
	return t.Buffer.Write(p)
}

// made holds the text of a page until its turn has ended.
type made struct {
	http.ResponseWriter
	v    *visit
	turn *turn
	code int
	body pageText
	sent bool // part of the page has been sent
}

// WriteHeader implements http.ResponseWriter.
func (m *made) WriteHeader(code int) { m.code = cmp.Or(m.code, code) }

// Write implements http.ResponseWriter.
func (m *made) Write(p []byte) (int, error) { return m.body.Write(p) }

// Unwrap is for http.ResponseController.
func (m *made) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// send ends the turn and sends the text so far.
func (m *made) send() error {
	control := http.NewResponseController(m.ResponseWriter)
	defer m.v.unread.add(m.v.who(), m.body.Len(), func() { _ = control.SetWriteDeadline(time.Unix(1, 0)) })()
	m.turn.done()
	m.turn = over()
	if !m.sent && m.code != 0 {
		m.ResponseWriter.WriteHeader(m.code)
	}
	m.sent = true
	_, err := m.ResponseWriter.Write(m.body.Bytes())
	m.body = pageText{}
	return err
}

// flush sends the text so far of a long page, and waits for another turn to make the rest.
func (m *made) flush() error {
	err := m.send()
	if err == nil {
		err = http.NewResponseController(m.ResponseWriter).Flush()
	}
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	t, err := m.v.acquireTurn()
	if err == nil {
		m.turn = t
	}
	return err
}

// unread are the finished pages that browsers are still reading. If they have more than max bytes,
// the person with the most bytes loses the page that has waited longest.
type unread struct {
	max int

	mu    sync.Mutex
	pages []*unreadPage // oldest first
	bytes int
}

type unreadPage struct {
	who   string
	bytes int
	stop  func() // ends the page's connection
}

// add adds a page of n bytes. After done, unread no longer calls stop.
func (u *unread) add(who string, n int, stop func()) (done func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	one := &unreadPage{who, n, stop}
	u.pages = append(u.pages, one)
	for u.bytes += n; u.bytes > u.max; {
		loses := u.loses()
		u.remove(loses)
		loses.stop()
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.remove(one)
	}
}

// loses returns the page to cut off.
func (u *unread) loses() *unreadPage {
	share := map[string]int{}
	for _, p := range u.pages {
		share[p.who] += p.bytes
	}
	loses := u.pages[0]
	for _, p := range u.pages {
		if share[p.who] > share[loses.who] {
			loses = p
		}
	}
	return loses
}

func (u *unread) remove(one *unreadPage) {
	for i, p := range u.pages {
		if p == one {
			u.pages = append(u.pages[:i], u.pages[i+1:]...)
			u.bytes -= p.bytes
			return
		}
	}
}
