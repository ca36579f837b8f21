-- One row for each container of each pod: the image it names and, once it ran,
-- the image that runs.
SELECT
  o.value ->> '$.metadata.namespace' AS namespace,
  o.value ->> '$.metadata.name'      AS pod,
  c.value ->> '$.name'               AS container,
  c.value ->> '$.image'              AS image,
  s.value ->> '$.imageID'            AS image_id
FROM objects o
JOIN (
  SELECT '$.spec.containers' AS spec, '$.status.containerStatuses' AS status
  UNION ALL SELECT '$.spec.initContainers', '$.status.initContainerStatuses'
  UNION ALL SELECT '$.spec.ephemeralContainers', '$.status.ephemeralContainerStatuses'
) kind
JOIN json_each(o.value, kind.spec) c
LEFT JOIN json_each(o.value, kind.status) s ON s.value ->> '$.name' = c.value ->> '$.name'
WHERE o.key >= '/core/pods/' AND o.key < '/core/pods0'
