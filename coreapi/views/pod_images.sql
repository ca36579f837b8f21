-- One row for each container of each pod, and each volume that is an image, of this server ("local") and of the
-- clusters that it follows: the image it names and, once it ran, the image that runs.
SELECT
  o.value ->> '$.spec.cluster'   AS cluster,
  o.value ->> '$.spec.namespace' AS namespace,
  o.value ->> '$.spec.name'      AS pod,
  c.value ->> '$.name'           AS container,
  c.value ->> '$.image'          AS image,
  c.value ->> '$.imageID'        AS image_id
FROM objects o
JOIN json_each(o.value, '$.spec.containers') c
WHERE o.key >= '/tidewaiter.dev/clusterpods/' AND o.key < '/tidewaiter.dev/clusterpods0'
