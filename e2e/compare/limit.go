package compare

import (
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	_ "github.com/mattn/go-sqlite3" // the driver that the server under test uses, too
)

// A limitServer is what a server costs that does nothing but the work itself, by the libraries that
// Tidewaiter uses: it reads a body, commits it to SQLite, and answers from memory over TLS. It
// validates nothing and authorizes nobody, and it only understands the requests of client.
type limitServer struct {
	db      *sql.DB
	commits chan commit

	mu       sync.RWMutex
	objects  map[string][]byte
	order    []string
	watchers map[chan []byte]bool
	listed   int // how many objects list and packed have
	list     []byte
	packed   []byte // list with gzip
}

// A commit is a creation that waits for its transaction.
type commit struct {
	object
	done chan error
}

const (
	maxCommits = 256 // creations of one transaction
	maxPending = 1024
	initialEnd = `{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n"
)

// ServeLimit serves a limitServer over a new database until ctx is done. It calls ready with its
// URL.
func ServeLimit(ctx context.Context, database string, ready func(url string)) error {
	db, err := sql.Open("sqlite3", "file:"+database+"?_journal_mode=WAL&_synchronous=FULL")
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("CREATE TABLE objects (revision INTEGER PRIMARY KEY, name TEXT UNIQUE, value BLOB)"); err != nil {
		return err
	}
	s := &limitServer{db: db, commits: make(chan commit, maxPending), objects: map[string][]byte{}, watchers: map[chan []byte]bool{}}
	go s.commitAll()
	server := httptest.NewTLSServer(s) // its client uses HTTP/1.1, too
	ready(server.URL)
	<-ctx.Done()
	return ctx.Err()
}

// commitAll shares a transaction among the creations that wait at the time.
func (s *limitServer) commitAll() {
	for first := range s.commits {
		all := []commit{first}
		for range min(len(s.commits), maxCommits-1) {
			all = append(all, <-s.commits)
		}
		err := s.store(all)
		if err == nil {
			s.publish(all)
		}
		for _, c := range all {
			c.done <- err
		}
	}
}

func (s *limitServer) store(all []commit) error {
	tx, err := s.db.Begin()
	if err != nil {
		return err
	}
	for _, c := range all {
		if _, err := tx.Exec("INSERT INTO objects (name, value) VALUES (?, ?)", c.name, c.body); err != nil {
			_ = tx.Rollback()
			return err
		}
	}
	return tx.Commit()
}

func (s *limitServer) publish(all []commit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range all {
		s.objects[c.name] = c.body
		s.order = append(s.order, c.name)
		event := added(c.body)
		for w := range s.watchers {
			w <- event
		}
	}
}

func added(object []byte) []byte {
	return fmt.Appendf(nil, `{"type":"ADDED","object":%s}`+"\n", object)
}

// ServeHTTP implements http.Handler.
func (s *limitServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	query := r.URL.Query()
	name := strings.Trim(strings.TrimPrefix(r.URL.Path, imagesPath), "/")
	switch {
	case r.Method == http.MethodPost:
		s.create(w, r)
	case query.Has("sendInitialEvents"):
		s.watchList(w)
	case query.Has("watch"):
		s.watch(w, r)
	case name != "":
		s.mu.RLock()
		object, ok := s.objects[name]
		s.mu.RUnlock()
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(object)
	case query.Has("limit"):
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"}}`)
	default:
		list, packed := s.lists()
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			list = packed
		}
		_, _ = w.Write(list)
	}
}

func (s *limitServer) create(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// image writes the name after the annotations.
	_, metadata, _ := bytes.Cut(body, []byte(`"metadata":{"annotations"`))
	_, name, _ := bytes.Cut(metadata, []byte(`"name":"`))
	name, _, ok := bytes.Cut(name, []byte(`"`))
	if !ok {
		http.Error(w, "this is not an object of this package", http.StatusBadRequest)
		return
	}
	c := commit{object{string(name), body}, make(chan error, 1)}
	s.commits <- c
	if err := <-c.done; err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

// watchList sends what exists.
func (s *limitServer) watchList(w http.ResponseWriter) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, name := range s.order {
		_, _ = io.WriteString(w, `{"type":"ADDED","object":`)
		_, _ = w.Write(s.objects[name])
		_, _ = io.WriteString(w, "}\n")
	}
	_, _ = io.WriteString(w, initialEnd)
}

// watch sends creations, for as long as somebody reads them.
func (s *limitServer) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, maxPending)
	s.mu.Lock()
	s.watchers[events] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	flush := w.(http.Flusher).Flush
	for flush(); ; flush() {
		select {
		case event := <-events:
			_, _ = w.Write(event)
		case <-r.Context().Done():
			return
		}
	}
}

// lists returns the list of all objects, which it makes once.
func (s *limitServer) lists() (list, packed []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list == nil || s.listed != len(s.order) {
		items := make([][]byte, len(s.order))
		for i, name := range s.order {
			items[i] = s.objects[name]
		}
		s.list, s.listed = fmt.Appendf(nil, `{"kind":"ImageList","metadata":{"resourceVersion":"1"},"items":[%s]}`+"\n", bytes.Join(items, []byte(","))), len(s.order)
		var packed bytes.Buffer
		writer, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		_, _ = writer.Write(s.list)
		_ = writer.Close()
		s.packed = packed.Bytes()
	}
	return s.list, s.packed
}
