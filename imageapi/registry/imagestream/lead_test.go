package imagestream

import (
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a tag led to when it was imported may be older than what it was told to lead to while the
// import ran. The history stays in order.
func TestImportOfWhatLedBefore(t *testing.T) {
	at := func(second int) metav1.Time { return metav1.Unix(int64(second), 0) }
	own := &imagev1.NamedTagEventList{Items: []imagev1.TagEvent{{Created: at(26), DockerImageReference: "r/app@2", Image: "2", Generation: 3}}}
	Lead(own, imagev1.TagEvent{Created: at(25), DockerImageReference: "r/app@1", Image: "1"}, 4)
	if len(own.Items) != 2 || own.Items[0].Image != "1" || own.Items[0].Generation != 4 {
		t.Fatalf("%+v", own.Items)
	}
	if got := own.Items[0].Created; got.Before(&own.Items[1].Created) {
		t.Errorf("the newest event is of %s, the one before it of %s", got.UTC().Format(time.TimeOnly), own.Items[1].Created.UTC().Format(time.TimeOnly))
	}
}
