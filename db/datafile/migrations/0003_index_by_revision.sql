-- An index keeps the revisions of a value in the order in which they were
-- written, not in the order of their keys. Most values of an index are shared by
-- many objects, whose keys may be in no order at all, as digests: what is written
-- for each object then goes to the same few pages, whatever the number of
-- objects, and an entry does not repeat the key.
ALTER TABLE index_entries RENAME TO index_entries_by_key;
CREATE TABLE index_entries (
  id    INTEGER NOT NULL,
  value TEXT    NOT NULL,
  rev   INTEGER NOT NULL,
  PRIMARY KEY (id, value, rev)
) WITHOUT ROWID;
INSERT INTO index_entries SELECT id, value, rev FROM index_entries_by_key ORDER BY id, value, rev;
DROP TABLE index_entries_by_key;
