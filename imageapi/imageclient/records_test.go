package imageclient_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
)

// roundTripper answers in place of a server.
type roundTripper func(*http.Request) *http.Response

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }

func tagged(i int) *record.Item {
	return &record.Item{Tag: &record.Tag{Reference: fmt.Sprint("registry.example.com/team/app:", i)}}
}

// What is recorded while a request is under way is recorded by the next one, together. Each gets
// its own answer.
func TestRecordsAreSentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		var mu sync.Mutex
		var sizes []int // of the requests
		client, err := imageclient.New(&rest.Config{Host: "http://server", Transport: roundTripper(func(r *http.Request) *http.Response {
			var sent, answer record.ImageRecord
			if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || r.URL.Path != "/apis/tidewaiter.dev/v1/imagerecords" {
				t.Error(r.URL.Path, err)
			}
			mu.Lock()
			sizes = append(sizes, len(sent.Spec.Items))
			mu.Unlock()
			<-first
			for _, item := range sent.Spec.Items {
				result := record.Result{Led: item.Tag.Reference}
				if item.Tag.Reference == "registry.example.com/team/app:7" {
					result.Error = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonConflict}
				}
				answer.Status.Items = append(answer.Status.Items, result)
			}
			recorder := httptest.NewRecorder()
			if err := json.NewEncoder(recorder).Encode(answer); err != nil {
				t.Error(err)
			}
			return recorder.Result()
		})})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range record.MaxItems + 2 {
			all.Go(func() {
				result, err := client.Record(t.Context(), tagged(i))
				if apierrors.IsConflict(err) != (i == 7) || i != 7 && (err != nil || result.Led != tagged(i).Tag.Reference) {
					t.Error(i, result, err)
				}
			})
		}
		synctest.Wait()
		if n := len(sizes); n != 1 {
			t.Errorf("%d requests are under way", n)
		}
		close(first)
		all.Wait()
		if len(sizes) > 3 || slices.Max(sizes) > record.MaxItems {
			t.Errorf("the records have %v items", sizes)
		}
	})
}

// An item that a server does not take is refused alone, although others are sent with it.
func TestAnItemThatIsNotTakenIsRefusedAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := make(chan struct{})
		client, err := imageclient.New(&rest.Config{Host: "http://server", Transport: roundTripper(func(r *http.Request) *http.Response {
			var sent, answer record.ImageRecord
			if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
				t.Error(err)
			}
			<-first
			recorder := httptest.NewRecorder()
			recorder.Header().Set("Content-Type", "application/json")
			if slices.ContainsFunc(sent.Spec.Items, func(item record.Item) bool { return item.Tag == nil }) {
				recorder.WriteHeader(http.StatusUnprocessableEntity)
				fmt.Fprint(recorder, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
				return recorder.Result()
			}
			for _, item := range sent.Spec.Items {
				answer.Status.Items = append(answer.Status.Items, record.Result{Led: item.Tag.Reference})
			}
			if err := json.NewEncoder(recorder).Encode(answer); err != nil {
				t.Error(err)
			}
			return recorder.Result()
		})})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 10 {
			all.Go(func() {
				item := tagged(i)
				if i == 7 {
					item = &record.Item{Repository: &record.Repository{Name: "registry.example.com/team/app"}}
				}
				if _, err := client.Record(t.Context(), item); apierrors.IsInvalid(err) != (i == 7) || i != 7 && err != nil {
					t.Error(i, err)
				}
			})
		}
		synctest.Wait()
		close(first)
		all.Wait()
	})
}

// A server that takes no records is not asked again. What is too large for one is not sent.
func TestRecordsThatAreNotTaken(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusMethodNotAllowed} {
		asked := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked++
			w.WriteHeader(status)
		}))
		defer server.Close()
		client, err := imageclient.New(&rest.Config{Host: server.URL})
		if err != nil {
			t.Fatal(err)
		}
		large := &record.Item{Image: &record.Image{DockerImageManifest: string(make([]byte, record.MaxBytes))}}
		for _, item := range []*record.Item{large, tagged(1), tagged(2)} {
			if _, err := client.Record(t.Context(), item); !errors.Is(err, record.ErrUnsupported) {
				t.Errorf("%d: %v", status, err)
			}
		}
		if asked != 1 {
			t.Errorf("%d: it was asked %d times", status, asked)
		}
	}
}
