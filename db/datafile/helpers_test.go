package datafile_test

import (
	"log/slog"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(endlessEnv); dir != "" {
		openEndless(dir)
	}
	os.Exit(m.Run())
}

var quietLogger = slog.New(slog.DiscardHandler)
