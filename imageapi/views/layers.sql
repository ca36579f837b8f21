-- One row for each layer of each image, the base layer at position 0. size is in
-- bytes. A layer of several images is in several rows.
SELECT
  o.value ->> '$.metadata.name' AS image,
  l.key                         AS position,
  l.value ->> '$.name'          AS digest,
  l.value ->> '$.size'          AS size,
  l.value ->> '$.mediaType'     AS media_type
FROM objects o
JOIN json_each(o.value, '$.dockerImageLayers') l
WHERE o.key >= '/image.openshift.io/images/' AND o.key < '/image.openshift.io/images0'
