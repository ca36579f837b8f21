package kubestore

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// FuzzContinue uses any text as a continue token. The list either refuses it as the client's fault,
// or returns only objects of the requested namespace, in order, and all after the key in the token.
func FuzzContinue(f *testing.F) {
	fx := setup(f)
	ctx := context.Background()
	for _, key := range []string{"a/one", "a/two", "b/one", "b/two", "c/one"} {
		ns, name, _ := strings.Cut(key, "/")
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		if err := fx.Create(ctx, "/pods/"+key, pod, nil, 0); err != nil {
			f.Fatal(err)
		}
	}
	token := func(json string) string { return base64.RawURLEncoding.EncodeToString([]byte(json)) }
	for _, json := range []string{
		`{"v":"meta.k8s.io/v1","rv":3,"start":"one\u0000"}`,
		`{"v":"meta.k8s.io/v1","rv":-1,"start":"one\u0000"}`,
		`{"v":"meta.k8s.io/v1","rv":0,"start":"one"}`,
		`{"v":"meta.k8s.io/v1","rv":1,"start":"../a/one"}`,
		`{"v":"meta.k8s.io/v1","rv":9223372036854775807,"start":"one"}`,
		`{"v":"meta.k8s.io/v1","rv":-9223372036854775808,"start":"\u00ff\uffff"}`,
		`{"v":"meta.k8s.io/v2","rv":1,"start":"one"}`,
		`{"v":"meta.k8s.io/v1","rv":1,"start":""}`,
		`[]`, ``, `null`,
	} {
		f.Add(token(json), int64(1))
	}
	f.Add("%%%", int64(0))
	f.Add(token(`{"v":"meta.k8s.io/v1","rv":6,"start":"one"}`), int64(100))

	f.Fuzz(func(t *testing.T, token string, limit int64) {
		pred := storage.Everything
		pred.Continue, pred.Limit = token, limit
		list := &example.PodList{}
		err := fx.GetList(ctx, "/pods/b", storage.ListOptions{Predicate: pred, Recursive: true}, list)
		if err != nil {
			if !apierrors.IsBadRequest(err) && !apierrors.IsResourceExpired(err) && !storage.IsTooLargeResourceVersion(err) {
				t.Fatalf("token %q: %v", token, err)
			}
			return
		}
		from := ""
		if token != "" {
			if from, _, err = storage.DecodeContinue(token, "/pods/b/"); err != nil {
				t.Fatalf("token %q was accepted: %v", token, err)
			}
		}
		last := ""
		for _, pod := range list.Items {
			key := "/pods/" + pod.Namespace + "/" + pod.Name
			if !strings.HasPrefix(key, "/pods/b/") || key < from || key <= last {
				t.Errorf("token %q gives %s", token, key)
			}
			last = key
		}
	})
}
