package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// What cannot be imported is tried again by itself if that may help. If not, it
// is kept with its reason for an administrator, who tries it again or drops it.
func TestSpoolCommand(t *testing.T) {
	t.Parallel()
	h := startHooked(t, registry.Distribution, true)
	// The registry's own notifications are refused for this repository.
	numbered := images.Numbered(t, 2)
	reference := h.registry.Push(t, "quiet/app:v1", numbered[0])

	h.registry.Stop(t)
	h.tell(t, reference)
	row := spoolRow(t, h.awaitSpool(t, "a job that failed", func(list string) bool { return strings.Contains(list, "unreachable") }), reference)
	wantContains(t, "the job", row, "script", reference+": unreachable")
	h.awaitEvent(t, reference, "ImportFailed")
	h.registry.Resume(t)
	h.awaitStored(t, numbered[0])
	h.awaitEmptySpool(t)
	h.awaitEvent(t, images.Digest(t, numbered[0]).String(), "Imported")

	// Nobody imports these, however often it is tried.
	deep := h.registry.Push(t, "quiet/deep:v1", nested(4))
	byDigest := h.registry.Host + "/quiet/deep@" + images.Digest(t, nested(4)).String()
	h.tell(t, deep, byDigest)
	list := h.awaitSpool(t, "two dead jobs", func(list string) bool { return strings.Count(list, `"state":"dead"`) == 2 })
	wantContains(t, "the spool", list, deep, byDigest, "too large: indexes are nested more than 3 deep")
	if dead := h.spool(t, "list", "--state", "dead", "-o", "name"); len(lines(dead)) != 2 {
		t.Errorf("dead jobs:\n%s", dead)
	}
	if waiting := h.spool(t, "list", "--state", "waiting"); !strings.Contains(waiting, "no such job") {
		t.Errorf("waiting jobs:\n%s", waiting)
	}
	if message := h.awaitEvent(t, images.Digest(t, nested(4)).String(), "ImportFailed"); !strings.Contains(message, "nested more than 3 deep") {
		t.Errorf("the Event says %q", message)
	}
	h.awaitMetrics(t, `tidewaiter_queue_jobs{receiver="script",state="dead"} 2`)

	// The cause is gone, and nothing happens until somebody says so.
	h.registry.Push(t, "quiet/deep:v1", numbered[1])
	id := jobID(t, list, deep)
	wantContains(t, "spool retry", h.spool(t, "retry", id), "1 job to be tried again")
	h.awaitStored(t, numbered[1])
	h.awaitSpool(t, "one dead job", func(list string) bool { return len(lines(list)) == 1 })
	wantContains(t, "spool retry --all", h.spool(t, "retry", "--all"), "1 job to be tried again")
	list = h.awaitSpool(t, "the job to be dead again", func(list string) bool { return strings.Contains(list, `"state":"dead"`) })
	wantContains(t, "spool drop", h.spool(t, "drop", jobID(t, list, byDigest)), "1 job dropped")
	h.awaitEmptySpool(t)
}

// jobID is the ID of the job about a reference.
func jobID(t *testing.T, list, reference string) string {
	t.Helper()
	var job struct{ ID int64 }
	if err := json.Unmarshal([]byte(spoolRow(t, list, reference)), &job); err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(job.ID, 10)
}

// spoolRow is the line of a reference in the output of `tidewaiter spool list -o jsonl`.
func spoolRow(t *testing.T, list, reference string) string {
	t.Helper()
	i := slices.IndexFunc(lines(list), func(l string) bool { return strings.Contains(l, `"key":"`+reference+`"`) })
	if i < 0 {
		t.Fatalf("the spool has no job about %s:\n%s", reference, list)
	}
	return lines(list)[i]
}

// nested are indexes within each other, of which the importer reads three.
func nested(depth int) v1.ImageIndex {
	var index v1.ImageIndex = empty.Index
	for range depth {
		index = mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index})
	}
	return index
}

// Events tell of a push, and of a delete. The delete marks the Image, which
// stays; a push takes the mark away.
func TestDeletedInRegistry(t *testing.T) {
	t.Parallel()
	for _, kind := range registry.Kinds(t) {
		t.Run(string(kind), func(t *testing.T) {
			h := startHooked(t, kind, false)
			image := images.Numbered(t, 1)[0]
			digest := images.Digest(t, image).String()
			byDigest := h.registry.Host + "/team/app@" + digest
			mark := func() string {
				return h.Kubectl(t, "get", "image", digest, "-o", `jsonpath={.metadata.annotations.tidewaiter\.dev/gone-from-registry}`)
			}
			h.registry.Push(t, "team/app:v1", image)
			h.awaitStored(t, image)
			for _, reason := range []string{"PushReceived", "Imported"} {
				if message := h.awaitEvent(t, digest, reason); !strings.Contains(message, "team/app:v1") {
					t.Errorf("%s says %q", reason, message)
				}
			}
			h.awaitEmptySpool(t)
			if got := mark(); got != "" {
				t.Errorf("marked as gone before it was: %s", got)
			}

			awaitMark := func(what string, cond func(string) bool) {
				t.Helper()
				harness.Eventually(t, func() error {
					if got := mark(); !cond(got) {
						return fmt.Errorf("%s: the mark is %q", what, got)
					}
					return nil
				})
			}
			if kind == registry.Distribution { // release 2.8 refuses to delete a tag
				tag := h.registry.Push(t, "team/app:v2", image)
				harness.Eventually(t, func() error {
					if known := h.Kubectl(t, "get", "image", digest, "-o", "yaml"); !strings.Contains(known, tag) {
						return fmt.Errorf("%s is not known:\n%s", tag, known)
					}
					return nil
				})
				crane(t, "delete", tag)
				awaitMark("tag deleted", func(mark string) bool { return strings.Contains(mark, tag) && !strings.Contains(mark, "@") })
			}
			crane(t, "delete", byDigest)
			awaitMark("deleted", func(mark string) bool { return strings.Contains(mark, byDigest) })
			h.awaitEvent(t, digest, "GoneFromRegistry")

			h.registry.Push(t, "team/app:v1", image)
			awaitMark("pushed again", func(mark string) bool { return !strings.Contains(mark, "app:v1") && !strings.Contains(mark, byDigest) })
		})
	}
}
