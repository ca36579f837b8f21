-- One row for each stretch of time in which a workload ran an image. ended is NULL while it runs. gaps counts the
-- times in which its cluster could not be seen, and unseen_seconds adds up those that are over; one that goes on
-- began at unseen_since. Those of a stretch that goes on are in clusters alone.
SELECT
  value ->> '$.spec.cluster'              AS cluster,
  value ->> '$.metadata.namespace'        AS namespace,
  value ->> '$.spec.workload'             AS workload,
  value ->> '$.spec.container'            AS container,
  value ->> '$.spec.image'                AS image,
  value ->> '$.spec.digest'               AS digest,
  value ->> '$.spec.platform'             AS platform,
  value ->> '$.spec.from'                 AS began,
  value ->> '$.status.until'              AS ended,
  value ->> '$.status.mostPods'           AS most_pods,
  coalesce(value ->> '$.status.admission', 'Unknown') AS admission,
  value ->> '$.status.verdicts[0].verified'   AS verified_first,
  value ->> '$.status.verdicts[#-1].verified' AS verified_last,
  (SELECT count(*) FROM json_each(o.unseen) g
    WHERE g.value ->> '$.until' IS NULL OR g.value ->> '$.until' > o.value ->> '$.spec.from') AS gaps,
  (SELECT coalesce(sum(unixepoch(g.value ->> '$.until') - unixepoch(max(g.value ->> '$.from', o.value ->> '$.spec.from'))), 0)
    FROM json_each(o.unseen) g WHERE g.value ->> '$.until' > o.value ->> '$.spec.from') AS unseen_seconds,
  (SELECT max(g.value ->> '$.from', o.value ->> '$.spec.from') FROM json_each(o.unseen) g
    WHERE g.value ->> '$.until' IS NULL) AS unseen_since
FROM (
  SELECT r.value, CASE WHEN r.value ->> '$.status.until' IS NULL
    THEN (SELECT c.value -> '$.status.records.unseen' FROM objects c WHERE c.key = '/tidewaiter.dev/clusters/' || (r.value ->> '$.spec.cluster'))
    ELSE r.value -> '$.status.unseen' END AS unseen
  FROM objects r
  WHERE r.key >= '/tidewaiter.dev/imageruns/' AND r.key < '/tidewaiter.dev/imageruns0') o
