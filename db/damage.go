package db

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// diagnosis checks the whole file after damage was found, and keeps the result.
type diagnosis struct {
	path string
	log  *slog.Logger
	copy bool // the file is a copy of etcd's data

	mu     sync.Mutex
	done   chan struct{} // closed when the check has ended; nil before the first check
	began  time.Time
	detail string
	device error // from DeviceError
}

const (
	// diagnoseWait is how long an error waits for the diagnosis that it has started. A
	// large file takes longer, so its first errors come without one.
	diagnoseWait = 2 * time.Second
	// diagnoseAgain is for how long later errors reuse a diagnosis.
	diagnoseAgain = time.Minute
)

// diagnose returns the fault of the file: a failing device, or the damaged places. SQLite's error
// does not contain it, so a check of the whole file runs in the background. known is false until
// the check has ended.
func (g *diagnosis) diagnose(met error) (detail string, device error, known bool) {
	g.mu.Lock()
	done, wait := g.done, time.Duration(0)
	if done == nil || isClosed(done) && time.Since(g.began) > diagnoseAgain {
		done, wait = make(chan struct{}), diagnoseWait
		g.done, g.began = done, time.Now()
		go g.lookOver(met, done)
	}
	g.mu.Unlock()
	select {
	case <-done:
	case <-time.After(wait):
		if !isClosed(done) {
			return met.Error(), nil, false
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprintf("%v: %s", met, g.detail), g.device, true
}

func (g *diagnosis) lookOver(met error, done chan struct{}) {
	defer close(done)
	device := datafile.DeviceError(g.path, met)
	if device != nil {
		g.log.Error("the database file cannot be read", "file", g.path, "met", met, "err", device,
			"do", "look for errors of the device in the system log; copy the file to another device as soon as it can be read")
		g.found("", device)
		return
	}
	faults, err := quickCheck(g.path)
	if err != nil {
		faults = append(faults, err.Error())
	}
	detail := strings.Join(faults, "; ")
	if len(faults) == 0 {
		detail = "SQLite's quick_check finds no damage in the file's structure"
	}
	advice := "stop the server, keep the file, restore a backup"
	if g.copy {
		advice = "stop the server and start it with another --data-dir, which it fills from etcd"
	}
	g.log.Error("the database file is damaged", "file", g.path, "met", met, "found", detail, "do", advice)
	g.found(detail, nil)
}

func (g *diagnosis) found(detail string, device error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.detail, g.device = detail, device
}

func isClosed(done chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// quickCheck returns the first faults in the structure of the file.
func quickCheck(path string) (faults []string, err error) {
	c, err := sqlite.Open(path, datafile.ReaderPragmas...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Faults("quick_check", 5)
}
