package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

type demoOptions struct {
	once bool
}

func newDemoCommand() *cobra.Command {
	o := &demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it all: a throw-away registry, a server, pushes",
		Long: `Show it all, with nothing but this binary and no network: start a registry and a
server, both on loopback and on free ports, push a few images, signed, unsigned
and tampered with, and print what kubectl would. The registry tells the server of
each push by webhook. Both then run until interrupted, for you to try things;
everything they made is removed when they stop.`,
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
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	registry, err := startDemoRegistry(ctx)
	if err != nil {
		return err
	}
	defer registry.close()
	signer, err := newDemoSigner()
	if err != nil {
		return err
	}
	policy, err := signer.writePolicy(dir, registry.host)
	if err != nil {
		return err
	}
	secret := rand.Text()
	config, err := registry.writeReceiver(dir, secret)
	if err != nil {
		return err
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := openServer(ctx, serverOptions{dataDir: filepath.Join(dir, "data"), configFile: config, policy: policy, isolated: true}, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.tasks = append(s.tasks, func(ctx context.Context) error { return registry.tell(ctx, s, secret) })
	return s.run(ctx, func(ctx context.Context) error {
		fmt.Fprintf(out, "A registry runs at %s, Tidewaiter at %s.\nThe registry tells Tidewaiter of every push. Nobody imports anything.\n\n", registry.host, s.url)
		reference, err := showPushes(ctx, out, registry, signer, s.web.ClientConfig())
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n> kubectl get images\n")
		if err := printTable(ctx, out, s.web.ClientConfig(), "/apis/image.openshift.io/v1/images", nil, false); err != nil {
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
  kubectl get events
  tidewaiter verify --policy %s %s

Ctrl-C ends it and removes what it made.
`, s.credentials.Kubeconfig, policy, reference)
		return nil
	})
}

// showPushes pushes the demo's images, and waits until each is there with its verdict. It
// returns the reference of the last.
func showPushes(ctx context.Context, out io.Writer, registry *demoRegistry, signer *demoSigner, config *restclient.Config) (reference string, err error) {
	images, err := imageclient.New(config)
	if err != nil {
		return "", err
	}
	pushes, err := demoPushes()
	if err != nil {
		return "", err
	}
	for _, p := range pushes {
		var digest v1.Hash
		if reference, digest, err = registry.push(p, signer); err != nil {
			return "", err
		}
		pushed := time.Now()
		err := wait.PollUntilContextTimeout(ctx, 2*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			image, err := images.Get(ctx, digest.String(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			if err != nil {
				return false, err
			}
			verified, _ := summarize(image)
			return verified == p.verdict, nil
		})
		if err != nil {
			return "", fmt.Errorf("waiting for the Image of %s: %w", p.tag, err)
		}
		fmt.Fprintf(out, "Pushed %s (%s). %dms later its Image is there, verified: %s\n", p.tag, p.about, time.Since(pushed).Milliseconds(), p.verdict)
	}
	return reference, nil
}
