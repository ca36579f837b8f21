// Package cli is shared by all verbs: exit codes, errors that say what to do next, and kubeconfigs.
package cli

import "fmt"

// Exit codes of every verb. Verbs that handle several things use ExitSome when
// only some of them failed.
const (
	ExitOK    = 0
	ExitSome  = 1
	ExitNone  = 2
	ExitUsage = 2
	// ExitNothing is import's if there was nothing to import and nothing failed.
	ExitNothing = 3
)

// Exit is an error that ends the process with a code. Err, if any, is printed.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

func (e *Exit) Unwrap() error { return e.Err }

// HintError adds to an error what to do next.
type HintError struct {
	err  error
	Hint string // a sentence, or a command line
}

func (e *HintError) Error() string { return e.err.Error() }

func (e *HintError) Unwrap() error { return e.err }

// WithHint adds to err what to do about it.
func WithHint(err error, format string, args ...any) error {
	return &HintError{err: err, Hint: fmt.Sprintf(format, args...)}
}

// Misuse is an error about the command line.
func Misuse(err error, hint string, args ...any) error {
	return &Exit{Code: ExitUsage, Err: WithHint(err, hint, args...)}
}
