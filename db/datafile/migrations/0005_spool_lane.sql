-- Jobs are claimed by lane, so that no lane waits behind another's jobs. A job's
-- lane is its key up to the first slash: the registry.
ALTER TABLE spool_jobs ADD COLUMN lane TEXT NOT NULL GENERATED ALWAYS AS (substr(key, 1, instr(key || '/', '/') - 1)) VIRTUAL;
-- To find the lanes that have jobs waiting, and the jobs of one in order.
CREATE INDEX spool_lane ON spool_jobs (state, lane, due, id);
