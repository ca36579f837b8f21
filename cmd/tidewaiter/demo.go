package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tidewaiter/importer"
	"tidewaiter/signatures/find"
)

type demoOptions struct {
	once bool
}

func newDemoCommand() *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it all: a throw-away registry, a server, an import",
		Long: `Show it all, with nothing but this binary and no network: start a registry with a
few images, signed, unsigned and tampered with, and a server, both on loopback and
on free ports, import the images and print what kubectl would. The server then runs until interrupted, for you to
try things; everything it made is removed when it stops.`,
		Example: `  tidewaiter demo

  # Leave once it has been shown
  tidewaiter demo --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			dir, err := os.MkdirTemp("", "tidewaiter-demo-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			return o.run(cmd.Context(), dir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&o.once, "once", false, "leave once it has been shown")
	return cmd
}

func (o *demoOptions) run(ctx context.Context, dir string, out io.Writer) error {
	registry, err := startDemoRegistry(ctx)
	if err != nil {
		return err
	}
	defer registry.close()
	signer, err := newDemoSigner()
	if err != nil {
		return err
	}
	references, err := registry.fill(signer)
	if err != nil {
		return fmt.Errorf("filling the registry: %w", err)
	}
	policy, err := signer.writePolicy(dir, registry.host)
	if err != nil {
		return err
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := openServer(ctx, serverOptions{dataDir: filepath.Join(dir, "data"), policy: policy}, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	return s.run(ctx, func(ctx context.Context) error {
		fmt.Fprintf(out, "A registry runs at %s, Tidewaiter at %s.\n\n", registry.host, s.url)
		if err := showImport(ctx, out, s, references); err != nil {
			return err
		}
		fmt.Fprintf(out, "\n> kubectl get images -o wide\n")
		if err := printTable(ctx, out, s.web.ClientConfig(), "/apis/image.openshift.io/v1/images", true); err != nil {
			return err
		}
		if o.once {
			stop()
			return nil
		}
		fmt.Fprintf(out, `
Try, in another terminal:

  export KUBECONFIG=%s
  kubectl get images -o wide
  kubectl get images --field-selector dockerImageMetadata.Architecture=arm64
  kubectl get images --field-selector signatures.verified=False
  kubectl explain image.signatures
  kubectl get images --watch
  tidewaiter verify --policy %s %s

Ctrl-C ends it and removes what it made.
`, s.credentials.Kubeconfig, policy, references[len(references)-1])
		return nil
	})
}

// showImport imports the references as `tidewaiter import` does.
func showImport(ctx context.Context, out io.Writer, s *server, references []string) error {
	// The user's lookaside storage is as little of its business as the helpers.
	finder, err := find.New(find.Options{RegistriesDirs: []string{filepath.Join(filepath.Dir(s.credentials.Kubeconfig), "registries.d")}})
	if err != nil {
		return err
	}
	im, err := importer.New(importer.Options{Keychain: noCredentials, Signatures: finder, UserAgent: userAgent()})
	if err != nil {
		return err
	}
	defer im.Close()
	progress := newProgress(io.Discard)
	report := newReport("", false, out, out, progress)
	return apiTarget{s.web.ClientConfig()}.use(ctx, func(ctx context.Context, at place) error {
		for _, ref := range references {
			fmt.Fprintf(out, "> tidewaiter import %s\n", ref)
			result, err := im.Import(ctx, ref, at.images())
			report.add(ref, result, err)
		}
		return report.end(nil)
	})
}
