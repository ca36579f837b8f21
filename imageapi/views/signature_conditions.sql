-- One row for each condition of each signature of each image: what was found out
-- about it, and since when.
SELECT
  o.value ->> '$.metadata.name'       AS image,
  s.value ->> '$.metadata.name'       AS signature,
  c.value ->> '$.type'                AS type,
  c.value ->> '$.status'              AS status,
  c.value ->> '$.reason'              AS reason,
  c.value ->> '$.message'             AS message,
  c.value ->> '$.lastTransitionTime'  AS since,
  c.value ->> '$.lastProbeTime'       AS probed
FROM objects o
JOIN json_each(o.value, '$.signatures') s
JOIN json_each(s.value, '$.conditions') c
WHERE o.key >= '/image.openshift.io/images/' AND o.key < '/image.openshift.io/images0'
