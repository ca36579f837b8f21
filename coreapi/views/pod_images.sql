-- One row for each container of each pod, and each volume that is an image, of this server and of the clusters that
-- it follows: the image it names and, once it ran, the image that runs.
SELECT
  'local'                            AS cluster,
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
UNION ALL
SELECT
  'local',
  o.value ->> '$.metadata.namespace',
  o.value ->> '$.metadata.name',
  'volume/' || (v.value ->> '$.name'),
  v.value ->> '$.image.reference',
  NULL -- Kubernetes keeps what a volume's status tells only behind a feature gate that is off
FROM objects o
JOIN json_each(o.value, '$.spec.volumes') v
WHERE o.key >= '/core/pods/' AND o.key < '/core/pods0' AND v.value ->> '$.image.reference' <> ''
UNION ALL
SELECT
  o.value ->> '$.spec.cluster',
  o.value ->> '$.spec.namespace',
  o.value ->> '$.spec.name',
  c.value ->> '$.name',
  c.value ->> '$.image',
  c.value ->> '$.imageID'
FROM objects o
JOIN json_each(o.value, '$.spec.containers') c
WHERE o.key >= '/tidewaiter.dev/clusterpods/' AND o.key < '/tidewaiter.dev/clusterpods0'
