package db_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	if err := db.Owner(filepath.Join(dir, "missing")); err != nil {
		t.Errorf("owner of a missing directory: %v", err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	if err := d.SetInfo("https://127.0.0.1:6443"); err != nil {
		t.Fatal(err)
	}
	_, openErr := db.Open(db.Options{Dir: dir})
	for what, err := range map[string]error{"Open": openErr, "Owner": db.Owner(dir)} {
		var locked *db.LockedError
		if !errors.As(err, &locked) {
			t.Fatalf("%s: %v, want *LockedError", what, err)
		}
		if locked.PID != os.Getpid() || locked.Info != "https://127.0.0.1:6443" || locked.Dir != dir {
			t.Errorf("%s: %+v, want this process", what, locked)
		}
		if !strings.Contains(err.Error(), "https://127.0.0.1:6443") {
			t.Errorf("%s: message %q does not say who", what, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := db.Owner(dir); err != nil {
		t.Errorf("owner after close: %v", err)
	}
	dbtest.OpenOptions(t, db.Options{Dir: dir})
}

func TestLockFileOfStrangers(t *testing.T) {
	for _, content := range []string{"", "not json", `{"pid":"x"}`, strings.Repeat("x", 1<<20)} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "lock"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		dbtest.OpenOptions(t, db.Options{Dir: dir})
	}
}
