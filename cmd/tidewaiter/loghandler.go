package main

import (
	"context"
	"log/slog"
	"regexp"
)

// logHandler leaves out of the log where in the code of others a line comes from. Without a verbosity it leaves out what their
// watches say of themselves: those who use a watch log what somebody must act on.
type logHandler struct {
	slog.Handler
	quiet bool
}

// reflector is the attribute of client-go's lines about watches: a path of its source.
const reflector = "reflector"

// place matches a path of a source file with its line.
var place = regexp.MustCompile(`\S*k8s\.io/\S+\.go:\d+(: )?`)

// Handle is part of slog.Handler.
func (h logHandler) Handle(ctx context.Context, r slog.Record) error {
	isWatch := false
	clean := slog.NewRecord(r.Time, r.Level, place.ReplaceAllString(r.Message, ""), r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == reflector {
			isWatch = true
			return true
		}
		if text, ok := textOf(a.Value); ok && place.MatchString(text) {
			a = slog.String(a.Key, place.ReplaceAllString(text, ""))
		}
		clean.AddAttrs(a)
		return true
	})
	if isWatch && h.quiet {
		return nil
	}
	return h.Handler.Handle(ctx, clean)
}

func textOf(v slog.Value) (string, bool) {
	if err, ok := v.Any().(error); ok {
		return err.Error(), true
	}
	return v.String(), v.Kind() == slog.KindString
}

// WithAttrs is part of slog.Handler.
func (h logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return logHandler{h.Handler.WithAttrs(attrs), h.quiet}
}

// WithGroup is part of slog.Handler.
func (h logHandler) WithGroup(name string) slog.Handler {
	return logHandler{h.Handler.WithGroup(name), h.quiet}
}
