package datafile_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

// endlessEnv has the data directory for the process that TestEndlessSchema starts. The goroutines
// that it leaves running end with that process.
const endlessEnv = "TIDEWAITER_TEST_ENDLESS_DIR"

func openEndless(dir string) {
	datafile.SetSchemaWait(500 * time.Millisecond)
	_, err := db.Open(db.Options{Dir: dir, Logger: quietLogger})
	fmt.Println("open:", err)
	fmt.Println("check:", datafile.Check(context.Background(), dir))
	fmt.Println("restore:", backup.Restore(context.Background(), filepath.Join(dir, datafile.FileName), filepath.Join(dir, "restored")))
	os.Exit(0)
}

// TestEndlessSchema: the pages of a schema form a tree in which each page points 600 times at the
// one page of the next level. Reading it would take longer than the age of the world.
func TestEndlessSchema(t *testing.T) {
	t.Parallel()
	good, err := goodFile()
	if err != nil {
		t.Fatal(err)
	}
	const page, levels, children = 4096, 8, 600
	file := bytes.Clone(good)
	pages := uint32(len(file) / page)
	// interior makes a page of a table's tree, all of whose cell pointers name the same cell.
	interior := func(p []byte, header int, child uint32) {
		clear(p[header:])
		const cell = page - 5
		p[header] = 0x05
		binary.BigEndian.PutUint16(p[header+3:], children)
		binary.BigEndian.PutUint16(p[header+5:], cell)
		binary.BigEndian.PutUint32(p[header+8:], child)
		for i := range children {
			binary.BigEndian.PutUint16(p[header+12+2*i:], cell)
		}
		binary.BigEndian.PutUint32(p[cell:], child)
		p[cell+4] = 1
	}
	// The leaf has one row, which is not a row of a schema.
	leaf := make([]byte, page)
	row := []byte{6, 1, 6, 0, 0, 0, 0, 0} // size, rowid, header of five columns, all NULL
	leaf[0] = 0x0d
	binary.BigEndian.PutUint16(leaf[3:], 1)
	binary.BigEndian.PutUint16(leaf[5:], uint16(page-len(row)))
	binary.BigEndian.PutUint16(leaf[8:], uint16(page-len(row)))
	copy(leaf[page-len(row):], row)
	interior(file[:page], 100, pages+1)
	for i := range levels {
		p := make([]byte, page)
		interior(p, 0, pages+2+uint32(i))
		file = append(file, p...)
	}
	file = append(file, leaf...)
	binary.BigEndian.PutUint32(file[28:], uint32(len(file)/page))

	dir := dataDir(t, file)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), endlessEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, how := range []string{"open", "check", "restore"} {
		if line := how + ": "; !strings.Contains(string(out), line) || strings.Contains(string(out), line+"<nil>") {
			t.Errorf("%s was not refused: %s", how, out)
		}
	}
}
