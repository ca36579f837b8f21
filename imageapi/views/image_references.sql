-- One row for each reference that an image is known by: those of the annotation
-- tidewaiter.dev/references, which anybody may write, and the image's own.
WITH known AS (
  SELECT
    value ->> '$.metadata.name'        AS image,
    value ->> '$.dockerImageReference' AS reference,
    value ->> '$.metadata.annotations."tidewaiter.dev/references"' AS more
  FROM objects
  WHERE key >= '/image.openshift.io/images/' AND key < '/image.openshift.io/images0'
)
SELECT image, reference FROM known WHERE reference <> ''
UNION
SELECT k.image, r.value
FROM known k
JOIN json_each(CASE WHEN json_valid(k.more) AND json_type(k.more) = 'array' THEN k.more ELSE '[]' END) r
WHERE r.type = 'text'
