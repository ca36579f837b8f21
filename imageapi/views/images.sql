-- One row for each image. size is in bytes; created is when the image was
-- built, stored when it came here.
SELECT
  value ->> '$.metadata.name'                  AS name,
  value ->> '$.dockerImageReference'           AS reference,
  value ->> '$.metadata.annotations."tidewaiter.dev/platform"' AS platform,
  value ->> '$.dockerImageManifestMediaType'   AS media_type,
  value ->> '$.dockerImageMetadata.Size'       AS size,
  value ->> '$.dockerImageMetadata.Created'    AS created,
  value ->> '$.metadata.creationTimestamp'     AS stored,
  COALESCE(json_array_length(value, '$.dockerImageLayers'), 0)    AS layers,
  COALESCE(json_array_length(value, '$.dockerImageManifests'), 0) AS manifests,
  COALESCE(json_array_length(value, '$.signatures'), 0)           AS signatures
FROM objects
WHERE key >= '/image.openshift.io/images/' AND key < '/image.openshift.io/images0'
