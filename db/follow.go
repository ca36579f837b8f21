package db

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/changelog"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

const (
	// followAgain is the pause after following has failed.
	followAgain = 200 * time.Millisecond
	// beginTimeout bounds the requests before following begins, so that readers learn why it does
	// not begin.
	beginTimeout = 5 * time.Second
	// followable is how many missed changes a copy always follows, however few objects it has: other
	// programs may share the store, and raise its revision.
	followable = 10_000
)

// run follows the store until the database is closed.
func (m *mirror) run() {
	defer m.db.wg.Done()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-m.db.stop
		cancel()
	}()
	m.db.wg.Go(func() { m.mendDamaged(ctx) })
	for {
		err := m.follow(ctx)
		select {
		case <-m.db.stop:
			return
		default:
		}
		if err == nil {
			continue
		}
		known := false
		m.set(func() { m.fault, known, m.unsure = err, m.fault != nil, true })
		if !known {
			m.db.log.Error("the copy lags behind the shared store: following the store failed, will retry", "dir", m.db.dir, "err", err)
		}
		select {
		case <-m.db.clock.After(followAgain):
		case <-m.db.stop:
			return
		}
	}
}

// mendDamaged fetches damaged values again, one at a time, until ctx is done.
func (m *mirror) mendDamaged(ctx context.Context) {
	for {
		select {
		case d := <-m.db.damaged:
			mended, err := m.mend(ctx, d.Key, d.Rev)
			if mended {
				m.db.log.Error("a value of the copy was damaged, and has been fetched again: check the disk", "file", m.db.path, "key", d.Key)
				continue
			}
			if err != nil {
				m.db.log.Error("a value of the copy is damaged, and cannot be fetched again", "file", m.db.path, "key", d.Key, "err", err)
			}
			select { // pause, so that repeated reads of a damaged value do not keep the store busy
			case <-m.db.clock.After(followAgain):
			case <-ctx.Done():
			}
		case <-ctx.Done():
			return
		}
	}
}

// mend replaces the value of a revision with the store's. It does nothing if the store has a later
// revision, which follow will apply.
func (m *mirror) mend(ctx context.Context, key string, rev int64) (mended bool, err error) {
	page, _, _, err := m.store.Range(ctx, key, 0)
	if err != nil || len(page) == 0 || page[0].Key != key || page[0].Rev != rev {
		return false, err
	}
	m.noteUnreadable(page[0])
	err = m.db.write(ctx, func(t *tx) error {
		n, err := t.c.Exec("INSERT OR REPLACE INTO contents (rev, sum, value) SELECT rev, ?3, ?4 FROM revisions WHERE rev = ?1 AND key = ?2",
			rev, key, checksum(page[0]), page[0].Value)
		mended = n > 0 && page[0].Unreadable == nil
		return err
	})
	return mended && err == nil, err
}

// checksum returns the checksum that the file stores for the value of a change.
func checksum(c truth.Change) int64 {
	if c.Unreadable != nil {
		return datafile.UnreadableSum(c.Key, c.Value)
	}
	return datafile.Checksum(c.Key, c.Value)
}

// noteUnreadable logs when the store cannot read a key's value, and when it can again. Readers of
// this key get an error; other keys are not delayed.
func (m *mirror) noteUnreadable(c truth.Change) {
	if c.Unreadable == nil {
		m.unreadable.End(c.Key, "A key in etcd can be read again, or is gone", "key", c.Key, "revision", c.Rev)
		return
	}
	m.db.metrics.damaged.Inc()
	m.unreadable.Begin(c.Key, "A value in etcd cannot be read; all other keys are served: write it again or delete it there", "key", c.Key, "revision", c.Rev, "err", c.Unreadable)
}

// works clears the fault after following has succeeded.
func (m *mirror) works() {
	m.mu.Lock()
	fault := m.fault
	m.fault = nil
	m.mu.Unlock()
	if fault != nil {
		m.db.log.Info("the copy follows the shared store again", "dir", m.db.dir)
	}
}

// follow applies changes until that fails.
func (m *mirror) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	filling, from, filled := m.filling, m.applied, m.applied == m.filledAt
	m.stopFollowing = cancel
	m.mu.Unlock()
	if filling {
		return m.begin(ctx)
	}
	if !filled {
		much, err := m.missesMuch(ctx, from)
		if err != nil {
			return err
		}
		if much {
			m.db.log.Info("the copy lacks more changes of the shared store than it has objects: it is filled again, and watches restart", "dir", m.db.dir)
			m.refill(false)
			return nil
		}
	}
	err := m.store.Follow(ctx, from, func(changes []truth.Change, upTo int64) error { return m.apply(ctx, changes, upTo) })
	if errors.Is(err, ErrCompacted) || errors.Is(err, truth.ErrReplaced) || errors.Is(err, errTogether) {
		m.db.log.Warn("the copy cannot continue to follow the shared store: it is filled again, and watches restart", "dir", m.db.dir, "err", err)
		m.refill(errors.Is(err, truth.ErrReplaced))
		return nil
	}
	return err
}

// missesMuch reports whether the store has more changes after a revision than the copy has objects.
// Then a fill, which reads pages of objects, costs less than all these changes: kine sends them in
// one message, and reports nothing until it has read all of them.
func (m *mirror) missesMuch(ctx context.Context, from int64) (bool, error) {
	asking, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	head, err := m.store.Head(asking)
	if err != nil || head-from <= followable {
		return false, err
	}
	var objects int64
	err = m.db.read(ctx, func(c *sqlite.Conn) (err error) {
		objects, _, err = c.First("SELECT coalesce(sum(objects), 0) FROM directories")
		return err
	})
	return head-from > objects, err
}

// errTogether: a program other than our servers has changed several keys at one revision.
var errTogether = errors.New("several keys were changed at one revision")

// apply writes changes to the file, which then is at revision upTo.
func (m *mirror) apply(ctx context.Context, changes []truth.Change, upTo int64) error {
	entries := make([][]IndexEntry, len(changes))
	known := make([]bool, len(changes))
	for i, c := range changes {
		entries[i], known[i] = m.entries(c) // slow, so not in the writer's transaction
	}
	err := m.db.write(ctx, func(t *tx) error {
		base := t.rev
		for i, c := range changes {
			if c.Rev <= base {
				continue
			}
			if c.Rev <= t.rev {
				return fmt.Errorf("%w: %d, by %s and another", errTogether, c.Rev, c.Key)
			}
			if !known[i] {
				if entries[i], known[i] = m.entries(c); !known[i] {
					if err := t.reindexFrom(c); err != nil {
						return err
					}
				}
			}
			if err := t.apply(c, entries[i]); err != nil {
				return err
			}
		}
		t.rev = max(t.rev, upTo)
		return nil
	})
	if err != nil {
		return err
	}
	m.works()
	m.set(func() { m.applied = max(m.applied, upTo) })
	for _, c := range changes {
		m.noteUnreadable(c)
	}
	return nil
}

// apply applies a change that the store has accepted.
func (t *tx) apply(c truth.Change, entries []IndexEntry) error {
	have, _, err := t.c.First("SELECT rev FROM revisions WHERE key = ? AND until IS NULL", c.Key)
	if err != nil {
		return err
	}
	t.rev = c.Rev - 1 // the next revision is the change's
	switch {
	case !c.Deleted:
		_, err = t.putSum(c.Key, have, c.Value, checksum(c), c.Expires, entries)
	case have != 0:
		_, err = t.delete(c.Key, have)
	default:
		t.rev = c.Rev
	}
	return err
}

// entries returns the index entries of a change. known is false if no indexes have been declared
// for its key yet.
func (m *mirror) entries(c truth.Change) (entries []IndexEntry, known bool) {
	if c.Deleted {
		return nil, true
	}
	m.mu.Lock()
	own := m.pending[c.Key]
	m.mu.Unlock()
	if own != nil && c.Unreadable == nil && bytes.Equal(own.value, c.Value) {
		return own.entries, true
	}
	d := m.db.indexesFor(c.Key)
	if d == nil {
		return nil, false
	}
	return m.db.indexed(KV{Key: c.Key, Rev: c.Rev, Value: c.Value, Err: c.Unreadable}, d.entries, d.indexes), true
}

// reindexFrom is for a change of a key whose indexes are not declared yet. It marks complete
// indexes as incomplete: once they are declared, they are built from this change on.
func (t *tx) reindexFrom(c truth.Change) error {
	_, err := t.c.Exec("UPDATE indexes SET built = ?1 WHERE built = ?2 AND prefix = substr(?3, 1, length(prefix))", c.Rev-1, int64(complete), c.Key)
	return err
}

// refuseMirror fails if the file is a copy of a store, because such a file must not be written
// without its store.
func refuseMirror(c *sqlite.Conn, path string) error {
	if copied, err := datafile.IsMirror(c); err != nil || !copied {
		return err
	}
	return fmt.Errorf("%s is a copy of an etcd that several servers share, and must not be written without it: use --etcd-servers and --etcd-prefix as its server does, or another data directory", path)
}

// checkOwn fails if the file is not a copy and has objects.
func (m *mirror) checkOwn(c *sqlite.Conn) error {
	copied, err := datafile.IsMirror(c)
	if err == nil && !copied && m.applied > 1 {
		err = fmt.Errorf("%s has objects of its own, which no other server has: move them (tidewaiter migrate --to-etcd), or give a server with --etcd-servers another data directory", m.db.path)
	}
	return err
}

// begin continues from the file if it is a copy of the store, and fills it otherwise.
func (m *mirror) begin(ctx context.Context) error {
	asking, cancel := context.WithTimeout(ctx, beginTimeout)
	defer cancel()
	id, err := m.store.Identity(asking)
	if err != nil {
		return err
	}
	head, err := m.store.Head(asking)
	if err != nil {
		return err
	}
	var was, filled int64
	err = m.db.read(ctx, func(c *sqlite.Conn) (err error) {
		if was, _, err = c.First(readMeta, datafile.MirrorMeta); err == nil {
			filled, _, err = c.First(readMeta, datafile.FilledMeta)
		}
		return err
	})
	if err != nil {
		return err
	}
	m.mu.Lock()
	applied, mustFill, replaced := m.applied, m.mustFill, m.replaced
	m.mu.Unlock()
	if was == id && filled > 0 && !mustFill && head >= applied {
		sharesHistory, err := m.sharesHistory(asking, applied)
		if err != nil {
			return err
		}
		if sharesHistory {
			m.works()
			m.set(func() { m.filling = false })
			return nil
		}
		replaced = true
		m.db.log.Warn("the shared store was restored and has a different history: the copy is filled again, and watches restart", "dir", m.db.dir, "revision", head)
	}
	return m.fill(ctx, id, replaced)
}

// sharesHistory reports whether the store's history contains the file's last change, at revision
// rev. A store that was restored in place has the same identity, and may have a higher revision
// with other changes.
func (m *mirror) sharesHistory(ctx context.Context, rev int64) (bool, error) {
	var last truth.Change
	var sum int64
	err := m.db.read(ctx, func(c *sqlite.Conn) error {
		return c.Each(func(row []driver.Value) error {
			last.Key, last.Rev, sum = row[0].(string), row[1].(int64), row[2].(int64)
			return nil
		}, "SELECT r.key, r.rev, c.sum FROM revisions r JOIN contents c ON c.rev = r.rev WHERE r.until IS NULL ORDER BY r.rev DESC LIMIT 1")
	})
	if err != nil || last.Rev == 0 {
		return err == nil, err
	}
	page, _, _, err := m.store.Range(ctx, last.Key, rev)
	if errors.Is(err, truth.ErrCompacted) {
		return true, nil // follow detects this, too
	}
	return len(page) > 0 && page[0].Key == last.Key && page[0].Rev == last.Rev && checksum(page[0]) == sum, err
}

// fill makes the file a copy of the store at one revision. Objects that are equal stay; the history
// begins at that revision. Until it ends, nothing can be read. replaced is true if the store's
// history differs from the file's.
func (m *mirror) fill(ctx context.Context, id int64, replaced bool) error {
	d := m.db
	begun := d.clock.Now()
	page, rev, more, err := m.store.Range(ctx, "", 0)
	if err != nil {
		return err
	}
	if err := m.beginFill(ctx, id, rev, replaced); err != nil {
		return err
	}
	read, written, from := 0, 0, ""
	for {
		read += len(page)
		end := prefixEnd("")
		if more {
			end = page[len(page)-1].Key + "\x00"
		}
		n, together, err := m.fillRange(ctx, from, end, page)
		if err == nil {
			err = m.writeAlone(ctx, together)
		}
		if err != nil {
			return err
		}
		for _, c := range page {
			m.noteUnreadable(c)
		}
		written += n
		if !more {
			break
		}
		from = end
		if page, _, more, err = m.store.Range(ctx, from, rev); err != nil {
			return err
		}
	}
	err = d.write(ctx, func(t *tx) error {
		for name, value := range map[string]int64{"compacted": rev, "swept": rev, datafile.FilledMeta: rev} {
			if err := t.setMeta(name, value); err != nil {
				return err
			}
		}
		t.rev = rev
		return nil
	})
	if err != nil {
		return err
	}
	m.works()
	m.set(func() {
		m.applied, m.known, m.unsure, m.filling, m.mustFill, m.replaced, m.fills = rev, rev, false, false, false, false, m.fills+1
		m.filledAt = rev
	})
	d.log.Info("the copy has been filled", "dir", d.dir, "revision", rev, "objects", read, "written", written, "took", d.clock.Now().Sub(begun).String())
	return nil
}

const readMeta = "SELECT value FROM meta WHERE name = ?"

func (t *tx) setMeta(name string, value int64) error {
	_, err := t.c.Exec("INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = ?2", name, value)
	return err
}

// fillRows bounds the rows that one step of fill removes.
const fillRows = 500

// beginFill ends all watches, and removes the history. If the file was a copy of another store, it
// removes everything.
func (m *mirror) beginFill(ctx context.Context, id, rev int64, replaced bool) error {
	d := m.db
	same := false
	err := d.write(ctx, func(t *tx) error {
		was, _, err := t.c.First(readMeta, datafile.MirrorMeta)
		if err != nil {
			return err
		}
		if rev < t.rev || rev == t.rev && (was != id && was != 0 || replaced) {
			return fmt.Errorf("the store is at revision %d, and was at %d: it was restored, so revisions that clients hold are no longer valid. "+
				"Restore it with etcdutl snapshot restore --bump-revision 1000000000 --mark-compacted; or stop all servers, remove the database in their data directories, and start all clients again", rev, t.rev)
		}
		same = was == id
		return errors.Join(t.setMeta(datafile.MirrorMeta, id), t.setMeta(datafile.FilledMeta, 0))
	})
	if err != nil {
		return err
	}
	d.compacted.Store(rev) // readers of earlier revisions must start again
	d.changes.Restart(rev)
	gone := "until IS NOT NULL"
	if !same {
		gone = "1"
	}
	for removed := fillRows; removed == fillRows; {
		err := d.write(ctx, func(t *tx) (err error) {
			removed, err = t.removeAll("SELECT rev, key, size, until IS NULL FROM revisions WHERE "+gone+" LIMIT ?", int64(fillRows))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// removeAll removes the revisions that a query selects: rev, key, size, and whether it is live.
func (t *tx) removeAll(query string, args ...any) (removed int, err error) {
	type row struct {
		rev, size int64
		key       string
		live      bool
	}
	var rows []row
	err = t.c.Each(func(r []driver.Value) error {
		rows = append(rows, row{r[0].(int64), r[2].(int64), r[1].(string), r[3].(int64) != 0})
		return nil
	}, query, args...)
	for _, r := range rows {
		if err != nil {
			break
		}
		if err = t.remove(r.rev); err == nil && r.live {
			t.deltas = append(t.deltas, delta{dir: directory(r.key), objects: -1, bytes: -r.size})
			gone := &changelog.Event{Key: r.key, Rev: r.rev, Deleted: true}
			t.after = append(t.after, func() { t.db.live.commit([]*changelog.Event{gone}) })
		}
	}
	return len(rows), err
}

// writeAlone writes keys again that another program wrote in one transaction, so that each key gets
// a revision of its own. follow then applies them.
func (m *mirror) writeAlone(ctx context.Context, together []truth.Change) error {
	for _, c := range together {
		m.db.log.Warn("Two keys in etcd have the same revision: writing this one again. Let only these servers write below the prefix", "key", c.Key, "revision", c.Rev)
		if c.Unreadable != nil {
			return fmt.Errorf("%s cannot be read, and has the revision of another key: delete it in etcd: %w", c.Key, c.Unreadable)
		}
		if _, err := m.store.Put(ctx, c.Key, c.Rev, c.Value, c.Expires); err != nil && !errors.Is(err, ErrConflict) { // on ErrConflict it has another revision by now
			return fmt.Errorf("writing %s again: %w", c.Key, err)
		}
	}
	return nil
}

// fillRange makes the keys between from and end equal to a page, and returns how many it has
// written. It skips keys whose revision another key has, and returns them in together.
func (m *mirror) fillRange(ctx context.Context, from, end string, page []truth.Change) (written int, together []truth.Change, err error) {
	err = m.db.write(ctx, func(t *tx) error {
		written, together = 0, nil
		base, events := t.rev, len(t.events)
		type version struct{ rev, sum int64 }
		want := make(map[string]version, len(page))
		for _, c := range page {
			want[c.Key] = version{c.Rev, checksum(c)}
		}
		have := map[string]bool{}
		var stale []int64
		err := t.c.Each(func(row []driver.Value) error {
			key, rev := row[0].(string), row[1].(int64)
			sum, _ := row[2].(int64) // NULL, for a missing value, never matches
			if have[key] = want[key] == (version{rev, sum}); !have[key] {
				stale = append(stale, rev)
			}
			return nil
		}, "SELECT r.key, r.rev, c.sum FROM revisions r INDEXED BY live LEFT JOIN contents c ON c.rev = r.rev WHERE r.until IS NULL AND r.key >= ? AND r.key < ?", from, end)
		for _, rev := range stale {
			if err == nil {
				_, err = t.removeAll("SELECT rev, key, size, 1 FROM revisions WHERE rev = ?", rev)
			}
		}
		for _, c := range page {
			if err != nil {
				return err
			}
			if have[c.Key] {
				continue
			}
			if _, taken, err := t.c.First("SELECT 1 FROM revisions WHERE rev = ?", c.Rev); err != nil {
				return err
			} else if taken {
				together = append(together, c)
				continue
			}
			entries, known := m.entries(c)
			if !known {
				if err = t.reindexFrom(truth.Change{Key: c.Key, Rev: 1}); err != nil {
					return err
				}
			}
			t.rev = c.Rev - 1
			_, err = t.putSum(c.Key, 0, c.Value, checksum(c), c.Expires, entries)
			written++
		}
		if err != nil {
			return err
		}
		// Watchers do not get these puts, because no watch continues across a fill.
		put := t.events[events:]
		t.rev, t.events = base, t.events[:events]
		t.after = append(t.after, func() { m.db.live.commit(put) })
		return nil
	})
	return written, together, err
}

// Filled waits until a database that is a copy has all changes that the store has now. It waits for
// as long as that takes, and logs why.
func (d *DB) Filled(ctx context.Context) error {
	m, ok := d.authority.(*mirror)
	if !ok {
		return nil
	}
	for {
		_, err := m.catchUp(ctx, 0)
		var unavailable *datafile.UnavailableError
		if !errors.As(err, &unavailable) {
			return err
		}
		d.log.Warn("the server waits until its copy has all changes of the shared store", "dir", d.dir, "err", unavailable.Err)
	}
}
