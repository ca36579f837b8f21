package main

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func createImage(t *testing.T, client *imageclient.Client, name string) *imagev1.Image {
	t.Helper()
	image, err := client.Create(t.Context(), &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{Name: name}, DockerImageReference: "registry.example.com/team/" + name + ":1",
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// A backup of a serving directory, restored, has what was there then. Whoever
// watched the first server is told to start again.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, err := imageclient.New(serveOn(t, dir, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	createImage(t, first, "before")
	file := filepath.Join(t.TempDir(), "backup.db")
	if code, _, stderr := tidewaiter(t, "backup", file, "--data-dir", dir); code != cli.ExitOK {
		t.Fatalf("backup: exit code %d: %s", code, stderr)
	}
	after := createImage(t, first, "after")

	if code, _, stderr := tidewaiter(t, "backup", file, "--data-dir", dir); code == cli.ExitOK || !strings.Contains(stderr, "exists") {
		t.Errorf("a second backup to one file: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := tidewaiter(t, "restore", file, "--data-dir", dir); code == cli.ExitOK || !strings.Contains(stderr, "in use") {
		t.Errorf("restoring into a served directory: exit code %d: %s", code, stderr)
	}

	restored := t.TempDir()
	if code, _, stderr := tidewaiter(t, "restore", file, "--data-dir", restored); code != cli.ExitOK {
		t.Fatalf("restore: exit code %d: %s", code, stderr)
	}
	second, err := imageclient.New(serveOn(t, restored, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
		t.Errorf("what was backed up: %v", err)
	}
	if _, err := second.Get(t.Context(), "after", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what came after the backup: %v", err)
	}
	w, err := second.Watch(t.Context(), metav1.ListOptions{ResourceVersion: after.ResourceVersion})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("watching on from the first server's revision: %v, want Expired", err)
	}
}

func TestBackupToStandardOutput(t *testing.T) {
	dir := t.TempDir()
	serveOn(t, dir, listen(t))
	code, stdout, stderr := tidewaiter(t, "backup", "-", "--data-dir", dir)
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "SQLite format 3\x00") {
		t.Errorf("exit code %d, %d bytes: %s", code, len(stdout), stderr)
	}
}

// A server makes a backup by itself, which can be restored.
func TestServeMakesBackups(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	client, err := imageclient.New(serveWith(t, server.Options{
		DataDir: t.TempDir(), Backups: backup.Options{Dir: folder, Every: time.Hour, Keep: 2},
	}, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	createImage(t, client, "one")
	var made []string
	servertest.Eventually(t, "a backup", func() bool {
		if made, err = filepath.Glob(filepath.Join(folder, "tidewaiter-*.db")); err != nil {
			t.Fatal(err)
		}
		return len(made) > 0
	})
	restored := filepath.Join(t.TempDir(), "restored")
	if code, _, stderr := tidewaiter(t, "restore", made[0], "--data-dir", restored); code != cli.ExitOK {
		t.Fatalf("restore: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := tidewaiter(t, "db", "check", "--data-dir", restored); code != cli.ExitOK {
		t.Errorf("check: exit code %d: %s", code, stderr)
	}
}

func TestStatsOfAServedDirectory(t *testing.T) {
	dir := t.TempDir()
	client, err := imageclient.New(serveOn(t, dir, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	createImage(t, client, "one")
	createImage(t, client, "two")
	code, stdout, stderr := tidewaiter(t, "db", "stats", "--data-dir", dir)
	if code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	found := false
	for line := range strings.Lines(stdout) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == "/image.openshift.io/images/" {
			found = f[1] == "2" && f[3] == "2"
		}
	}
	if !found {
		t.Errorf("no line tells of 2 images in 2 revisions:\n%s", stdout)
	}
	if code, _, stderr := tidewaiter(t, "db", "check", "--data-dir", dir); code != cli.ExitOK {
		t.Errorf("check: exit code %d: %s", code, stderr)
	}
}
