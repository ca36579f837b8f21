package db

import (
	"database/sql/driver"
	"fmt"
	"math"
	"strings"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// indexedRange describes a page of the keys that index queries find.
type indexedRange struct {
	prefix, from, end string // of all keys; the first key; after the last key
	limit             int64  // rows
	rev               int64  // as of this revision
	index             []IndexQuery
	keysOnly          bool
}

// An index has the order of revisions, but a range has the order of keys. If the values of the
// first query have few revisions, these are collected and sorted, together with matching rows that
// are not in index_entries yet. If they have many, then many of the next keys match: so rows are
// read in the order of keys, and the reader compares each row's own index entries. If a query has
// few values, SQL first drops rows whose entries lack the bytes of these values.
const (
	rangeSparse = `SELECT key, rev, indexed FROM (
		SELECT r.key AS key, r.rev AS rev, %[3]s AS indexed FROM index_entries e CROSS JOIN revisions r ON r.rev = e.rev
			WHERE e.id = ?3 AND %[1]s AND e.rev <= min(?4, (SELECT value FROM meta WHERE name = 'indexed'))
			AND r.key >= ?1 AND r.key < ?2 AND (r.until IS NULL OR r.until > ?4)
		UNION ALL
		SELECT key, rev, indexed FROM revisions NOT INDEXED
			WHERE %[4]s rev > (SELECT value FROM meta WHERE name = 'indexed') AND rev <= ?4
			AND key >= ?1 AND key < ?2 AND (until IS NULL OR until > ?4) AND indexed IS NOT NULL%[2]s
		ORDER BY key LIMIT -1)`
	rangeDense = `SELECT key, rev, indexed FROM (
		SELECT key, rev, indexed FROM revisions INDEXED BY live
			WHERE until IS NULL AND key >= ?1 AND key < ?2 AND rev <= ?4 AND indexed IS NOT NULL%[1]s
		UNION ALL
		SELECT key, rev, indexed FROM %[2]s AND key >= ?1 AND key < ?2 AND rev <= ?4 AND indexed IS NOT NULL%[1]s
		ORDER BY key LIMIT -1)`
	withIndexedValues = `SELECT s.key, s.rev, c.sum, c.value, s.indexed FROM (%s) s CROSS JOIN contents c ON c.rev = s.rev`
)

// fewMatches is the largest number of revisions that are collected and sorted for a page of limit
// rows (rangeSparse). Collecting m revisions takes m steps. Reading keys until a page is full takes
// limit * objects / m steps, each about twice as long. A variable for tests.
var fewMatches = func(limit, objects int64) int64 {
	return int64(math.Sqrt(2 * float64(limit) * float64(objects)))
}

// fewValues is the largest number of values for which SQL searches. Each costs about as much as
// passing the row to Go.
const fewValues = 2

// maxLatest bounds the revisions that a statement names, and maxLatestValues the values of a query
// that are searched in memory. Each value takes 20 µs in 256 rows.
const maxLatest, maxLatestValues = 64, 16

// latest returns the revisions that may have an entry of a query and are not in index_entries yet.
// known is false if all such revisions must be searched.
func (d *DB) latest(c *sqlite.Conn, q IndexQuery) (revs []int64, known bool, err error) {
	if d.tail == nil || q.Part != "" || len(q.Values) > maxLatestValues {
		return nil, false, nil
	}
	indexed, _, err := c.First("SELECT value FROM meta WHERE name = 'indexed'")
	if err != nil {
		return nil, false, err
	}
	entries := make([][]byte, len(q.Values))
	for i, value := range q.Values {
		entries[i] = indexedValues{{q.Index.id, value}}.pack()
	}
	revs, known = d.tail.find(indexed, entries, maxLatest)
	return revs, known, nil
}

// parameters makes each revision an argument, and pads them to 4, 16 or 64 arguments with revision
// 0, which no row has. So a statement has few different texts.
func parameters(revs []int64, argument func(any) string) (names []string) {
	for n := 4; len(names) == 0 || len(names) < len(revs); n *= 4 {
		for len(names) < n {
			rev := int64(0)
			if len(names) < len(revs) {
				rev = revs[len(names)]
			}
			names = append(names, argument(rev))
		}
	}
	return names
}

// indexFilter has the values of some queries, by index.
type indexFilter []struct {
	id     int64
	values map[string]bool
	part   string // in lower case; "" for values
}

func newIndexFilter(queries []IndexQuery) (f indexFilter) {
	f = make(indexFilter, len(queries))
	for i, q := range queries {
		f[i].id, f[i].values, f[i].part = q.Index.id, map[string]bool{}, q.part()
		for _, value := range q.Values {
			f[i].values[value] = true
		}
	}
	return f
}

// matches reports whether packed entries have a value of each query.
func (f indexFilter) matches(packed []byte) (bool, error) {
	var found uint64 // a bit for each query
	err := eachPacked(packed, func(id int64, value []byte) {
		for i := range f {
			if f[i].id == id && f.has(i, value) {
				found |= 1 << i
			}
		}
	})
	return found == 1<<len(f)-1, err
}

func (f indexFilter) has(i int, value []byte) bool {
	if f[i].part != "" {
		return strings.Contains(lower(string(value)), f[i].part)
	}
	return f[i].values[string(value)]
}

// part is q.Part as the function lower of SQL writes it.
func (q IndexQuery) part() string { return lower(q.Part) }

// lower works like SQL's function lower: it changes only ASCII letters.
func lower(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, text)
}

// eachIndexed calls take with the rows of a range: key and revision and, unless only keys are
// requested, checksum and value.
func (d *DB) eachIndexed(c *sqlite.Conn, take func(row []driver.Value) error, r indexedRange) error {
	first := r.index[0]
	if len(first.Values) == 0 && first.Part == "" {
		return nil
	}
	objects, _, err := c.First("SELECT sum(objects) FROM directories WHERE dir >= ? AND dir < ?", r.prefix, r.end)
	if err != nil {
		return err
	}
	few := fewMatches(r.limit, objects)
	args := []any{r.from, r.end, first.Index.id, r.rev}
	argument := func(value any) string { // returns the parameter's name
		args = append(args, value)
		return fmt.Sprint("?", len(args))
	}
	var found string
	if first.Part != "" {
		found = fmt.Sprintf("instr(lower(e.value), %s) > 0", argument(first.part()))
	} else {
		var values []string
		for _, value := range first.Values {
			values = append(values, argument(value))
		}
		found = fmt.Sprintf("e.value IN (%s)", strings.Join(values, ", "))
	}
	count := fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM index_entries e WHERE e.id = ?3 AND %s LIMIT %d)", found, few+1)
	matches, _, err := c.First(count, args...)
	if err != nil {
		return err
	}
	dense := matches > few
	if dense {
		args = args[:4]
	}
	has := ""
	for _, q := range r.index {
		if q.Part != "" {
			has += fmt.Sprintf(" AND instr(lower(indexed), %s) > 0", argument(q.part()))
			continue
		}
		if len(q.Values) > fewValues {
			continue
		}
		var any []string
		for _, value := range q.Values {
			any = append(any, fmt.Sprintf("instr(indexed, %s) > 0", argument(indexedValues{{q.Index.id, value}}.pack())))
		}
		has += fmt.Sprintf(" AND (%s)", strings.Join(append(any, "FALSE"), " OR "))
	}
	sql := fmt.Sprintf(rangeDense, has, d.superseded(r.rev))
	if !dense {
		indexed := "NULL" // the entry was found
		if len(r.index) > 1 {
			indexed = "r.indexed"
		}
		among := ""
		if revs, known, err := d.latest(c, first); err != nil {
			return err
		} else if known {
			among = fmt.Sprintf("rev IN (%s) AND", strings.Join(parameters(revs, argument), ", "))
		}
		sql = fmt.Sprintf(rangeSparse, found, has, indexed, among)
	}
	if !r.keysOnly {
		sql = fmt.Sprintf(withIndexedValues, sql)
	}
	filter := newIndexFilter(r.index)
	var before driver.Value // the last key: it may have several of the values
	return c.Each(func(row []driver.Value) error {
		last := len(row) - 1
		if row[0] == before {
			return nil
		}
		if packed, ok := row[last].([]byte); ok { // else found in index_entries
			if ok, err := filter.matches(packed); err != nil || !ok {
				return err
			}
		}
		before = row[0]
		return take(row[:last])
	}, sql, args...)
}
