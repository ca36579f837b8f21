-- When a registry last confirmed where a reference leads. What changes is kept
-- elsewhere: a row costs less than a revision of an object, and wakes nobody.
CREATE TABLE checks (
  reference TEXT PRIMARY KEY,
  digest    TEXT    NOT NULL,
  at        INTEGER NOT NULL           -- Unix milliseconds
) WITHOUT ROWID;
-- To find those that are old.
CREATE INDEX check_age ON checks (at);
