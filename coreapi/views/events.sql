-- One row for each event, written through core/v1 or events.k8s.io/v1.
SELECT
  value ->> '$.metadata.namespace' AS namespace,
  COALESCE(
    value ->> '$.series.lastObservedTime', value ->> '$.lastTimestamp',
    value ->> '$.eventTime', value ->> '$.metadata.creationTimestamp') AS last_seen,
  COALESCE(value ->> '$.series.count', value ->> '$.count', 1)         AS count,
  value ->> '$.type'                 AS type,
  value ->> '$.reason'               AS reason,
  value ->> '$.involvedObject.kind'  AS object_kind,
  value ->> '$.involvedObject.name'  AS object_name,
  value ->> '$.message'              AS message,
  COALESCE(value ->> '$.source.component', value ->> '$.reportingComponent') AS source,
  datetime(expires / 1000, 'unixepoch') AS expires
FROM objects
WHERE key >= '/core/events/' AND key < '/core/events0'
