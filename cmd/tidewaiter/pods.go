package main

import (
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// clusterPodsPath is the path of the pods of the followed clusters.
var clusterPodsPath = "/apis/" + clusters.GroupVersion.String() + "/clusterpods"

func newPodsCommand() *cobra.Command {
	o, wide := &clientOptions{}, ""
	cmd := &cobra.Command{
		Use:   "pods REFERENCE|DIGEST",
		Short: "List what runs an image in the clusters that a server follows",
		Long: `List what runs an image in the clusters that a server follows ("clusters" in its
configuration): cluster, namespace and pod, container, the reference as the pod
has it, the digest that runs, the verdict for that reference, and since when.

REFERENCE is a repository, for all of its images, or a repository with a tag, as
pods name it or as it is pulled. DIGEST finds an image under any name.

kubectl shows the same, and for programs: kubectl get clusterpods
--field-selector image=REFERENCE -o json. A server's own pods are with kubectl get pods.`,
		Example: `  # Who runs anything of this repository?
  tidewaiter pods registry.example.com/team/app

  # Who runs this digest, under any name?
  tidewaiter pods sha256:2bdcd6f6c8a7ac37ae9d5e1ef3ad25fd1a3ae0dcfd4d3b8e0ea4d1d2b3bd6c45`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if wide != "" && wide != "wide" {
				return misuse(fmt.Errorf("-o %s is not known", wide), "-o wide; kubectl get clusterpods -o json for programs")
			}
			if !reference.IsDigest(args[0]) {
				if _, err := reference.Parse(args[0]); err != nil {
					return explainReference(err)
				}
			}
			server, err := o.running(cmd)
			if err != nil {
				return err
			}
			query := url.Values{"fieldSelector": {"image=" + args[0]}}
			return printTable(cmd.Context(), cmd.OutOrStdout(), server.config, clusterPodsPath, query, wide != "")
		},
	}
	cmd.Flags().StringVarP(&wide, "output", "o", "", "wide, for nodes and service accounts too")
	o.addFlags(cmd)
	return cmd
}
