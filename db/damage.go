package db

import (
	"database/sql/driver"
	"fmt"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/sqlite"
	"hash/crc32"
	"strings"
	"sync"
	"time"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum ties a value to its key, so that neither flipped bits nor a value in
// another's place go unseen.
func checksum(key string, value []byte) int64 {
	sum := crc32.Update(0, castagnoli, []byte(key))
	return int64(crc32.Update(sum, castagnoli, value))
}

// kv makes a KV of the columns rev, sum and value, and verifies the value.
func (d *DB) kv(key string, rev, sum, value driver.Value) KV {
	kv := KV{Key: key, Rev: rev.(int64)}
	kv.Value, _ = value.([]byte)
	if want, ok := sum.(int64); !ok || want != checksum(key, kv.Value) {
		d.metrics.damaged.Inc()
		kv.Value, kv.Err = nil, &DamagedError{Path: d.path, Key: key, Rev: kv.Rev}
	}
	return kv
}

// diagnosis is the result of looking over the whole file after damage was met.
type diagnosis struct {
	mu     sync.Mutex
	done   chan struct{} // closed when the look has ended; nil before the first
	began  time.Time
	detail string
	device error // of DeviceError
}

const (
	// diagnoseWait is how long an error waits for the diagnosis that it has started. A
	// large file takes longer, so its first errors come without one.
	diagnoseWait = 2 * time.Second
	// diagnoseAgain is how long a diagnosis stands for later errors.
	diagnoseAgain = time.Minute
)

// diagnose returns what is wrong with the file: a device that fails, or where the file is
// damaged. SQLite's own error does not say, so the file is looked over, in the
// background. known is false while that goes on.
func (d *DB) diagnose(met error) (detail string, device error, known bool) {
	g := &d.diagnosis
	g.mu.Lock()
	done, wait := g.done, time.Duration(0)
	if done == nil || isClosed(done) && time.Since(g.began) > diagnoseAgain {
		done, wait = make(chan struct{}), diagnoseWait
		g.done, g.began = done, time.Now()
		go d.lookOver(met, done)
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

func (d *DB) lookOver(met error, done chan struct{}) {
	defer close(done)
	device := datafile.DeviceError(d.path, met)
	if device != nil {
		d.log.Error("the database file cannot be read", "file", d.path, "met", met, "err", device,
			"do", "look at the system's log for errors of the device; copy the file from it as soon as it can be read")
		d.diagnosis.found("", device)
		return
	}
	faults, err := quickCheck(d.path)
	if err != nil {
		faults = append(faults, err.Error())
	}
	detail := strings.Join(faults, "; ")
	if len(faults) == 0 {
		detail = "every page is in order by itself"
	}
	d.log.Error("the database file is damaged", "file", d.path, "met", met, "found", detail,
		"do", "stop the server, keep the file, restore a backup")
	d.diagnosis.found(detail, nil)
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
