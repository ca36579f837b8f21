package db

import (
	"context"
	"fmt"
)

// What the file may hold beyond what it needs.
const (
	// freeReserve pages stay free for the next writes, or a twentieth of the file.
	freeReserve = 256
	// vacuumPages are given back in one step, which holds the writer.
	vacuumPages = 64
)

// shrink gives free pages back to the file system, so that the file follows
// the live data.
func (d *DB) shrink(ctx context.Context) error {
	for {
		again := false
		err := d.write(ctx, func(t *tx) error {
			free, _, err := t.c.First("PRAGMA freelist_count")
			if err != nil {
				return err
			}
			pages, _, err := t.c.First("PRAGMA page_count")
			if err != nil {
				return err
			}
			keep := max(freeReserve, pages/20)
			if d.space.disk.Load() != nil {
				keep = 0
			}
			excess := free - keep
			if excess <= 0 {
				return nil
			}
			again = excess > vacuumPages
			return t.c.Run(fmt.Sprintf("PRAGMA incremental_vacuum(%d)", min(excess, vacuumPages)))
		})
		if err != nil {
			return err
		}
		if !again {
			break
		}
	}
	return nil
}
