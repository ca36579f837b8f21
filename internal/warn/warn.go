// Package warn logs events that strangers can cause, such as failed logins. An
// administrator hears of an event at once, and a flood of them cannot fill a disk.
package warn

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

const (
	// window is the time in which a warning with the same key is logged once.
	window = time.Minute
	// MaxKeys is how many keys are told apart in a window. So a Limiter logs at most
	// 2×MaxKeys+1 lines in each.
	MaxKeys = 20
	// maxValue bounds one value in a line, in bytes.
	maxValue = 512
)

// Limiter logs warnings of one kind. The zero value is ready for use; its methods may
// be called from any goroutine.
type Limiter struct {
	// Logger is where the warnings go; nil is slog's default logger.
	Logger *slog.Logger

	mu       sync.Mutex
	warnings map[string]*warning // by key, in the current window; nil outside of one
	other    int                 // with further keys
}

// warning is one that was logged, and how often it came again.
type warning struct {
	message string
	args    []any
	again   int
}

// Warn logs a warning. If another one with the same key comes within the Window, such
// as one about the same address, it is only counted; the count is logged at the
// window's end. Strings and errors in args become one line of at most 512 bytes.
func (l *Limiter) Warn(key, message string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.warnings == nil {
		l.warnings = map[string]*warning{}
		time.AfterFunc(window, l.closeWindow)
	}
	switch t := l.warnings[key]; {
	case t != nil:
		t.again++
	case len(l.warnings) >= MaxKeys:
		l.other++
	default:
		for i, arg := range args {
			args[i] = bounded(arg)
		}
		l.warnings[key] = &warning{message: message, args: args}
		l.log(message, args...)
	}
}

func (l *Limiter) log(message string, args ...any) {
	cmp.Or(l.Logger, slog.Default()).Warn(message, args...)
}

func (l *Limiter) closeWindow() {
	l.mu.Lock()
	defer l.mu.Unlock()
	message := ""
	for _, t := range l.warnings {
		message = t.message
		if t.again > 0 {
			l.log(t.message, append(t.args, "again", t.again, "within", window.String())...)
		}
	}
	if l.other > 0 {
		l.log(message, "others", l.other, "within", window.String())
	}
	l.warnings, l.other = nil, 0
}

func bounded(arg any) any {
	var s string
	switch v := arg.(type) {
	case string:
		s = v
	case error:
		s = v.Error()
	case fmt.Stringer:
		s = v.String()
	default:
		return arg
	}
	return printable.Line(s, maxValue)
}
