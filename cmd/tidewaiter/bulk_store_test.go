package main

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bulkStore does the least that a program must do which keeps images: it compares their digests,
// parses manifest and config, encodes an Image, and has it and its tag on the disk, a hundred in a
// transaction. It has no rules, no revisions, no watches, no API. What it takes is the price of a
// registry's images on this machine.
type bulkStore struct {
	DB      *sql.DB
	rows    chan bulkRow
	written chan error
}

type bulkRow struct {
	reference, digest string
	image             []byte
}

const bulkTransaction = 100 // rows

func openBulkStore(file string) (*bulkStore, error) {
	db, err := sql.Open("sqlite3", "file:"+file+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000")
	if err != nil {
		return nil, err
	}
	if _, err := db.Exec(`CREATE TABLE IF NOT EXISTS images (name TEXT PRIMARY KEY, value BLOB); CREATE TABLE IF NOT EXISTS tags (name TEXT PRIMARY KEY, image TEXT)`); err != nil {
		return nil, err
	}
	s := &bulkStore{DB: db, rows: make(chan bulkRow, bulkTransaction), written: make(chan error, 1)}
	go func() { s.written <- s.write() }()
	return s, nil
}

// write stores rows until there will be no more. After an error it takes them all the same.
func (s *bulkStore) write() (err error) {
	for row := range s.rows {
		if err == nil {
			err = s.transaction(row)
		}
	}
	return err
}

func (s *bulkStore) transaction(row bulkRow) error {
	tx, err := s.DB.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it says so
	images, err := tx.Prepare(`INSERT INTO images VALUES (?, ?)`)
	if err != nil {
		return err
	}
	tags, err := tx.Prepare(`INSERT INTO tags VALUES (?, ?)`)
	if err != nil {
		return err
	}
	for n, more := 1, true; more; n++ {
		if _, err := images.Exec(row.digest, row.image); err != nil {
			return err
		}
		if _, err := tags.Exec(row.reference, row.digest); err != nil {
			return err
		}
		if n == bulkTransaction {
			break
		}
		if row, more = <-s.rows; !more {
			break
		}
	}
	return tx.Commit()
}

// add is called by many.
func (s *bulkStore) add(reference, digest string, manifest, config []byte) error {
	m, err := v1.ParseManifest(bytes.NewReader(manifest))
	if err != nil {
		return err
	}
	for content, want := range map[string][]byte{digest: manifest, m.Config.Digest.String(): config} {
		if got, _, err := v1.SHA256(bytes.NewReader(want)); err != nil || got.String() != content {
			return fmt.Errorf("%s: its content is %s, %v", content, got, err)
		}
	}
	c, err := v1.ParseConfigFile(bytes.NewReader(config))
	if err != nil {
		return err
	}
	image := imagev1.Image{
		TypeMeta:             metav1.TypeMeta{APIVersion: imagev1.SchemeGroupVersion.String(), Kind: "Image"},
		ObjectMeta:           metav1.ObjectMeta{Name: digest, CreationTimestamp: metav1.Time{Time: c.Created.Time}},
		DockerImageReference: reference, DockerImageManifest: string(manifest), DockerImageConfig: string(config),
		DockerImageManifestMediaType: string(m.MediaType),
	}
	if image.DockerImageMetadata.Raw, err = json.Marshal(c.Config); err != nil {
		return err
	}
	for _, layer := range m.Layers {
		image.DockerImageLayers = append(image.DockerImageLayers, imagev1.ImageLayer{Name: layer.Digest.String(), LayerSize: layer.Size, MediaType: string(layer.MediaType)})
	}
	row := bulkRow{reference: reference, digest: digest}
	if row.image, err = json.Marshal(&image); err != nil {
		return err
	}
	s.rows <- row
	return nil
}

// has reports what is not stored.
func (s *bulkStore) has(reference, digest string) error {
	var stored string
	if err := s.DB.QueryRow(`SELECT images.name FROM tags JOIN images ON images.name = tags.image WHERE tags.name = ?`, reference).Scan(&stored); err != nil {
		return err
	}
	if stored != digest {
		return fmt.Errorf("%s is stored as %s", reference, stored)
	}
	return nil
}

func (s *bulkStore) close() error {
	close(s.rows)
	if err := <-s.written; err != nil {
		return err
	}
	return s.DB.Close()
}
