-- The receivers of a lane take turns: its jobs are found by receiver.
DROP INDEX spool_lane;
CREATE INDEX spool_lane ON spool_jobs (state, lane, source, due, id);
