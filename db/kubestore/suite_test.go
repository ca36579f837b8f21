package kubestore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"go/build"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
}

// transformerPrefix is put before every value by the suite's transformer.
const transformerPrefix = "test!"

// fixture is a Store of example Pods, as the upstream suite wants it.
type fixture struct {
	*Store
	db          *db.DB
	transformer *storagetesting.PrefixTransformer
}

func setup(t testing.TB, change ...func(*Config)) *fixture {
	t.Helper()
	d := dbtest.Open(t, func(o *db.Options) {
		o.MaintenanceInterval = 20 * time.Millisecond
		if shared != nil {
			o.Truth = shared(t)
		}
	})
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := setupOn(t, d, change...)
	if shared != nil { // an etcd of Kubernetes also has keys before a test begins
		f.increaseRV(t.Context(), t.(*testing.T))
	}
	return f
}

// shared, if not nil, makes the store that a test's database copies.
var shared func(testing.TB) truth.Store

// etcdServers, in the environment, has the addresses of etcd, separated by commas, for
// TestUpstreamOnEtcd. The e2e tests set it.
const etcdServers = "TIDEWAITER_TEST_ETCD_SERVERS"

// TestUpstreamOnSharedStore is TestUpstream for databases that are copies of a store in memory.
func TestUpstreamOnSharedStore(t *testing.T) {
	shared = func(testing.TB) truth.Store { return dbtest.NewTruth() }
	defer func() { shared = nil }()
	TestUpstream(t)
}

// TestUpstreamOnEtcd is TestUpstream for databases that are copies of etcd, if the environment
// names one.
func TestUpstreamOnEtcd(t *testing.T) {
	servers := os.Getenv(etcdServers)
	if servers == "" {
		t.Skipf("%s is not set: e2e sets it", etcdServers)
	}
	shared = func(t testing.TB) truth.Store {
		s, err := etcd.New(etcd.Options{Servers: strings.Split(servers, ","), Prefix: t.Name() + rand.Text()})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	defer func() { shared = nil }()
	TestUpstream(t)
}

func setupOn(t testing.TB, d *db.DB, change ...func(*Config)) *fixture {
	t.Helper()
	tr := storagetesting.NewPrefixTransformer([]byte(transformerPrefix), false)
	cfg := Config{
		DB:               d,
		Codec:            apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion),
		New:              func() runtime.Object { return &example.Pod{} },
		NewList:          func() runtime.Object { return &example.PodList{} },
		ResourcePrefix:   "/pods/",
		GroupResource:    schema.GroupResource{Resource: "pods"},
		Transformer:      tr,
		ProgressInterval: time.Second,
	}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Triggers == nil { // otherwise an index may be using it now
		s.transformer = cfg.Transformer // without markingTransformer, because the suite distinguishes its own errors
	}
	return &fixture{Store: s, db: d, transformer: tr}
}

// UpdatePrefixTransformer implements storagetesting.InterfaceWithPrefixTransformer.
func (f *fixture) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	orig, tr := f.Store.transformer, *f.transformer
	f.Store.transformer = modify(&tr)
	return func() { f.Store.transformer = orig }
}

// UpdateTransformer implements storagetesting.InterfaceWithTransformerOverride.
func (f *fixture) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	orig := f.Store.transformer
	f.Store.transformer = modify(orig)
	return func() { f.Store.transformer = orig }
}

// reporting is a fixture with the Store that a registry gets when unsafe deletion is on.
type reporting struct {
	storage.Interface
	*fixture
}

func (r reporting) UpdateTransformer(m storagetesting.TransformerModifier) func() {
	return r.fixture.UpdateTransformer(m)
}

// storedAsJSON checks that the file has the object as plain JSON without a revision.
func (f *fixture) storedAsJSON(ctx context.Context, t *testing.T, key string) {
	kv, ok, _, err := f.db.Get(ctx, key)
	if err != nil || !ok {
		t.Fatalf("get %s: found %v, %v", key, ok, err)
	}
	obj, err := runtime.Decode(f.Store.codec, kv.Value[len(transformerPrefix):])
	if err != nil {
		t.Fatalf("decode %q: %v", kv.Value, err)
	}
	if pod := metav1.Object(obj.(*example.Pod)); pod.GetResourceVersion() != "" || pod.GetSelfLink() != "" {
		t.Errorf("stored object has resourceVersion %q and selfLink %q, want none", pod.GetResourceVersion(), pod.GetSelfLink())
	}
}

// compact also raises the revision by one, like the write of etcd's compactor, which the suite
// expects.
func (f *fixture) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	rev, err := f.versioner.ParseResourceVersion(resourceVersion)
	if err == nil {
		err = f.db.Compact(ctx, int64(rev))
	}
	if err != nil {
		t.Fatalf("compact: %v", err)
	}
	f.increaseRV(ctx, t)
}

// increaseRV writes an object of another resource.
func (f *fixture) increaseRV(ctx context.Context, t *testing.T) int64 {
	kv, _, _, err := f.db.Get(ctx, "/other")
	if err == nil {
		kv.Rev, err = f.db.Put(ctx, "/other", kv.Rev, []byte("ok"), db.PutOptions{})
	}
	if err != nil {
		t.Fatalf("increase revision: %v", err)
	}
	return kv.Rev
}

// calls checks that a list decoded as many objects as it had to and no more.
func (f *fixture) calls(t *testing.T, _, want uint64) {
	if got := f.transformer.GetReadsAndReset(); got != want {
		t.Errorf("list read %d objects, want %d", got, want)
	}
}

// faultyTransformer fails on purpose, in one of the two places where a stored object is read.
type faultyTransformer struct {
	value.Transformer
	fail atomic.Bool
}

func (f *faultyTransformer) TransformFromStorage(ctx context.Context, data []byte, dc value.Context) ([]byte, bool, error) {
	if f.fail.Load() {
		return nil, false, errors.New("synthetic error")
	}
	return f.Transformer.TransformFromStorage(ctx, data, dc)
}

type faultyCodec struct {
	runtime.Codec
	fail atomic.Bool
}

func (f *faultyCodec) Decode(data []byte, gvk *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.fail.Load() {
		return nil, nil, errors.New("synthetic error")
	}
	return f.Codec.Decode(data, gvk, into)
}

func unsafeDeletion(t *testing.T, on bool) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, on)
}

var errFlipped = &corruptError{kind: untransformable, err: errors.New("bits flipped")}

// notRun has the Run functions of the upstream suite that are not run here, with the reason. It is
// empty: functions that need hooks into etcd get our hooks, and List uses its recorder of etcd's
// client only to look behind a watch cache.
var notRun = map[string]string{}

// TestUpstreamIsWhole reads the suite's source, and fails if there is a function that this package
// does not call.
func TestUpstreamIsWhole(t *testing.T) {
	const suite = "k8s.io/apiserver/pkg/storage/testing"
	pkg, err := build.Import(suite, ".", 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var calls []byte
	for _, file := range ours {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		calls = append(calls, b...)
	}
	run := regexp.MustCompile(`(?m)^func (Run\w+)\(`)
	functions := 0
	for _, file := range pkg.GoFiles {
		b, err := os.ReadFile(filepath.Join(pkg.Dir, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range run.FindAllSubmatch(b, -1) {
			functions++
			name := string(m[1])
			called := bytes.Contains(calls, []byte("storagetesting."+name+"("))
			if reason, skipped := notRun[name]; called == skipped {
				t.Errorf("%s: called %v, reason not to: %q", name, called, reason)
			}
		}
	}
	if functions < 60 {
		t.Errorf("found %d functions in %s, which has more than 60", functions, pkg.Dir)
	}
}

// TestUpstream runs the contract of storage.Interface: every Run function of
// k8s.io/apiserver/pkg/storage/testing, except those in notRun.
func TestUpstream(t *testing.T) {
	ctx := context.Background()
	tests := []struct {
		name string
		run  func(t *testing.T)
	}{
		{"Create", func(t *testing.T) { f := setup(t); storagetesting.RunTestCreate(ctx, t, f, f.storedAsJSON) }},
		{"CreateWithTTL", func(t *testing.T) { storagetesting.RunTestCreateWithTTL(ctx, t, setup(t)) }},
		{"CreateWithKeyExist", func(t *testing.T) { storagetesting.RunTestCreateWithKeyExist(ctx, t, setup(t)) }},
		{"Get", func(t *testing.T) { storagetesting.RunTestGet(ctx, t, setup(t)) }},
		{"UnconditionalDelete", func(t *testing.T) { storagetesting.RunTestUnconditionalDelete(ctx, t, setup(t)) }},
		{"ConditionalDelete", func(t *testing.T) { storagetesting.RunTestConditionalDelete(ctx, t, setup(t)) }},
		{"DeleteWithSuggestion", func(t *testing.T) { storagetesting.RunTestDeleteWithSuggestion(ctx, t, setup(t)) }},
		{"DeleteWithSuggestionAndConflict", func(t *testing.T) { storagetesting.RunTestDeleteWithSuggestionAndConflict(ctx, t, setup(t)) }},
		{"DeleteWithConflict", func(t *testing.T) { storagetesting.RunTestDeleteWithConflict(ctx, t, setup(t)) }},
		{"DeleteWithSuggestionOfDeletedObject", func(t *testing.T) { storagetesting.RunTestDeleteWithSuggestionOfDeletedObject(ctx, t, setup(t)) }},
		{"ValidateDeletionWithSuggestion", func(t *testing.T) { storagetesting.RunTestValidateDeletionWithSuggestion(ctx, t, setup(t)) }},
		{"ValidateDeletionWithOnlySuggestionValid", func(t *testing.T) { storagetesting.RunTestValidateDeletionWithOnlySuggestionValid(ctx, t, setup(t)) }},
		{"PreconditionalDeleteWithSuggestion", func(t *testing.T) { storagetesting.RunTestPreconditionalDeleteWithSuggestion(ctx, t, setup(t)) }},
		{"PreconditionalDeleteWithOnlySuggestionPass", func(t *testing.T) {
			storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass(ctx, t, setup(t))
		}},
		{"List", func(t *testing.T) { f := setup(t); storagetesting.RunTestList(ctx, t, f, f.compact, false, nil) }},
		{"DeleteWithConflictAndMissingExpectedTransformOrDecodeError", func(t *testing.T) {
			unsafeDeletion(t, true)
			c := &faultyCodec{}
			f := setup(t, func(cfg *Config) { c.Codec = cfg.Codec; cfg.Codec = c })
			storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(ctx, t, f, c.fail.Store)
		}},
		{"DeleteExpectedTransformError", func(t *testing.T) {
			unsafeDeletion(t, true)
			tr := &faultyTransformer{}
			f := setup(t, func(cfg *Config) { tr.Transformer = cfg.Transformer; cfg.Transformer = tr })
			storagetesting.RunTestDeleteExpectedTransformOrDecodeError(ctx, t, f, tr.fail.Store)
		}},
		{"DeleteExpectedDecodeError", func(t *testing.T) {
			unsafeDeletion(t, true)
			c := &faultyCodec{}
			f := setup(t, func(cfg *Config) { c.Codec = cfg.Codec; cfg.Codec = c })
			storagetesting.RunTestDeleteExpectedTransformOrDecodeError(ctx, t, f, c.fail.Store)
		}},
		{"DeleteWithSuggestionAndMissingExpectedTransformOrDecodeError", func(t *testing.T) {
			unsafeDeletion(t, true)
			storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(ctx, t, setup(t))
		}},
		{"ConsistentList", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunTestConsistentList(ctx, t, f, f.increaseRV, false, true, false)
		}},
		{"GetListNonRecursive", func(t *testing.T) { f := setup(t); storagetesting.RunTestGetListNonRecursive(ctx, t, f.increaseRV, f) }},
		{"GetListRecursivePrefix", func(t *testing.T) { storagetesting.RunTestGetListRecursivePrefix(ctx, t, setup(t)) }},
		{"GetListWithErrorAggregation", func(t *testing.T) {
			unsafeDeletion(t, true)
			f := setup(t)
			storagetesting.RunTestGetListWithErrorAggregation(ctx, t, &reporting{corruptReporter{f.Store}, f}, errFlipped)
		}},
		{"GetListWithoutErrorAggregation", func(t *testing.T) {
			unsafeDeletion(t, false)
			storagetesting.RunTestGetListWithoutErrorAggregation(ctx, t, setup(t), errFlipped)
		}},
		{"ListContinuation", func(t *testing.T) { f := setup(t); storagetesting.RunTestListContinuation(ctx, t, f, f.calls) }},
		{"ListPaginationRareObject", func(t *testing.T) { f := setup(t); storagetesting.RunTestListPaginationRareObject(ctx, t, f, f.calls) }},
		{"ListContinuationWithFilter", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunTestListContinuationWithFilter(ctx, t, f, f.calls)
		}},
		{"ListInconsistentContinuation", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunTestListInconsistentContinuation(ctx, t, f, f.compact)
		}},
		{"ListResourceVersionMatch", func(t *testing.T) { storagetesting.RunTestListResourceVersionMatch(ctx, t, setup(t)) }},
		{"ListPaging", func(t *testing.T) { storagetesting.RunTestListPaging(ctx, t, setup(t)) }},
		{"NamespaceScopedList", func(t *testing.T) { storagetesting.RunTestNamespaceScopedList(ctx, t, setup(t)) }},
		{"GuaranteedUpdate", func(t *testing.T) { f := setup(t); storagetesting.RunTestGuaranteedUpdate(ctx, t, f, f.storedAsJSON) }},
		{"GuaranteedUpdateWithTTL", func(t *testing.T) { storagetesting.RunTestGuaranteedUpdateWithTTL(ctx, t, setup(t)) }},
		{"GuaranteedUpdateChecksStoredData", func(t *testing.T) { storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, setup(t)) }},
		{"GuaranteedUpdateWithConflict", func(t *testing.T) { storagetesting.RunTestGuaranteedUpdateWithConflict(ctx, t, setup(t)) }},
		{"GuaranteedUpdateWithSuggestionAndConflict", func(t *testing.T) {
			storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict(ctx, t, setup(t))
		}},
		{"TransformationFailure", func(t *testing.T) { storagetesting.RunTestTransformationFailure(ctx, t, setup(t)) }},
		{"Stats", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunTestStats(ctx, t, f, f.codec, f.Store.transformer, false)
		}},
		{"StatsWithSizes", func(t *testing.T) {
			f := setup(t)
			if err := f.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			storagetesting.RunTestStats(ctx, t, f, f.codec, f.Store.transformer, true)
		}},
		{"CompactRevision", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunTestCompactRevision(ctx, t, f, f.increaseRV, f.compact)
		}},
		{"KeySchema", func(t *testing.T) { storagetesting.RunTestKeySchema(ctx, t, setup(t)) }},

		{"Watch", func(t *testing.T) { storagetesting.RunTestWatch(ctx, t, setup(t)) }},
		{"WatchFromZero", func(t *testing.T) { f := setup(t); storagetesting.RunTestWatchFromZero(ctx, t, f, f.compact) }},
		{"DeleteTriggerWatch", func(t *testing.T) { storagetesting.RunTestDeleteTriggerWatch(ctx, t, setup(t)) }},
		{"WatchFromNonZero", func(t *testing.T) { storagetesting.RunTestWatchFromNonZero(ctx, t, setup(t)) }},
		{"DelayedWatchDelivery", func(t *testing.T) { storagetesting.RunTestDelayedWatchDelivery(ctx, t, setup(t)) }},
		{"WatchError", func(t *testing.T) { storagetesting.RunTestWatchError(ctx, t, setup(t)) }},
		{"WatchWithUnsafeDelete", func(t *testing.T) {
			unsafeDeletion(t, true)
			storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, setup(t), errFlipped)
		}},
		{"WatchContextCancel", func(t *testing.T) { storagetesting.RunTestWatchContextCancel(ctx, t, setup(t)) }},
		{"WatcherTimeout", func(t *testing.T) { storagetesting.RunTestWatcherTimeout(ctx, t, setup(t)) }},
		{"WatchDeleteEventObjectHaveLatestRV", func(t *testing.T) { storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV(ctx, t, setup(t)) }},
		{"WatchInitializationSignal", func(t *testing.T) { storagetesting.RunTestWatchInitializationSignal(ctx, t, setup(t)) }},
		{"ProgressNotify", func(t *testing.T) {
			f := setup(t)
			storagetesting.RunOptionalTestProgressNotify(ctx, t, f, f.increaseRV)
		}},
		{"ClusterScopedWatch", func(t *testing.T) { storagetesting.RunTestClusterScopedWatch(ctx, t, setup(t)) }},
		{"NamespaceScopedWatch", func(t *testing.T) { storagetesting.RunTestNamespaceScopedWatch(ctx, t, setup(t)) }},
		{"WatchDispatchBookmarkEvents", func(t *testing.T) { storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, setup(t), true) }},
		{"OptionalWatchBookmarksWithCorrectResourceVersion", func(t *testing.T) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(ctx, t, setup(t))
		}},
		{"SendInitialEventsBackwardCompatibility", func(t *testing.T) {
			storagetesting.RunSendInitialEventsBackwardCompatibility(ctx, t, setup(t))
		}},
		{"WatchSemantics", func(t *testing.T) { storagetesting.RunWatchSemantics(ctx, t, setup(t)) }},
		{"WatchSemanticInitialEventsExtended", func(t *testing.T) { storagetesting.RunWatchSemanticInitialEventsExtended(ctx, t, setup(t)) }},
		{"WatchListMatchSingle", func(t *testing.T) { storagetesting.RunWatchListMatchSingle(ctx, t, setup(t)) }},
		{"WatchErrorIsBlockingFurtherEvents", func(t *testing.T) { storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, setup(t)) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.run)
	}
}
