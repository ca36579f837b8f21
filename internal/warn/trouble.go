package warn

import (
	"log/slog"
	"sync"
)

// Trouble logs a line when something begins to be wrong and one when it is right again, and nothing
// in between. The zero value is ready for use; its methods may be called from any goroutine.
type Trouble struct {
	// Logger is where the lines go; nil is slog's default logger.
	Logger *slog.Logger

	mu    sync.Mutex
	begun map[string]bool // by what is wrong
}

// Begin warns of what is wrong, unless that was said of the key and has not ended. At most MaxKeys
// troubles are known at a time; further ones are not logged. Strings and errors in args become one
// line of at most 512 bytes.
func (t *Trouble) Begin(key, message string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun[key] || len(t.begun) >= MaxKeys {
		return
	}
	if t.begun == nil {
		t.begun = map[string]bool{}
	}
	t.begun[key] = true
	t.log(message, args)
}

// End says that what Begin warned of is over, if it was logged. It is a warning, too, so that a
// reader of the one sees the other.
func (t *Trouble) End(key, message string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun[key] {
		delete(t.begun, key)
		t.log(message, args)
	}
}

func (t *Trouble) log(message string, args []any) {
	for i, arg := range args {
		args[i] = bounded(arg)
	}
	(&Limiter{Logger: t.Logger}).log(message, args...)
}
