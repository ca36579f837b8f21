package usage

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unique"
)

// Pods are known by the tags that they name, until they are gone.
func TestPodsByTheTagsThatTheyName(t *testing.T) {
	x := NewIndex()
	var told []string
	x.OnTags(func(tags []string) { slices.Sort(tags); told = append(told, fmt.Sprint(tags)) })
	of := &source{}
	id := func(cluster, name string) podID { return podID{unique.Make(podNamespace{of, cluster, "team"}), name} }
	const v1, v2 = "registry.example.com/app:v1", "registry.example.com/app:v2"
	want := func(when, tag, clusters, digests, others string) {
		t.Helper()
		outdated, unknown := x.Running(strings.Fields(tag), func(one Tagged) Run {
			switch one.Digest {
			case "new":
				return Run{one.Digest, Current}
			case "":
				return Run{one.Digest, Unknown}
			}
			return Run{one.Digest, Outdated}
		})
		if fmt.Sprint(outdated.ByCluster) != "map["+clusters+"]" || fmt.Sprint(outdated.ByDigest) != "map["+digests+"]" || fmt.Sprint(unknown.ByCluster) != "map["+others+"]" {
			t.Errorf("%s: %v, %v; want %s, %s, and unknown %s", when, outdated, unknown, clusters, digests, others)
		}
	}
	x.tagged.set(id("prod", "a"), []Tagged{{v1, "old"}, {v1, "older"}, {v2, "new"}, {v1, "old"}})
	x.tagged.set(id("prod", "b"), []Tagged{{v1, "new"}})
	x.tagged.set(id("test", "a"), []Tagged{{v1, "old"}})
	want("a pod counts once in its cluster", v1, "prod:1 test:1", "old:2 older:1", "")
	want("only what is wanted counts", v2, "", "", "")
	want("by several names it counts once", v1+" "+v2, "prod:1 test:1", "old:2 older:1", "")
	want("by any name, too", "", "prod:1 test:1", "old:2 older:1", "")
	want("by a name that none has", "none "+v1, "prod:1 test:1", "old:2 older:1", "")
	x.tagged.set(id("test", "a"), []Tagged{{v1, "old"}}) // tells nobody
	x.tagged.set(id("test", "a"), []Tagged{{v1, "new"}})
	x.tagged.set(id("prod", "a"), nil)
	want("what has changed", v1, "", "", "")
	x.tagged.set(id("prod", "b"), []Tagged{{v1, "new"}, {v1, ""}})
	want("of which that is not known", v1, "", "", "prod:1")
	x.tagged.set(id("prod", "b"), []Tagged{{v1, ""}, {v1, "old"}, {v1, "new"}})
	want("what is known decides", v1, "prod:1", "old:1", "")
	x.tagged.set(id("prod", "b"), []Tagged{{v1, "new"}})
	if !x.Names(v1) || x.Names(v2) || !slices.Equal(x.Tags(), []string{v1}) {
		t.Errorf("pods name %v", x.Tags())
	}
	x.retain(of, nil)
	if got, want := fmt.Sprint(told), fmt.Sprintf("[[%s %s] [%s] [%s] [%s] [%s %s] [%s] [%s] [%s]]", v1, v2, v1, v1, v1, v1, v2, v1, v1, v1); got != want {
		t.Errorf("told of %s, want %s", got, want)
	}
}
