package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
)

// podSource finds references in the pods of a cluster.
type podSource struct {
	enabled       bool
	allNamespaces bool
	namespace     string
	kubeconfig    string
}

func (s *podSource) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&s.enabled, "from-pods", false, "import every image that pods run, by digest where it is known")
	f.BoolVarP(&s.allNamespaces, "all-namespaces", "A", false, "with --from-pods: read the pods of all namespaces")
	f.StringVarP(&s.namespace, "namespace", "n", metav1.NamespaceDefault, "with --from-pods: read the pods of this namespace")
	f.StringVar(&s.kubeconfig, "source-kubeconfig", "", "with --from-pods: kubeconfig of the cluster that runs the pods (default: the server to import into)")
}

func (s *podSource) validate(listed, dryRun bool) error {
	switch {
	case !s.enabled && (s.allNamespaces || s.kubeconfig != "" || s.namespace != metav1.NamespaceDefault):
		return cli.Misuse(errors.New("-A, -n and --source-kubeconfig need --from-pods"), "tidewaiter import --from-pods -A")
	case s.enabled && listed:
		return cli.Misuse(errors.New("--from-pods reads references, --all-tags needs repositories, and --catalog needs registries"), "give one of them")
	case s.enabled && dryRun && s.kubeconfig == "":
		return cli.Misuse(errors.New("a dry run does not contact a server, so it cannot list pods"), "tidewaiter import --from-pods --dry-run --source-kubeconfig tidewaiter-data/admin.kubeconfig")
	}
	return nil
}

// add returns jobs and after them the imports of what pods run, each once. It asks server
// unless another source is given.
func (s *podSource) add(ctx context.Context, jobs []bulk.Job, server *restclient.Config) ([]bulk.Job, error) {
	if !s.enabled {
		return jobs, nil
	}
	config := server
	if s.kubeconfig != "" {
		source, err := kubeconfigConfig(s.kubeconfig)
		if err != nil {
			return nil, cli.WithHint(fmt.Errorf("--source-kubeconfig: %w", err), "--source-kubeconfig names the kubeconfig of the cluster that has the pods")
		}
		config = newAPITarget(source).Config
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	namespace := s.namespace
	if s.allNamespaces {
		namespace = metav1.NamespaceAll
	}
	seen := map[bulk.Job]bool{}
	for _, j := range jobs {
		seen[j] = true
	}
	jobs = slices.Clone(jobs)
	pods := pager.New(pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		return client.CoreV1().Pods(namespace).List(ctx, options)
	}))
	err = pods.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		for _, ref := range usage.Images(obj.(*corev1.Pod)) {
			j := bulk.Job{Ref: ref}
			if seen[j] {
				continue
			}
			if len(jobs) == bulk.MaxReferences {
				return fmt.Errorf("the pods run more than %d images: import them by namespace", bulk.MaxReferences)
			}
			seen[j] = true
			jobs = append(jobs, j)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	if len(jobs) == 0 {
		return nil, cli.WithHint(errors.New("no pod in that namespace runs an image"), "-A reads all namespaces")
	}
	return jobs, nil
}
