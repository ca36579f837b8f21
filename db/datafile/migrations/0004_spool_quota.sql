-- The spool is bounded for each source, so that one cannot fill it for the
-- others. Payloads are counted by source, which needs no scan. Before, one bound
-- held for all.
DROP TRIGGER spool_payload_added;
DROP TRIGGER spool_payload_removed;
DELETE FROM meta WHERE name = 'spooled';
CREATE TABLE spool_sources (source TEXT PRIMARY KEY, payloads INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO spool_sources SELECT source, sum(payloads) FROM spool_jobs GROUP BY source;
-- To find the job of a source that gives way to a new one.
CREATE INDEX spool_source ON spool_jobs (source, state, latest, id);
