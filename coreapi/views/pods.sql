-- One row for each pod.
SELECT
  value ->> '$.metadata.namespace'         AS namespace,
  value ->> '$.metadata.name'              AS name,
  value ->> '$.status.phase'               AS phase,
  value ->> '$.spec.nodeName'              AS node,
  value ->> '$.status.podIP'               AS ip,
  value ->> '$.metadata.creationTimestamp' AS created,
  value ->> '$.metadata.deletionTimestamp' AS deleted
FROM objects
WHERE key >= '/core/pods/' AND key < '/core/pods0'
