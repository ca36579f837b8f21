-- Facts about the whole store: "revision" is the last revision given out,
-- "compacted" the oldest one that can still be listed, "swept" how far the
-- removal of what compaction freed has come.
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO meta VALUES ('revision', 1), ('compacted', 0), ('swept', 0);

-- One row for every change of a key inside the history window, and for every
-- live object. The bytes are apart, in contents, so that superseding a
-- revision (setting until) rewrites a small row.
CREATE TABLE revisions (
  rev        INTEGER PRIMARY KEY,
  key        TEXT    NOT NULL,
  create_rev INTEGER NOT NULL, -- revision that created the key's present life
  prev_rev   INTEGER NOT NULL, -- revision this one superseded, 0 for a creation
  until      INTEGER,          -- revision that superseded it; NULL while live; rev itself for a deletion
  at         INTEGER NOT NULL, -- Unix milliseconds
  size       INTEGER NOT NULL, -- bytes of the value
  expires    INTEGER,          -- Unix milliseconds, NULL for never
  indexed    BLOB              -- index entries of this revision, as in index.go
);
CREATE UNIQUE INDEX live    ON revisions (key)        WHERE until IS NULL;
CREATE INDEX        history ON revisions (key, until) WHERE until IS NOT NULL;
CREATE INDEX        expiry  ON revisions (expires)    WHERE until IS NULL AND expires IS NOT NULL;

-- "sum" is the CRC-32C of key and value: SQLite itself has no checksums, and a
-- flipped bit in a value would go unseen.
CREATE TABLE contents (rev INTEGER PRIMARY KEY, sum INTEGER NOT NULL, value BLOB NOT NULL);

-- Live objects and their bytes by directory (the key up to its last slash),
-- kept with each commit so that counting never scans.
CREATE TABLE directories (
  dir     TEXT PRIMARY KEY,
  objects INTEGER NOT NULL,
  bytes   INTEGER NOT NULL
) WITHOUT ROWID;

-- Secondary indexes declared by the owners of a key prefix, and their entries.
-- An entry lives as long as its revision's row.
CREATE TABLE indexes (
  id     INTEGER PRIMARY KEY AUTOINCREMENT,
  prefix TEXT    NOT NULL,
  name   TEXT    NOT NULL,
  built  INTEGER NOT NULL, -- revisions up to this one are indexed; -1 when complete
  UNIQUE (prefix, name)
);
CREATE TABLE index_entries (
  id    INTEGER NOT NULL,
  value TEXT    NOT NULL,
  key   TEXT    NOT NULL,
  rev   INTEGER NOT NULL,
  PRIMARY KEY (id, value, key, rev)
) WITHOUT ROWID;

-- The stable base of every view: live objects as text.
CREATE VIEW objects AS
SELECT r.key AS key, r.rev AS resource_version, r.expires AS expires, CAST(c.value AS TEXT) AS value
FROM revisions r JOIN contents c ON c.rev = r.rev
WHERE r.until IS NULL;
