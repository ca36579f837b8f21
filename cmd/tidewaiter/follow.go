package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/cmd/internal/follower"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

type followOptions struct {
	kubeconfig string
	config     string
	name       string
	namespace  string
	duration   time.Duration
	dryRun     bool
}

// defaultConfig is the configuration file that follow makes where none is named.
const defaultConfig = "tidewaiter.yaml"

func newFollowCommand() *cobra.Command {
	o := &followOptions{}
	cmd := &cobra.Command{
		Use:   "follow [CONTEXT]",
		Short: "Have a server follow a cluster: make an account there, write a kubeconfig and the configuration",
		Long: `Have a server follow a cluster: it then knows what runs there. CONTEXT is one of your
kubeconfig (default: its current one), and your rights there must allow to make an account.

follow makes the service account, the cluster role and the binding tidewaiter-follower,
which may list and watch pods, nodes and workloads, and nothing else. It writes a
kubeconfig with a token of this account beside the configuration file, and names the
cluster in the file, which keeps all else that it holds. Start the server with this file,
or start it again.

Run follow again before the token ends: the account is brought up to date, and the
kubeconfig gets a new token, which the server uses within ten seconds.

With --dry-run, follow makes and writes nothing. It prints the commands that do the same,
for an administrator of the cluster to run.`,
		Example: `  # The cluster of the kubeconfig's current context
  tidewaiter follow
  tidewaiter serve --config tidewaiter.yaml

  # Another one, under a short name
  tidewaiter follow gke_acme_europe-west1_prod --name prod

  # What would an administrator of the cluster have to do?
  tidewaiter follow prod --dry-run`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.completeContexts,
		RunE:              o.run,
	}
	f := cmd.Flags()
	f.StringVar(&o.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", "kubeconfig that has the context (default: KUBECONFIG, or ~/.kube/config)")
	cli.Elsewhere(f, clientcmd.RecommendedConfigPathFlag) // it has the cluster, not the server
	f.StringVar(&o.config, "config", defaultConfig, "configuration file of the server; it is made if it does not exist")
	f.StringVar(&o.name, "name", "", "what the server calls the cluster (default: CONTEXT, as a DNS label)")
	f.StringVarP(&o.namespace, "namespace", "n", "kube-system", "namespace of the service account")
	f.DurationVar(&o.duration, "duration", 365*24*time.Hour, "how long the token stays valid; the cluster may shorten it")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the commands that do the same, and do nothing")
	return cmd
}

// toFollow is a cluster that the server will follow.
type toFollow struct {
	context string // of the administrator's kubeconfig
	cluster *clientcmdapi.Cluster
	account follower.Account

	name          string // in the configuration
	configFile    string
	configuration []byte // nil if the file names the cluster already
	kubeconfig    string // the file
	theirContext  string // in that file
	contextFlag   string // how kubectl is told of the administrator's kubeconfig and context
}

func (o *followOptions) run(cmd *cobra.Command, args []string) error {
	if o.duration < 10*time.Minute {
		return cli.Misuse(fmt.Errorf("--duration %s is less than ten minutes, which no cluster allows", o.duration), "tidewaiter follow --duration 8760h")
	}
	c, err := o.find(args)
	if err != nil {
		return err
	}
	if o.dryRun {
		return c.printCommands(cmd.OutOrStdout(), o.duration)
	}
	lacks, err := c.account.Missing(cmd.Context())
	if err != nil {
		return err
	}
	if len(lacks) > 0 {
		again := "tidewaiter follow " + cli.Quote(c.context) + " --dry-run"
		return cli.WithHint(fmt.Errorf("the cluster of the context %s does not let you: %s", c.context, strings.Join(lacks, "; ")), "an administrator of the cluster can run the commands that this prints: %s", again)
	}
	token, end, err := c.account.Create(cmd.Context(), o.duration)
	if err != nil {
		return err
	}
	unseen, err := c.account.Unseen(cmd.Context(), token)
	if err != nil {
		return fmt.Errorf("the cluster does not accept the account's token: %w", err)
	}
	if err := c.write(token); err != nil {
		return err
	}
	return c.report(cmd.OutOrStdout(), end, unseen)
}

// find reads the existing files and the cluster's API groups, and decides which objects and files
// to create. It changes nothing.
func (o *followOptions) find(args []string) (*toFollow, error) {
	c := &toFollow{configFile: o.config}
	admin, err := o.administrator(c, args)
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(c.configFile)
	if errors.Is(err, fs.ErrNotExist) {
		cfg, err = config.Parse(c.configFile, nil)
	}
	if err != nil {
		return nil, err
	}
	if c.name = cmp.Or(o.name, clusterLabel(c.context)); c.name == "" {
		return nil, cli.Misuse(fmt.Errorf("the context %q gives no name for the cluster", c.context), "tidewaiter follow --name prod")
	}
	if err := c.enter(cfg); err != nil {
		return nil, err
	}
	if err := follower.CheckReplaced(c.kubeconfig, c.cluster.Server); err != nil {
		return nil, err
	}
	kinds := clusters.Workloads()
	for _, w := range cfg.Workloads {
		kinds = append(kinds, clusters.Workload(w))
	}
	c.account = follower.Account{Admin: admin, Namespace: o.namespace}
	return c, c.account.Find(kinds)
}

// administrator reaches the cluster as the person who runs the verb.
func (o *followOptions) administrator(c *toFollow, args []string) (*restclient.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{}
	if len(args) > 0 {
		overrides.CurrentContext = args[0]
	}
	kubeconfig, err := cli.OpenKubeconfig(rules, overrides)
	if err != nil {
		return nil, err
	}
	raw, err := kubeconfig.RawConfig()
	if err != nil {
		return nil, cli.WithHint(err, "--kubeconfig names the file with the cluster's context")
	}
	c.context = cmp.Or(overrides.CurrentContext, raw.CurrentContext)
	context := raw.Contexts[c.context]
	if context == nil || raw.Clusters[context.Cluster] == nil {
		return nil, unknownContext(c.context, &raw, rules)
	}
	c.cluster = raw.Clusters[context.Cluster]
	if o.kubeconfig != "" {
		c.contextFlag = " --kubeconfig " + cli.Quote(o.kubeconfig)
	}
	c.contextFlag += " --context " + cli.Quote(c.context)
	admin, err := kubeconfig.ClientConfig()
	if err != nil {
		return nil, err
	}
	admin.QPS, admin.UserAgent = -1, version.UserAgent()
	return admin, nil
}

// maxContexts is how many contexts a message names.
const maxContexts = 10

// unknownContext is the error for a context that a kubeconfig does not have.
func unknownContext(name string, kubeconfig *clientcmdapi.Config, rules *clientcmd.ClientConfigLoadingRules) error {
	names := contextNames(kubeconfig)
	files := strings.Join(rules.GetLoadingPrecedence(), ", ")
	switch near := nearest.Likely(name, names); {
	case len(names) == 0:
		return cli.WithHint(fmt.Errorf("%s has no context", files), "--kubeconfig names the file with the cluster's context")
	case name == "":
		return cli.WithHint(fmt.Errorf("%s has no current context", files), "tidewaiter follow %s", cli.Quote(names[0]))
	case near != "":
		return cli.WithHint(fmt.Errorf("%s has no context %s", files, name), "did you mean %s? Try: tidewaiter follow %[1]s", cli.Quote(near))
	}
	return cli.WithHint(fmt.Errorf("%s has no context %s", files, name), "it has: %s", strings.Join(names[:min(len(names), maxContexts)], ", "))
}

func contextNames(kubeconfig *clientcmdapi.Config) (names []string) {
	for name := range kubeconfig.Contexts {
		names = append(names, printable.Line(name, 0))
	}
	slices.Sort(names)
	return names
}

// completeContexts has shells complete the contexts of the kubeconfig.
func (o *followOptions) completeContexts(_ *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	kubeconfig, err := rules.Load()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.DeleteFunc(contextNames(kubeconfig), func(name string) bool { return !strings.HasPrefix(name, begun) }), cobra.ShellCompDirectiveNoFileComp
}

// maxLabel is how long a DNS label is.
const maxLabel = 63

// clusterLabel makes a DNS label of a context's name: prod-eu of Prod@eu.
func clusterLabel(context string) string {
	label := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(context))
	return strings.Trim(label[:min(len(label), maxLabel)], "-")
}

// enter decides which files the cluster has, from what the configuration says of it.
func (c *toFollow) enter(cfg *config.Config) (err error) {
	c.theirContext = c.name
	all := []clusters.Source{}
	for i := range cfg.Clusters {
		have := &cfg.Clusters[i]
		all = append(all, clusters.Source{Name: have.Name})
		if have.Name != c.name {
			continue
		}
		if have.Kubeconfig == "" {
			return cli.WithHint(fmt.Errorf("%s: %s is the cluster that the server runs in, which needs no account", c.configFile, c.name), "--name calls this one otherwise")
		}
		c.kubeconfig, c.theirContext = have.Kubeconfig, cmp.Or(have.Context, c.name)
	}
	if c.kubeconfig != "" {
		return nil
	}
	if err := clusters.CheckNames(append(all, clusters.Source{Name: c.name})); err != nil {
		return cli.Misuse(err, "tidewaiter follow --name prod")
	}
	file := c.name + ".kubeconfig"
	c.kubeconfig = filepath.Join(filepath.Dir(c.configFile), file)
	c.configuration, err = cfg.WithCluster(c.name, file)
	return err
}

// write writes the kubeconfig, and then the configuration, which names it.
func (c *toFollow) write(token string) error {
	data, err := follower.Kubeconfig(c.cluster, c.theirContext, token)
	if err != nil {
		return err
	}
	if err := trusted.Replace(c.kubeconfig, data, 0o600); err != nil {
		return err
	}
	if c.configuration == nil {
		return nil
	}
	path, mode := c.configFile, fs.FileMode(0o600)
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return trusted.Replace(path, c.configuration, mode)
}

// report says what was made, what the server will see, and what to do next.
func (c *toFollow) report(out io.Writer, end time.Time, unseen []string) error {
	wrote := "added the cluster " + c.name + " to"
	if c.configuration == nil {
		wrote = "the cluster " + c.name + " was there before in"
	}
	text := fmt.Sprintf("made the account %s in namespace %s of %s\nwrote %s, valid until %s; run this again before\n%s %s\n",
		follower.Name, c.account.Namespace, printable.Line(c.cluster.Server, 0), c.kubeconfig, end.UTC().Format("2006-01-02 15:04 MST"), wrote, c.configFile)
	text += "\nThe server will see, in all namespaces:\n"
	for _, line := range cli.Wrap(strings.Join(c.account.KindNames(), ", "), 96) {
		text += "  " + line + "\n"
	}
	text += `and not Secrets: what only a pod's pull secret can pull is not imported (docs/tasks/cluster.md).

Next:
  tidewaiter serve --config ` + cli.Quote(c.configFile) + `   or restart the server that has this file
  export KUBECONFIG=tidewaiter-data/admin.kubeconfig   in another terminal; serve prints the file
  kubectl get clusters      is the data up to date?
  kubectl images -A         what runs, and who signed it
`
	if _, err := io.WriteString(out, text); err != nil || len(unseen) == 0 {
		return err
	}
	return &cli.Exit{Code: cli.ExitSome, Err: cli.WithHint(fmt.Errorf("the cluster does not let the account %s", strings.Join(unseen, "; ")), "something beside its roles refuses that, such as an authorization webhook; until it may, the server deletes no images")}
}

// printCommands prints commands with which an administrator of the cluster can do the same.
func (c *toFollow) printCommands(out io.Writer, duration time.Duration) error {
	file := "kubectl --kubeconfig " + cli.Quote(c.kubeconfig) + " config"
	_, err := fmt.Fprintf(out, `# The account, which may list and watch these kinds:
%[1]s
# Its kubeconfig:
(umask 077 && kubectl config view%[2]s --minify --flatten --raw >%[3]s)
%[4]s set-credentials %[5]s --token="$(kubectl%[2]s create token %[6]s -n %[7]s --duration=%[8]s)"
%[4]s set-context --current --user=%[5]s
%[4]s get-users | sed 1d | grep -vx %[5]s | xargs -r -n 1 %[4]s delete-user
# In %[9]s:
#   clusters:
#   - name: %[10]s
#     kubeconfig: %[11]s
`, c.account.Commands("kubectl"+c.contextFlag), c.contextFlag, cli.Quote(c.kubeconfig), file, follower.User, follower.Name, c.account.Namespace, duration, c.configFile, c.name, filepath.Base(c.kubeconfig))
	return err
}
