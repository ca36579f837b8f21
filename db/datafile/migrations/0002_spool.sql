-- Work to be done once and not lost: see Spool. A job is a key with the
-- payloads that wait for it.
CREATE TABLE spool_jobs (
  id       INTEGER PRIMARY KEY AUTOINCREMENT, -- never given out twice
  key      TEXT    NOT NULL,           -- jobs of one key are done one at a time
  source   TEXT    NOT NULL,           -- who asked first
  state    TEXT    NOT NULL CHECK (state IN ('waiting', 'leased', 'dead')),
  due      INTEGER NOT NULL,           -- Unix milliseconds: waiting until, leased until, or dead since
  enqueued INTEGER NOT NULL,           -- Unix milliseconds of the first request
  latest   INTEGER NOT NULL,           -- and of the latest
  payloads INTEGER NOT NULL,           -- rows of spool_payloads
  attempts INTEGER NOT NULL DEFAULT 0, -- leases since the job was last told to start afresh
  leases   INTEGER NOT NULL DEFAULT 0, -- leases ever: tells a holder of the present one from one of an earlier
  error    TEXT    NOT NULL DEFAULT '' -- of the last attempt
);
CREATE INDEX spool_due ON spool_jobs (state, due, id);
CREATE INDEX spool_key ON spool_jobs (key, state);

CREATE TABLE spool_payloads (
  seq     INTEGER PRIMARY KEY,         -- order of arrival
  job     INTEGER NOT NULL,
  payload BLOB    NOT NULL,
  UNIQUE (job, payload)
);

-- Hashes of the event IDs taken in the last 24 hours, oldest first.
CREATE TABLE spool_seen (
  seq INTEGER PRIMARY KEY,
  id  BLOB    NOT NULL UNIQUE,
  at  INTEGER NOT NULL                 -- Unix milliseconds
);

-- The number of payloads, kept with each change so that the bound costs no scan.
INSERT INTO meta VALUES ('spooled', 0);
CREATE TRIGGER spool_payload_added AFTER INSERT ON spool_payloads BEGIN
  UPDATE meta SET value = value + 1 WHERE name = 'spooled';
END;
CREATE TRIGGER spool_payload_removed AFTER DELETE ON spool_payloads BEGIN
  UPDATE meta SET value = value - 1 WHERE name = 'spooled';
END;
