package cli

import (
	"context"
	"log/slog"
	"regexp"
)

// LogHandler leaves out of the log where in the code of others a line comes from. If Quiet, it
// leaves out what their watches say of themselves: those who use a watch log what somebody must act
// on.
type LogHandler struct {
	slog.Handler
	Quiet bool
}

// reflector is the attribute of client-go's lines about watches: a path of its source.
const reflector = "reflector"

// place matches a path of a source file with its line.
var place = regexp.MustCompile(`\S*k8s\.io/\S+\.go:\d+(: )?`)

// Handle is part of slog.Handler.
func (h LogHandler) Handle(ctx context.Context, r slog.Record) error {
	isWatch := false
	clean := slog.NewRecord(r.Time, r.Level, place.ReplaceAllString(r.Message, ""), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == reflector {
			isWatch = true
			return true
		}
		clean.AddAttrs(withoutPlace(a))
		return true
	})
	if isWatch && h.Quiet {
		return nil
	}
	return h.Handler.Handle(ctx, clean)
}

// withoutPlace is an attribute without places in sources.
func withoutPlace(a slog.Attr) slog.Attr {
	if text, ok := textOf(a.Value); ok && place.MatchString(text) {
		return slog.String(a.Key, place.ReplaceAllString(text, ""))
	}
	return a
}

func textOf(v slog.Value) (string, bool) {
	if err, ok := v.Any().(error); ok {
		return err.Error(), true
	}
	return v.String(), v.Kind() == slog.KindString
}

// WithAttrs is part of slog.Handler.
func (h LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = withoutPlace(a)
	}
	return LogHandler{h.Handler.WithAttrs(clean), h.Quiet}
}

// WithGroup is part of slog.Handler.
func (h LogHandler) WithGroup(name string) slog.Handler {
	return LogHandler{h.Handler.WithGroup(name), h.Quiet}
}
