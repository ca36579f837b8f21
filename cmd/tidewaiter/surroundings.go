//go:build cgo

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// surroundings are what a new server finds on its machine.
type surroundings struct {
	registry    string   // that answers here; "" for none
	credentials []string // registries for which the machine has some
	context     string   // of the kubeconfig; "" for none
}

const (
	// localRegistry is where people run a registry to try things.
	localRegistry = "localhost:5000"
	// maxSearch bounds how long a registry is waited for.
	maxSearch = 300 * time.Millisecond
	// maxHostsNamed is how many registries are named.
	maxHostsNamed = 3
)

// lookAround finds what is on the machine. What cannot be read is not there.
func lookAround(ctx context.Context) (s surroundings) {
	ctx, cancel := context.WithTimeout(ctx, maxSearch)
	defer cancel()
	if request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+localRegistry+"/v2/", nil); err == nil {
		request.Close = true
		if response, err := http.DefaultTransport.RoundTrip(request); err == nil {
			_, _ = io.CopyN(io.Discard, response.Body, 1<<10)
			_ = response.Body.Close()
			if response.Header.Get("Docker-Distribution-Api-Version") != "" {
				s.registry = localRegistry
			}
		}
	}
	if files, err := containers.New(containers.Options{}); err == nil {
		s.credentials = files.Hosts()
	}
	if config, err := clientcmd.NewDefaultClientConfigLoadingRules().Load(); err == nil && config.Contexts[config.CurrentContext] != nil {
		s.context = config.CurrentContext
	}
	return s
}

// nextSteps are what the first start of a server prints for which nothing is configured: three
// commands, and what is there to use them with.
func (s surroundings) nextSteps() string {
	from, follow := "REGISTRY", "tidewaiter follow CONTEXT"
	var found []string
	if len(s.credentials) > 0 {
		from = printable.Line(s.credentials[0], 100)
		named := s.credentials[:min(len(s.credentials), maxHostsNamed)]
		text := "credentials for " + printable.Line(strings.Join(named, ", "), 300)
		if n := len(s.credentials) - len(named); n > 0 {
			text += fmt.Sprintf(" and %d more", n)
		}
		found = append(found, text)
	}
	if s.registry != "" {
		from = s.registry
		found = append([]string{"a registry at " + s.registry}, found...)
	}
	if s.context != "" {
		found = append(found, "the kubeconfig's context "+printable.Line(s.context, 100))
		follow = "tidewaiter follow " + cli.Quote(printable.Line(s.context, 100))
	}
	text := "No registry, cluster or policy is configured. Next:\n"
	for _, step := range [][2]string{
		{"tidewaiter import " + from + "/REPOSITORY:TAG", "import an image and ask about it"},
		{follow, "know what runs in a cluster"},
		{"tidewaiter serve --policy FILE (docs/tasks/signers.md)", "say who must have signed what"},
	} {
		text += fmt.Sprintf("  %-57s %s\n", step[0], step[1])
	}
	if len(found) > 0 {
		text += "Found here: " + strings.Join(found, "; ") + ".\n"
	}
	return text
}
