package clusters

import (
	"slices"
	"strings"
	"testing"
)

// Of a pod that names an image, only the containers that name or run it are listed.
func TestContainersThatNameAnImage(t *testing.T) {
	t.Parallel()
	a, b := "sha256:"+strings.Repeat("a", 64), "sha256:"+strings.Repeat("b", 64)
	const app, sidecar = "registry.example.com/team/app:v1", "registry.example.com/team/proxy:v1"
	pods := []ClusterPod{
		{Spec: ClusterPodSpec{Name: "arm", Platform: "linux/arm64", Containers: []ClusterPodContainer{
			{Name: "app", Image: app, ImageID: "registry.example.com/team/app@" + a}, {Name: "proxy", Image: sidecar, ImageID: "registry.example.com/team/proxy@" + b},
		}}},
		{Spec: ClusterPodSpec{Name: "unknown", Containers: []ClusterPodContainer{{Name: "app", Image: app}}}},
	}
	for _, tt := range []struct {
		values []string
		want   []string
	}{
		{nil, []string{"arm app", "arm proxy", "unknown app"}},
		{[]string{app}, []string{"arm app", "unknown app"}},
		{[]string{b}, []string{"arm proxy"}},
		{[]string{a + "@linux/arm64", app + "?"}, []string{"arm app", "unknown app"}},
		{[]string{a + "@linux/amd64"}, nil},
		{[]string{app + "?@linux/amd64"}, []string{"unknown app"}},
		{[]string{sidecar, a}, []string{"arm app", "arm proxy"}},
	} {
		var got []string
		for _, c := range containersOf(pods, tt.values...) {
			got = append(got, c.Pod+" "+c.Name)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%q names %q, want %q", tt.values, got, tt.want)
		}
	}
}
