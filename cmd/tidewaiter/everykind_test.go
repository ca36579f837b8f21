package main

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
)

// TestListsOfEveryKind: a list without a limit, which the server joins of pages, is the list with
// one, whatever its kind and form: no kind is decoded as a whole.
func TestListsOfEveryKind(t *testing.T) {
	t.Parallel()
	config := serveOn(t, t.TempDir(), listen(t))
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	_, all, err := kubernetes.NewForConfigOrDie(config).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	read := func(path, accept string) (string, http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s: %s after %.200s, %v", path, resp.Status, text, err)
		}
		return resp.Status + "\n" + string(text), resp.Header
	}
	kinds := 0
	for _, list := range all {
		group, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool { return !slices.Contains(r.Verbs, "list") }) {
			path := "/apis/" + group.String() + "/" + r.Name
			if group.Group == "" {
				path = "/api/v1/" + r.Name
			}
			kinds++
			for _, accept := range []string{"application/json", "application/yaml", "application/json;as=Table;v=v1;g=meta.k8s.io", "application/vnd.kubernetes.protobuf"} {
				soon(t, path+" in "+accept, func() bool { // the server writes meanwhile
					joined, header := read(path, accept)
					paged, other := read(path+"?limit=500", accept)
					return joined == paged && strings.Join(header["Warning"], "\n") == strings.Join(other["Warning"], "\n") && header.Get("Content-Type") == other.Get("Content-Type")
				})
			}
		}
	}
	if kinds < 15 {
		t.Errorf("there are %d kinds", kinds)
	}
}
