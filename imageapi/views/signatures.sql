-- One row for each signature of each image. trusted and for_image are True, False
-- or Unknown: a signature counts when both are True. signer is whom the key
-- belongs to, else the key.
SELECT
  o.value ->> '$.metadata.name'  AS image,
  s.value ->> '$.metadata.name'  AS name,
  s.value ->> '$.type'           AS type,
  COALESCE((SELECT c.value ->> '$.status' FROM json_each(s.value, '$.conditions') c
            WHERE c.value ->> '$.type' = 'Trusted'), 'Unknown')  AS trusted,
  COALESCE((SELECT c.value ->> '$.status' FROM json_each(s.value, '$.conditions') c
            WHERE c.value ->> '$.type' = 'ForImage'), 'Unknown') AS for_image,
  COALESCE(NULLIF(s.value ->> '$.issuedTo.commonName', ''), NULLIF(s.value ->> '$.issuedTo.publicKeyID', ''),
           NULLIF(s.value ->> '$.issuedBy.commonName', ''))      AS signer,
  NULLIF(s.value ->> '$.issuedBy.commonName', '')                AS issuer,
  s.value ->> '$.imageIdentity'  AS identity,
  s.value ->> '$.created'        AS created
FROM objects o
JOIN json_each(o.value, '$.signatures') s
WHERE o.key >= '/image.openshift.io/images/' AND o.key < '/image.openshift.io/images0'
