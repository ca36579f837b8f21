package imageapi_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

// An image is found by the beginning of its digest, with few images read however many there are.
func TestSelectByDigest(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	read := 0
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verdicts: saying(func(image *imagev1.Image) (string, []string) { read++; return saidSummary(image) })}})
	digest := func(beginning string) string { return "sha256:" + beginning + strings.Repeat("0", 64-len(beginning)) }
	create := func(beginning, says string) {
		image := plain("app", says)
		image.Name = digest(beginning)
		image.Labels = map[string]string{"team": beginning[:1]}
		s.mustCreate(t, image)
	}
	create("9f86d08", "True|ann")
	create("9f86d09", "False|")
	create("9f87", "Unsigned|")
	for i := range 30 {
		create(fmt.Sprintf("ab%02d", i), "Unsigned|")
		create(fmt.Sprintf("cdef%02d", i), "Unsigned|")
	}
	names := func(selector string) (all []string, err error) {
		label, value, _ := strings.Cut(selector, ",")
		name, beginning, _ := strings.Cut(label, "=")
		if name, beginning, err = scheme.ConvertFieldLabel(imagev1.GroupVersion.WithKind("Image"), name, beginning); err != nil {
			return nil, err
		}
		selector = name + "=" + beginning
		if value != "" {
			selector += "," + value
		}
		obj, err := s.images.List(requestContext(), selecting(selector))
		if err != nil {
			return nil, err
		}
		list := obj.(*imagev1.ImageList)
		if list.ResourceVersion == "" || list.Continue != "" || list.RemainingItemCount != nil {
			t.Errorf("%s: %+v", selector, list.ListMeta)
		}
		for i := range list.Items {
			all = append(all, list.Items[i].Name[len("sha256:"):][:7])
		}
		return all, nil
	}
	for selector, want := range map[string]string{
		"digest=sha256:9f86":                       "[9f86d08 9f86d09]",
		"digest=9f86":                              "[9f86d08 9f86d09]",
		"digest=9f86d08":                           "[9f86d08]",
		"digest=" + digest("9f87"):                 "[9f87000]",
		"digest=9f88":                              "[]",
		"digest=ffff":                              "[]",
		"digest=sha512:9f86":                       "[]",
		"digest=9f86,signatures.verified=True":     "[9f86d08]",
		"digest=9f86,signatures.verified!=True":    "[9f86d09]",
		"digest=9f86,signatures.verified=Unsigned": "[]",

		// Several whole ones, in their order and each once, and those that there are.
		"digest=" + digest("9f87") + "|" + digest("9f86d08"):                                                           "[9f86d08 9f87000]",
		"digest=" + digest("9f87") + "|" + digest("9f87"):                                                              "[9f87000]",
		"digest=" + digest("9f87") + "|" + digest("9f88") + "|sha512:" + strings.Repeat("0", 128):                      "[9f87000]",
		"digest=" + digest("9f86d08") + "|" + digest("9f86d09") + "|" + digest("9f87") + ",signatures.verified!=False": "[9f86d08 9f87000]",
	} {
		if got, err := names(selector); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s selects %v, %v, want %s", selector, got, err, want)
		}
	}
	for selector, want := range map[string]string{
		"digest=cdef":                    "give more digits",
		"digest=9f8":                     "at least four",
		"digest=":                        "at least four",
		"digest=9F86":                    "lower-case",
		"digest=md5:9f86":                "digest=sha256:9f86",
		"digest=" + digest("9f87") + "0": "is a digest or its beginning",
		"digest=9f86,digest=9f87":        "once",

		"digest=" + digest("9f87") + "|9f86":                                             `"9f86" is not a whole digest`,
		"digest=" + digest("9f87") + "|":                                                 `"" is not a whole digest`,
		"digest=" + strings.TrimPrefix(digest("9f87"), "sha256:") + "|" + digest("9f87"): "is not a whole digest",
		"digest=" + manyDigests(101):                                                     "at most 100",
	} {
		if got, err := names(selector); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want an error with %q", selector, got, err, want)
		}
	}

	if got, err := names("digest=" + manyDigests(100)); err != nil || len(got) != 0 {
		t.Errorf("a hundred: %v, %v", got, err)
	}

	large := []string{}
	for i := range 10 {
		image := plain("app", "Unsigned|")
		image.Name = digest(fmt.Sprint("77777", i))
		image.DockerImageConfig = strings.Repeat("x", 1<<20)
		s.mustCreate(t, image)
		large = append(large, image.Name)
	}
	if got, err := names(selectors.Digests(large[:5])); err != nil || len(got) != 5 {
		t.Errorf("five of 1 MiB: %v, %v", got, err)
	}
	if got, err := names(selectors.Digests(large)); !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "ask for fewer") {
		t.Errorf("ten of 1 MiB: %v, %v", got, err)
	}

	labelled := selecting("digest=sha256:9f86")
	labelled.LabelSelector = labels.SelectorFromSet(labels.Set{"team": "8"})
	if obj, err := s.images.List(requestContext(), labelled); err != nil || len(obj.(*imagev1.ImageList).Items) != 0 {
		t.Errorf("with another label: %v, %v", obj, err)
	}
	read = 0
	if _, err := names("digest=9f86,signatures.verified=True"); err != nil || read > 30 {
		t.Errorf("%d images were looked at of 63, %v", read, err)
	}

	if _, err := s.images.Watch(requestContext(), selecting("digest=sha256:9f86")); !apierrors.IsBadRequest(err) {
		t.Errorf("a watch: %v", err)
	}
	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selecting("digest=sha256:9f86")); !apierrors.IsBadRequest(err) {
		t.Errorf("delete of a collection: %v", err)
	}
	next := selecting("digest=sha256:9f86")
	next.Continue = "x"
	if _, err := s.images.List(requestContext(), next); !apierrors.IsBadRequest(err) {
		t.Errorf("a second page: %v", err)
	}
}

func manyDigests(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("sha256:%064x", i)
	}
	return strings.Join(all, "|")
}

// The bytes that are stored answer for a selector that does no more than to name images.
func TestDigestsIn(t *testing.T) {
	t.Parallel()
	a, b := fmt.Sprintf("sha256:%064x", 1), fmt.Sprintf("sha256:%064x", 2)
	for selector, want := range map[string]string{
		"digest=" + b + "|" + a:                a + " " + b,
		"digest==" + b + "|" + a + "|" + b:     a + " " + b,
		"digest=" + a:                          "",
		"digest!=" + a + "|" + b:               "",
		"digest=" + a + "|9f86":                "",
		"digest=" + a + "|" + b + ",used=true": "",
		"metadata.name=" + a + "|" + b:         "",
		"digest=" + manyDigests(101):           "",
		"":                                     "",
	} {
		if got, ok := imageregistry.DigestsIn(selector); strings.Join(got, " ") != want || ok != (want != "") {
			t.Errorf("%s: %v, %v", selector, got, ok)
		}
	}
}

// A tag is found without the registry's name.
func TestSelectTagsByShortName(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	for _, host := range []string{"a.example.com", "b.example.com:5000"} {
		for _, repository := range []string{"team/app", "app", "team/other"} {
			s.ref.Host, s.ref.Repository = host, repository
			s.lead(tags.New(s.ref), "sha256:"+strings.Repeat("1", 64), "test")
		}
	}
	ctx := genericapirequest.WithNamespace(context.Background(), tags.Namespace)
	for short, want := range map[string]int{"app:v1": 4, "team/app:v1": 2, "other:v1": 2, "app:v2": 0, "pp:v1": 0, "app": 4, "team": 0, "team/app": 0} {
		obj, err := s.tags.List(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector("short", short)})
		if err != nil {
			t.Fatal(err)
		}
		if got := len(obj.(*imagev1.ImageTagList).Items); got != want {
			t.Errorf("%s selects %d tags, want %d", short, got, want)
		}
	}
}
