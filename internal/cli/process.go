package cli

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// SetUpProcess sets what Kubernetes' packages keep in global variables. main calls
// it once, before anything else runs.
func SetUpProcess(ctx context.Context) {
	// A request that panics is answered 500 and logged; other requests go on.
	utilruntime.ReallyCrash = false
	quietOnceDone(ctx)
	followSlog()
}

// ends is set when the process ends without a signal.
var ends atomic.Bool

// End drops the same complaints as a signal does, for a program that ends by itself: call it before
// what runs is stopped.
func End() { ends.Store(true) }

// quietOnceDone drops, once ctx is done or the program ends by itself, the complaints of
// Kubernetes' packages that controllers and requests were stopped before they had ended.
func quietOnceDone(ctx context.Context) {
	for i, handle := range utilruntime.ErrorHandlers {
		utilruntime.ErrorHandlers[i] = func(about context.Context, err error, msg string, keysAndValues ...any) {
			if ctx.Err() == nil && !ends.Load() {
				handle(about, err, msg, keysAndValues...)
			}
		}
	}
}

// followSlog sends klog's messages to slog's default logger, whichever that is at the
// time.
func followSlog() {
	// By itself klog would give a logger its warnings and fatal messages as information,
	// which verbosity 0 leaves out.
	klog.SetLoggerWithOptions(logr.FromSlogHandler(defaultHandler{}), klog.ContextualLogger(true), klog.WriteKlogBuffer(func(line []byte) {
		level := slog.LevelInfo
		switch line[0] {
		case 'W':
			level = slog.LevelWarn
		case 'E', 'F':
			level = slog.LevelError
		}
		_, text, _ := strings.Cut(string(line), "] ")
		slog.Log(context.Background(), level, strings.TrimSpace(text))
	}))
}

// defaultHandler is the handler of slog's default logger, whichever that is at the time.
type defaultHandler struct{}

// Enabled implements slog.Handler.
func (defaultHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return slog.Default().Handler().Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (defaultHandler) Handle(ctx context.Context, r slog.Record) error {
	return slog.Default().Handler().Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (defaultHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return slog.Default().Handler().WithAttrs(attrs)
}

// WithGroup implements slog.Handler.
func (defaultHandler) WithGroup(name string) slog.Handler {
	return slog.Default().Handler().WithGroup(name)
}
