package imageclient_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

// TestRequests checks what each call asks of the server, and that it understands the answer.
func TestRequests(t *testing.T) {
	const base = "/apis/image.openshift.io/v1"
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:ab"}, DockerImageReference: "a/b"}
	signature := &imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: "sha256:ab@s"}, Type: "x", Content: []byte("y")}
	var got string
	var answer any
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Method + " " + r.URL.RequestURI()
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			var meta metav1.PartialObjectMetadata
			if err := json.Unmarshal(body, &meta); err != nil || meta.APIVersion != "image.openshift.io/v1" || meta.Kind == "" {
				t.Errorf("body %s: %v", body, err)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		if status, ok := answer.(*metav1.Status); ok && status.Code != 0 {
			w.WriteHeader(int(status.Code))
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&rest.Config{Host: server.URL}, config); diff != "" {
		t.Errorf("the caller's config was changed:\n%s", diff)
	}

	typed := func(obj any) any {
		switch o := obj.(type) {
		case *imagev1.Image:
			o = o.DeepCopy()
			o.TypeMeta = metav1.TypeMeta{Kind: "Image", APIVersion: "image.openshift.io/v1"}
			return o
		case *imagev1.ImageList:
			o = o.DeepCopy()
			o.TypeMeta = metav1.TypeMeta{Kind: "ImageList", APIVersion: "image.openshift.io/v1"}
			return o
		case *imagev1.ImageSignature:
			o = o.DeepCopy()
			o.TypeMeta = metav1.TypeMeta{Kind: "ImageSignature", APIVersion: "image.openshift.io/v1"}
			return o
		}
		return obj
	}
	list := &imagev1.ImageList{TypeMeta: metav1.TypeMeta{Kind: "ImageList", APIVersion: "image.openshift.io/v1"}, Items: []imagev1.Image{*image}}
	success := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
	ctx := t.Context()
	tests := []struct {
		name   string
		answer any
		call   func() (any, error)
		want   string
	}{
		{"get", typed(image), func() (any, error) { return client.Get(ctx, "sha256:ab", metav1.GetOptions{}) }, "GET " + base + "/images/sha256:ab"},
		{"list", list, func() (any, error) {
			return client.List(ctx, metav1.ListOptions{Limit: 5, FieldSelector: "dockerImageReference=a/b"})
		}, "GET " + base + "/images?fieldSelector=dockerImageReference%3Da%2Fb&limit=5"},
		{"create", typed(image), func() (any, error) { return client.Create(ctx, image, metav1.CreateOptions{}) }, "POST " + base + "/images"},
		{"update", typed(image), func() (any, error) { return client.Update(ctx, image, metav1.UpdateOptions{}) }, "PUT " + base + "/images/sha256:ab"},
		{"patch", typed(image), func() (any, error) {
			return client.Patch(ctx, "sha256:ab", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		}, "PATCH " + base + "/images/sha256:ab"},
		{"delete", success, func() (any, error) { return nil, client.Delete(ctx, "sha256:ab", metav1.DeleteOptions{}) }, "DELETE " + base + "/images/sha256:ab"},
		{"create signature", typed(signature), func() (any, error) { return client.CreateSignature(ctx, signature, metav1.CreateOptions{}) }, "POST " + base + "/imagesignatures"},
		{"delete signature", success, func() (any, error) {
			return nil, client.DeleteSignature(ctx, "sha256:ab@s", metav1.DeleteOptions{})
		}, "DELETE " + base + "/imagesignatures/sha256:ab@s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			answer = tt.answer
			obj, err := tt.call()
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("request %s, want %s", got, tt.want)
			}
			if obj == nil {
				return
			}
			want, _ := json.Marshal(tt.answer)
			read, _ := json.Marshal(typed(obj))
			if diff := cmp.Diff(string(want), string(read)); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("errors keep their type", func(t *testing.T) {
		status := apierrors.NewNotFound(imagev1.Resource("images"), "sha256:ab").Status()
		status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		answer = &status
		if _, err := client.Get(ctx, "sha256:ab", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("error %v", err)
		}
	})
}
