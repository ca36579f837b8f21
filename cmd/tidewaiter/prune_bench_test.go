package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// pruneRepositories is how many repositories the images of BenchmarkPrune are in.
const pruneRepositories = 100

// BenchmarkPrune shows how long tidewaiter prune takes, and how much memory it and the server, in
// processes of their own. Each image is in the history of a tag, which has 100 items; of those the
// last three stay, and the others are marked and then deleted.
func BenchmarkPrune(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Images="+text, func(b *testing.B) {
			dir := b.TempDir()
			kept := seedHistories(b, dir, n)
			s := runProcess(b, dir)
			started := s.mostMemory(b)
			for _, run := range []struct {
				name, decision string
				args           []string
			}{
				{"Dry", prune.Mark, nil},
				{"Mark", prune.Mark, []string{"--confirm"}},
				{"Delete", prune.Delete, []string{"--confirm"}},
			} {
				b.Run("Op="+run.name, func(b *testing.B) {
					start := time.Now()
					counts, client := pruneProcess(b, dir, run.args...)
					took := time.Since(start)
					if counts["keep revision"] != kept || counts[run.decision] != n-kept {
						b.Fatalf("of %d images %v, want %d kept", n, counts, kept)
					}
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(took.Seconds(), "s")
					b.ReportMetric(client, "MiB-of-client")
					b.ReportMetric(started, "MiB-of-server-before")
					b.ReportMetric(s.mostMemory(b), "MiB-of-server")
				})
			}
		})
	}
}

// pruneProcess runs tidewaiter prune in a process of its own, and returns its counts and the most
// memory that it had resident, in MiB.
func pruneProcess(b *testing.B, dir string, args ...string) (counts map[string]int, memory float64) {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(self, append([]string{"prune", "--kubeconfig", server.KubeconfigPath(dir), "--keep-younger-than=0s", "--grace=0s", "-o", "json"}, args...)...)
	cmd.Env = append(os.Environ(), serveEnv+"=1")
	var out bytes.Buffer
	cmd.Stdout = &out
	memory, err = runMeasured(cmd)
	if err != nil {
		b.Fatal(err)
	}
	var answer struct{ Counts map[string]int }
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		b.Fatal(err)
	}
	return answer.Counts, memory
}

// seedHistories writes n Images into the store, past the API, and the tags whose histories have
// them. It returns how many are among the last three of a tag.
func seedHistories(b *testing.B, dir string, n int) (kept int) {
	b.Helper()
	store, getter := openSeed(b, dir)
	defer store.Close()
	maker := newImageMaker(b, 0)
	images, imageTags := getter.Store(imagev1.Resource("images")), getter.Store(imagev1.Resource("imagetags"))
	at := metav1.NewTime(time.Now().Add(-48 * time.Hour).Truncate(time.Second))
	var writers errgroup.Group
	writers.SetLimit(16)
	for first := 0; first < n; first += tags.MaxItems {
		ref := reference.Reference{
			Host: "registry.example.com", Repository: fmt.Sprint("team/app-", first/tags.MaxItems%pruneRepositories),
			Tag: fmt.Sprint("v", first/tags.MaxItems/pruneRepositories),
		}
		tag := tags.New(ref)
		tag.UID, tag.CreationTimestamp, tag.Generation = types.UID(tags.Name(ref)), at, 1
		for i := first; i < min(first+tags.MaxItems, n); i++ {
			raw := strings.TrimSuffix(maker.manifest, "}") + fmt.Sprintf(`,"annotations":{"seed":"%d"}}`, i)
			img := &imagev1.Image{
				ObjectMeta:           metav1.ObjectMeta{Name: manifest.Digest([]byte(raw)), UID: "00000000-0000-4000-8000-000000000000", CreationTimestamp: at},
				DockerImageReference: ref.Bare().WithDigest(manifest.Digest([]byte(raw))).String(),
				DockerImageManifest:  raw, DockerImageConfig: maker.Config,
			}
			tags.Lead(tag, ref, img.Name, at)
			writers.Go(func() error {
				if err := manifest.Derive(img); err != nil {
					return err
				}
				return images.Create(context.Background(), imagesKey+img.Name, img, &imagev1.Image{}, 0)
			})
		}
		kept += min(3, len(tag.Status.Items))
		writers.Go(func() error {
			return imageTags.Create(context.Background(), "/image.openshift.io/imagetags/"+tag.Namespace+"/"+tag.Name, tag, &imagev1.ImageTag{}, 0)
		})
	}
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
	return kept
}
