package podlogs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"
	podrest "k8s.io/kubernetes/pkg/registry/core/pod/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// mirrorUID is the annotation that the kubelet puts on the mirror of a static
// pod; it names the UID that the log directory carries
// (k8s.io/kubernetes/pkg/kubelet/types.ConfigMirrorAnnotationKey).
const mirrorUID = "kubernetes.io/config.mirror"

// REST is the log subresource of pods.
type REST struct {
	podrest.LogREST // everything but Get; its Get reads from kubelets
	opts            Options
	slots           *room.Room

	// transports of kubelet requests, with and without verification
	verified, unverified http.RoundTripper
}

var _ rest.GetterWithOptions = (*REST)(nil)

// NewREST returns the log subresource of the pods in store.
func NewREST(store *genericregistry.Store, opts Options) (*REST, error) {
	if err := opts.Check(); err != nil {
		return nil, err
	}
	if opts.MaxStreams == 0 {
		opts.MaxStreams = defaultMaxStreams()
	}
	opts.Clock = cmp.Or[clock.PassiveClock](opts.Clock, clock.RealClock{})
	r := &REST{LogREST: podrest.LogREST{Store: store}, opts: opts, slots: room.New(int64(opts.MaxStreams), int64(max(1, opts.MaxStreams/2)))}
	if k := opts.Kubelet; k != nil {
		config := &kubeletclient.KubeletClientConfig{TLSClientConfig: kubeletclient.KubeletTLSConfig{
			CertFile: k.CertFile, KeyFile: k.KeyFile, CAFile: k.CAFile,
		}}
		var err error
		if r.verified, err = kubeletclient.MakeTransport(config); err != nil {
			return nil, fmt.Errorf("kubelet client: %w", err)
		}
		if r.unverified, err = kubeletclient.MakeInsecureTransport(config); err != nil {
			return nil, fmt.Errorf("kubelet client: %w", err)
		}
	}
	return r, nil
}

// Get returns the log of the named pod as a stream: from a file when the pod
// has a log directory, else from its node's kubelet.
func (r *REST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	opts, ok := options.(*api.PodLogOptions)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("log options are %T, not PodLogOptions", options))
	}
	splits := utilfeature.DefaultFeatureGate.Enabled(features.PodLogsQuerySplitStreams)
	if splits && opts.Stream == nil {
		all := api.LogStreamAll
		opts.Stream = &all
	}
	if errs := validation.ValidatePodLogOptions(opts, splits); len(errs) > 0 {
		// before the pod is looked for, as upstream
		return nil, apierrors.NewInvalid(api.Kind("PodLogOptions"), name, errs)
	}
	pod, err := r.pod(ctx, name)
	if err != nil {
		return nil, err
	}
	if r.opts.Dir != "" {
		stream, err := r.fromFile(ctx, pod, opts)
		if !errors.Is(err, errNoLog) {
			return stream, err
		}
		if pod.Spec.NodeName == "" || r.opts.Kubelet == nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s has no log in the pod log directory: %v", name, err))
		}
	}
	return r.fromKubelet(ctx, pod, opts)
}

func (r *REST) pod(ctx context.Context, name string) (*api.Pod, error) {
	obj, err := r.Store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*api.Pod), nil
}

// fromFile answers from the log directory, or fails with errNoLog when the pod has no log
// there.
func (r *REST) fromFile(ctx context.Context, pod *api.Pod, opts *api.PodLogOptions) (runtime.Object, error) {
	stdout, stderr := true, true
	if opts.Stream != nil {
		stdout = *opts.Stream != api.LogStreamStderr
		stderr = *opts.Stream != api.LogStreamStdout
	}
	name, err := containerOf(ctx, pod, opts)
	if err != nil {
		return nil, err
	}
	uid := cmp.Or(pod.Annotations[mirrorUID], string(pod.UID))
	dir := podDir(pod.Namespace, pod.Name, uid)
	file, restarts, err := logFile(r.opts.Dir, dir, name, false)
	if err == nil && opts.Previous && !waitsAfter(pod, name, restarts) {
		file, restarts, err = logFile(r.opts.Dir, dir, name, true)
	}
	if errors.Is(err, errNoLog) {
		if opts.Previous {
			err = fmt.Errorf("previous run of %w", err)
		}
		return nil, err
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	var sinceTime metav1.Time
	if opts.SinceTime != nil {
		sinceTime = *opts.SinceTime
	}
	return &fileStream{
		path: file,
		opts: logOptions{
			tailLines:  opts.TailLines,
			limitBytes: opts.LimitBytes,
			since:      since(r.opts.Clock.Now(), opts.SinceSeconds, sinceTime.Time),
			follow:     opts.Follow && !opts.Previous, // the previous run is over
			timestamps: opts.Timestamps,
		},
		stdout: stdout,
		stderr: stderr,
		container: &container{
			get: func(ctx context.Context) (*api.Pod, error) {
				// A stream has the request's context, without its namespace.
				return r.pod(genericapirequest.WithNamespace(ctx, pod.Namespace), pod.Name)
			},
			uid:      pod.UID,
			name:     name,
			restarts: restarts,
			clock:    r.opts.Clock,
		},
		slots: r.slots,
	}, nil
}

// containerOf chooses the container by Kubernetes' own rule, which is part of the
// function that makes a kubelet's URL: the container is the URL's last element.
func containerOf(ctx context.Context, pod *api.Pod, opts *api.PodLogOptions) (string, error) {
	assigned := *pod
	assigned.Spec.NodeName = "any"
	location, _, err := podregistry.LogLocation(ctx, fixedPod{&assigned}, fixedKubelet{&kubeletclient.ConnectionInfo{}}, pod.Name, opts)
	if err != nil {
		return "", err
	}
	return path.Base(location.Path), nil
}

// fromKubelet answers from the kubelet of the pod's node.
func (r *REST) fromKubelet(ctx context.Context, pod *api.Pod, opts *api.PodLogOptions) (runtime.Object, error) {
	upstream := podrest.LogREST{Store: r.Store}
	if pod.Spec.NodeName == "" {
		// Kubernetes' own Get validates the request. It answers with nothing: no
		// container has run yet.
		return upstream.Get(ctx, pod.Name, opts)
	}
	if r.opts.Kubelet == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("no source for the log of pod %s: the server was started with neither a pod log directory nor kubelet credentials", pod.Name))
	}
	if r.opts.Kubelet.CAFile == "" && !opts.InsecureSkipTLSVerifyBackend {
		return nil, apierrors.NewBadRequest("the server has no certificate authority to verify kubelets with; configure one, or request with insecureSkipTLSVerifyBackend=true")
	}
	host, port, err := r.opts.Kubelet.endpoint(pod.Status.HostIP, pod.Spec.NodeName)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("cannot tell the kubelet of pod %s: %v", pod.Name, err))
	}
	upstream.KubeletConn = fixedKubelet{&kubeletclient.ConnectionInfo{
		Scheme: "https", Hostname: host, Port: port,
		Transport: r.verified, InsecureSkipTLSVerifyTransport: r.unverified,
	}}
	return upstream.Get(ctx, pod.Name, opts)
}

// fixedPod gets the same pod each time.
type fixedPod struct{ pod *api.Pod }

func (p fixedPod) Get(context.Context, string, *metav1.GetOptions) (runtime.Object, error) {
	return p.pod, nil
}

// fixedKubelet is the connection to one kubelet, whatever the node's name.
type fixedKubelet struct{ info *kubeletclient.ConnectionInfo }

func (k fixedKubelet) GetConnectionInfo(context.Context, types.NodeName) (*kubeletclient.ConnectionInfo, error) {
	return k.info, nil
}
