package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
)

// maxJobs bounds --jobs: every job holds a manifest and a config in memory.
const maxJobs = 64

type importOptions struct {
	files        []string
	allTags      bool
	catalog      bool
	selection    bulk.Selection
	platforms    []string
	layers       string
	jobs         int
	dryRun       bool
	output       cli.Output
	failures     string
	noSignatures bool
	storeAs      string
	create       bool // of the data directory
	registries   registryOptions
	pods         podSource
	clientOptions
}

func newImportCommand() *cobra.Command {
	o := &importOptions{}
	cmd := &cobra.Command{
		Use:   "import REFERENCE...",
		Short: "Import images from their registries, or from files",
		Long: `Import images from their registries: one Image each, and one for every platform
of a multi-platform image. Files are named as skopeo names them: oci:DIR[:NAME],
oci-archive:FILE[:NAME], docker-archive:FILE[:NAME] and dir:DIR.

Registries are asked with the credentials, the certificates and the registries.conf
that skopeo and podman use.

Images go to the server of --kubeconfig or --server; else to the one that holds
the data directory; else, without --data-dir, to that of the environment's
KUBECONFIG; else, if no server runs, directly into the directory. The first
line on standard error says where. --token-file, --token or the environment's
TIDEWAITER_TOKEN replaces any other credential for the server.

A reference that fails does not stop the others. If a registry asks for a pause or
stops answering for a moment, its references wait while the others go on. Anything
that is not an image, such as a chart or a signature, is skipped and counted. The
exit code is 0 if nothing failed, 1 if something did, 2 if nothing was imported, and
3 if there was nothing to import and nothing failed.

Patterns of --include and --exclude are REPOSITORY, REPOSITORY:TAG or :TAG. * and ?
match characters, [a-z] matches one of a set; none of them matches / in a repository.
** as the last segment matches everything below.`,
		Example: `  # One image, with all its platforms
  tidewaiter import registry.example.com/team/app:v1

  # Every tag of a repository, 16 at a time
  tidewaiter import --all-tags --jobs 16 registry.example.com/team/app

  # All of a registry except images of pull requests; only the releases of one team
  tidewaiter import --catalog --exclude ':pr-*' registry.example.com/
  tidewaiter import --catalog --include 'team/**:v[0-9]*' registry.example.com/

  # The five newest images of each repository, if created in the last two weeks
  tidewaiter import --catalog --newest 5 --changed-since 14d registry.example.com/

  # References from a file, one per line; "-" reads standard input
  tidewaiter import -f references.txt

  # The archive that a build wrote, under the name that it will have in its registry
  tidewaiter import oci-archive:build/app.tar --store-as registry.example.com/team/app:v1

  # From a registry whose certificate is signed by the company's own CA
  tidewaiter import --cert-dir certs/ registry.example.com/team/app:v1

  # Into a server elsewhere, as a service account
  tidewaiter import --server https://tidewaiter.example.com:6443 --certificate-authority ca.crt \
    --token-file token registry.example.com/team/app:v1

  # Retry what failed
  tidewaiter import -f references.txt --failures failed.txt
  tidewaiter import -f failed.txt

  # Every image that the pods of a cluster run
  tidewaiter import --from-pods -A --source-kubeconfig ~/.kube/config

  # Show what would be stored, without storing it
  tidewaiter import --dry-run -o yaml registry.example.com/team/app:v1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringArrayVarP(&o.files, "filename", "f", nil, `file of references, one per line, # begins a comment; REPOSITORY:* is all tags of a repository, HOST/** all of a registry; "-" is standard input`)
	f.BoolVar(&o.allTags, "all-tags", false, "the arguments are repositories: import each of their tags, but not signatures")
	f.BoolVar(&o.catalog, "catalog", false, "the arguments are registries: import each tag of each repository that they list")
	o.selection.AddFlags(f)
	f.StringVar(&o.storeAs, "store-as", "", "the reference under which to store the one image of an oci:, oci-archive:, docker-archive: or dir: argument")
	o.pods.addFlags(f)
	f.StringArrayVar(&o.platforms, "platform", nil, "import only this os/architecture[/variant][:os.version] of a multi-platform image; may be repeated")
	f.StringVar(&o.layers, "layers", string(importer.LayersFromManifest), `"manifest" takes the layers from the manifest, "verify" reads and checks each`)
	f.BoolVar(&o.noSignatures, "no-signatures", false, "do not look for signatures; known signatures stay")
	f.IntVar(&o.jobs, "jobs", 4, fmt.Sprintf("number of references to import at a time from one registry, 1 to %d", maxJobs))
	f.BoolVar(&o.dryRun, "dry-run", false, "read and check everything, store nothing")
	o.output.AddFlag(cmd, "a line for each reference", bulk.Outputs()...)
	f.StringVar(&o.failures, "failures", "", "file for the references that failed or were not tried, each with its reason; -f reads it")
	o.addFlags(cmd)
	f.BoolVar(&o.create, createFlag, false, "create the data directory if it does not exist, and import into it without a server")
	o.registries.addFlags(cmd)
	commonFirst(cmd, "filename", "all-tags", "catalog", "from-pods", "platform", "newest", "jobs", "dry-run", "output", "server", "token-file", "data-dir", "authfile")
	return cmd
}

func (o *importOptions) validate() error {
	if o.jobs < 1 || o.jobs > maxJobs {
		return cli.Misuse(fmt.Errorf("--jobs %d is not between 1 and %d", o.jobs, maxJobs), "tidewaiter import --jobs 8 …")
	}
	if o.catalog && o.allTags {
		return cli.Misuse(errors.New("--catalog needs registries, --all-tags needs repositories"), "give one of them")
	}
	if err := o.selection.Validate(time.Now()); err != nil {
		return err
	}
	if err := o.selection.ValidateListed(o.catalog || o.allTags || len(o.files) > 0); err != nil {
		// files may have lines such as team/app:*
		return err
	}
	return o.pods.validate(o.catalog || o.allTags, o.dryRun)
}

func (o *importOptions) run(cmd *cobra.Command, args []string) error {
	if err := o.validate(); err != nil {
		return err
	}
	parse := bulk.ParseImage
	switch {
	case o.catalog:
		parse = bulk.ParseRegistry
	case o.allTags:
		parse = bulk.ParseRepository
	}
	sources, args, err := o.openSources(args)
	if err != nil {
		return &cli.Exit{Code: cli.ExitUsage, Err: err}
	}
	defer sources.Close()
	jobs, err := bulk.CollectJobs(args, o.files, cmd.InOrStdin(), parse)
	if err != nil {
		return &cli.Exit{Code: cli.ExitUsage, Err: err}
	}
	if err := o.selection.ValidateListed(slices.ContainsFunc(jobs, func(j bulk.Job) bool { return j.Kind == bulk.ListJob })); err != nil {
		return err
	}
	if len(jobs) == 0 && len(sources) == 0 && !o.pods.enabled {
		if len(o.files) > 0 { // such as what --failures wrote when nothing failed
			return &cli.Exit{Code: cli.ExitNothing, Err: fmt.Errorf("%w: no reference is in %s", bulk.ErrNothing, strings.Join(o.files, ", "))}
		}
		return cli.Misuse(errors.New("there is nothing to import"), "tidewaiter import registry.example.com/team/app:v1")
	}
	cfg, err := config.Load(o.registries.configFile)
	if err != nil {
		return err
	}
	progress := bulk.NewProgress(cmd.ErrOrStderr())
	var demanded bulk.DemandedBy
	finder, err := config.NewFinder(cfg, &demanded)
	if err != nil {
		return err
	}
	options, err := o.registries.importerOptions(cfg)
	if err != nil {
		return err
	}
	options.Platforms, options.Layers = o.platforms, importer.LayersMode(o.layers)
	options.SignaturesAge = 24 * time.Hour // each digest is searched once
	if options.Progress = progress.Event; !o.noSignatures {
		options.Signatures = finder
	}
	options.Limits.HostConcurrency = max(8, o.jobs)
	// a registry that asks for more is paused, and its references wait without a slot
	options.Limits.MaxWait = time.Second
	im, err := importer.New(options)
	if err != nil {
		hint := "--layers manifest or --layers verify"
		if errors.Is(err, importer.ErrPlatform) {
			hint = "--platform is os/architecture[/variant]; leave it out to import all platforms"
		}
		return cli.Misuse(err, "%s", hint)
	}
	target, err := o.target(cmd)
	if err != nil {
		return err
	}
	if !o.dryRun {
		fmt.Fprintf(cmd.ErrOrStderr(), "importing into %s\n", target)
	}
	report := bulk.NewReport(o.output.String(), target.destination(), cmd.OutOrStdout(), cmd.ErrOrStderr(), progress)
	if o.failures != "" {
		if report.Failures, err = bulk.CreateFailures(o.failures); err != nil {
			return err
		}
		defer report.Failures.Close()
	}
	begun := time.Now()
	err = target.use(cmd.Context(), func(ctx context.Context, to destination) error {
		all, err := o.pods.add(ctx, jobs, to.Config)
		if err != nil {
			return err
		}
		jobs = nil // the batch keeps what is left of them
		if to.Config != nil && !o.noSignatures {
			demanded.Read(ctx, to.Config)
		}
		if to.packages != nil {
			im.KeepPackages(to.packages)
		}
		images := to.images
		if to.Config != nil {
			patience := &bulk.APIRetry{Clock: clock.RealClock{}, Print: progress.Note}
			images = func() importer.Images { return patience.Images(to.images()) }
		}
		b := bulk.New(im, images, o.jobs, &o.selection, report, progress)
		if to.Config != nil {
			// Events are secondary: an import does not care whether they arrive.
			recording, stop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{}))
			defer stop()
			recorder := &imageevents.Recorder{}
			if err := recorder.Start(recording, to.Config, to.Config, "tidewaiter-import"); err != nil {
				return err
			}
			defer recorder.Flush()
			b.Events = recorder
		}
		b.ImportSources(ctx, sources)
		err = b.Run(ctx, slices.DeleteFunc(all, func(j bulk.Job) bool { return j.Kind == bulk.ImportJob && !o.selection.Has(j.Ref) }))
		return errors.Join(err, report.Failures.End())
	})
	return report.End(err, im.Traffic(), time.Since(begun))
}

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

// add returns jobs, followed by a job for each image that pods run. It reads the pods from server
// unless the flags name another source.
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
	client, err := typedcorev1.NewForConfig(config)
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
		return client.Pods(namespace).List(ctx, options)
	}))
	err = pods.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		for _, ref := range podimages.Pullable(obj.(*corev1.Pod)) {
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
		return nil, cli.WithHint(fmt.Errorf("%w: no pod in that namespace runs an image", bulk.ErrNothing), "-A reads all namespaces")
	}
	return jobs, nil
}
