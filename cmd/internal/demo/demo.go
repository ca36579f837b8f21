// Package demo shows Tidewaiter at work: it starts a registry, pushes signed, unsigned and tampered
// images to it, and starts a server, which the registry notifies of each push.
package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Run runs the demo in dir, and prints each step. With once, it ends after the last step; otherwise
// it runs until ctx is done.
func Run(ctx context.Context, dir string, once bool, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	registry, err := StartRegistry(ctx)
	if err != nil {
		return err
	}
	defer registry.Close()
	signer, err := NewSigner()
	if err != nil {
		return err
	}
	policy, err := signer.WritePolicy(dir, "*")
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
	s, err := server.Open(ctx, server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: config, Policy: policy, Isolated: true, Console: true}, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.Tasks = append(s.Tasks, server.Task{Name: "registry", Run: func(ctx context.Context) error { return registry.notify(ctx, s, secret) }})
	return s.Run(ctx, func(ctx context.Context) error {
		fmt.Fprintf(out, "A registry runs at %s, Tidewaiter at %s.\nThe registry notifies Tidewaiter of each push, so nothing is imported by hand.\n\n", registry.Host, s.URL)
		reference, err := showPushes(ctx, out, registry, signer, s.Web.ClientConfig())
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "\n> kubectl get images\n")
		if err := cli.PrintTable(ctx, out, s.Web.ClientConfig(), "/apis/image.openshift.io/v1/images"); err != nil {
			return err
		}
		if once {
			cli.End()
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

Or look at it in a browser, which this opens and signs in:

  tidewaiter console --kubeconfig %s

The console is at %s/console/ and takes the token in that file, too.

Ctrl-C stops both and removes their files.
`, s.Credentials.Kubeconfig, policy, reference, s.Credentials.Kubeconfig, s.URL)
		return nil
	})
}

// showPushes pushes the demo's images, and waits until each is stored with its tag and its verdict.
// It returns the reference of the last one.
func showPushes(ctx context.Context, out io.Writer, registry *Registry, signer *Signer, config *restclient.Config) (reference string, err error) {
	images, err := imageclient.New(config)
	if err != nil {
		return "", err
	}
	pushes, err := Pushes()
	if err != nil {
		return "", err
	}
	for _, p := range pushes {
		var digest v1.Hash
		if reference, digest, err = registry.Push(p, signer); err != nil {
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
			verified, _, _ := signatures.Summary(image)
			tagged := strings.Contains(image.Annotations[annotation.References], `"`+reference+`"`)
			return verified == p.verdict && tagged, nil
		})
		if err != nil {
			return "", fmt.Errorf("waiting for the Image of %s: %w", p.tag, err)
		}
		fmt.Fprintf(out, "Pushed %s (%s). %dms later its Image is there, verified: %s\n", p.tag, p.about, time.Since(pushed).Milliseconds(), p.verdict)
	}
	return reference, nil
}
