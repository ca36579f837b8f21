-- Whether the last attempt of a job failed because the registry could not be read, and not for what
-- is there.
ALTER TABLE spool_jobs ADD COLUMN unread INTEGER NOT NULL DEFAULT 0;
