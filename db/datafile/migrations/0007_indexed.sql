-- Index entries are written later than the revisions that have them, many at a time. "indexed" is the revision up to which
-- index_entries is complete; later rows of revisions tell their own entries.
INSERT INTO meta SELECT 'indexed', value FROM meta WHERE name = 'revision';
