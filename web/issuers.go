package web

import (
	"fmt"
	"log/slog"
	"path/filepath"

	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// maxIssuers bounds the file of --authentication-config, in bytes.
const maxIssuers = 1 << 20

// issuersFile is the file of --authentication-config. Kubernetes reads it again as soon as it
// changes, and would take one that is cut, with fewer issuers and rules. So it is given a copy,
// which is written when the file has settled and is whole.
type issuersFile struct {
	file, copied string
	options      kubeoptions.BuiltInAuthenticationOptions // with which the file must make sense
	inForce      trusted.Contents
}

// followIssuers returns the path of a copy of a file, which follows the file from now on.
func (c *Credentials) followIssuers(file string, o *kubeoptions.BuiltInAuthenticationOptions) (string, error) {
	f := &issuersFile{file: file, copied: filepath.Join(filepath.Dir(c.serving.certFile), "authentication-config.yaml"), options: *o}
	err := c.reload.watchFiles(f.load, file)
	if isFull(err) {
		slog.Warn("the disk is full: --authentication-config is not read again before the next start", "err", err)
		return file, nil
	}
	return f.copied, err
}

// load reads the file, and writes the copy.
func (f *issuersFile) load() error {
	data, err := trusted.ReadFile(f.file, maxIssuers)
	if err != nil {
		return err
	}
	now := trusted.Contents{f.file: data}
	if err := (&trusted.Poll{InForce: f.inForce}).Cut(now); f.inForce != nil && err != nil {
		return err
	}
	f.options.AuthenticationConfigFile = f.file
	if _, err := f.options.ToAuthenticationConfig(); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	if err := trusted.Replace(f.copied, data, 0o600); err != nil {
		return err
	}
	f.inForce = now
	return nil
}
