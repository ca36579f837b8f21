//go:build linux

package web

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

type enqueued int

func (e *enqueued) Enqueue() { *e++ }

// A serving certificate that has to be renewed while the disk is full is renewed in
// memory, and written once there is room.
func TestServingCertificateIsRenewedOnFullDisk(t *testing.T) {
	dbtest.OnSmallDisk(t, 1<<20, func(disk string) {
		dir, now := filepath.Join(disk, "data"), time.Now()
		hosts := []string{"localhost"}
		c, err := LoadCredentials(dir, hosts, now)
		if err != nil {
			t.Fatal(err)
		}
		var told enqueued
		c.serving.AddListener(&told)
		first, _ := c.serving.CurrentCertKeyContent()
		ballast := dbtest.FillDisk(t, disk)

		now = now.Add(servingLifetime - renewBefore + time.Hour)
		if err := c.ensureServing(now); err != nil {
			t.Fatal(err)
		}
		renewed, key := c.serving.CurrentCertKeyContent()
		if told != 1 || bytes.Equal(renewed, first) || !c.ca.usable(renewed, key, hosts, now) {
			t.Errorf("told %d times of a renewed certificate, which is the old one (%t)", told, bytes.Equal(renewed, first))
		}
		// Nor does a start need room.
		again, err := LoadCredentials(dir, hosts, now)
		if err != nil {
			t.Fatal(err)
		}
		if cert, key := again.serving.CurrentCertKeyContent(); !again.ca.usable(cert, key, hosts, now) {
			t.Error("a start on a full disk has no certificate that can be used")
		}

		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := c.ensureServing(now.Add(24 * time.Hour)); err != nil {
			t.Fatal(err)
		}
		kept, err := os.ReadFile(c.serving.certFile)
		if err != nil || !bytes.Equal(kept, renewed) || told != 1 {
			t.Errorf("with room again the file does not hold what is served: %v, told %d times", err, told)
		}
	})
}

// TestCredentialsOfAMountedSecret: shared credentials may be where nothing can be written, as a
// Secret is mounted. The administrator's certificate, which the server does without, is then not
// renewed.
func TestCredentialsOfAMountedSecret(t *testing.T) {
	t.Parallel()
	dbtest.OnSmallDisk(t, 1<<20, func(mounted string) {
		shared := filepath.Join(mounted, "pki")
		if err := os.Mkdir(shared, 0o700); err != nil {
			t.Fatal(err)
		}
		made, err := LoadSharedCredentials(t.TempDir(), shared, nil, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("", mounted, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		nearItsEnd := time.Now().Add(350 * 24 * time.Hour)
		c, err := LoadSharedCredentials(t.TempDir(), shared, nil, nearItsEnd)
		if err != nil {
			t.Fatal(err)
		}
		if c.CAFile != made.CAFile || c.AuthorityMade() {
			t.Error("the authority is another one")
		}
		if err := c.WriteKubeconfig("https://127.0.0.1:6443"); err != nil {
			t.Error(err)
		}
	})
}
