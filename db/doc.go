// Package db is a store of revisioned keys and values in one SQLite file. It does not interpret the
// values.
//
// [Open] locks a data directory for this process. [DB.Put] and [DB.Delete] change a key that is at
// a known revision, [DB.Get] and [DB.Range] read the newest state, [DB.GetAt] and [DB.Range] read a
// recent revision, and [DB.Watch] follows the changes.
//
// What it promises:
//
//   - One revision counter over all keys, never going back, one revision for
//     each change.
//   - A write that was acknowledged is in the log on the disk (WAL with synchronous=FULL) and
//     survives the process and the machine. A write that failed has no effect.
//   - Any revision inside the history window can be listed, exactly as it was, and watched from,
//     without a lost or doubled event. Reads of earlier revisions fail with [ErrCompacted].
//   - Bounded memory: pages, batches, queues and the changelog have limits, and a slow watcher
//     holds only its position.
//
// How it is built, and why, is in docs/design/storage.md. In short: one goroutine owns the writing
// connection and commits waiting writers together; readers have connections of their own and never
// wait for it. Values and revisions are in different tables, so that superseding a revision
// rewrites a small row. Live keys and history have a partial index each, so that a list reads only
// what it returns.
//
// Caveats: keys are UTF-8 text of at most [MaxKeySize] bytes, ordered by their bytes. Values are
// not copied: neither the writer nor a reader may change one. The file belongs to one process at a
// time; others may read it with the sqlite3 shell, through the view objects and the views declared
// in [Options].
package db
