package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/web/console"
)

func newChangesCommand() *cobra.Command {
	o, output, since := &clientOptions{}, &cli.Output{}, "1d"
	cmd := &cobra.Command{
		Use:   "changes",
		Short: "List what needs somebody since yesterday, and what no longer does",
		Long: `List what changed, the newest first: workloads that began or ceased to run images that
fail their policy, or another image than their tag leads to; tags that moved and must not;
clusters that went away or came back; policies that need attention; imports that failed.
New is what needs somebody since that time, Over what no longer does. A question mark
after a time says that it happened at some time before.

The console has the same as a page and as an Atom feed. Only what was recorded is listed.
What is not known about the time is said on standard error, and in -o json.

The exit code is 0, also if nothing changed; and 2 if no change is known, but not everything
is known about the time.`,
		Example: `  # What changed since yesterday?
  tidewaiter changes

  # In a week, for programs
  tidewaiter changes --since 7d -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			age, err := parseAge("--since", since)
			if err != nil {
				return err
			}
			if age > console.MaxChangesAge {
				return cli.Misuse(fmt.Errorf("--since %s is longer than 7d", since), "tidewaiter ran --since %s lists what ran", since)
			}
			server, err := o.running(cmd)
			if err != nil {
				return err
			}
			api, err := apiHandler(server.Config)
			if err != nil {
				return err
			}
			changes, err := console.ReadChanges(cmd.Context(), api, clock.RealClock{}, age)
			if err != nil {
				return fmt.Errorf("%s: %w", server.destination(), err)
			}
			printNotes(cmd, changes.Unknown)
			if !output.ForPeople() {
				if err := output.Print(cmd.OutOrStdout(), cli.Document{Whole: changes, Items: cli.ItemsOf(changes.Items)}); err != nil {
					return err
				}
			} else if len(changes.Items) > 0 {
				return printChanges(cmd.OutOrStdout(), changes.Items)
			}
			switch {
			case len(changes.Items) == 0 && len(changes.Unknown) > 0:
				return &cli.Exit{Code: cli.ExitNone, Err: errors.New("no change is known, but not everything is known about that time")}
			case len(changes.Items) == 0 && output.ForPeople():
				fmt.Fprintf(cmd.ErrOrStderr(), "Nothing changed since %s.\n", changes.Since.Format(time.RFC3339))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&since, "since", since, "list what changed in this time until now, such as 12h or 5d, at most 7d")
	output.AddFlag(cmd, "a table", "json", "jsonl", "yaml")
	o.addFlags(cmd)
	return cmd
}

// printChanges prints what changed as a table.
func printChanges(out io.Writer, all []console.Change) error {
	t := &cli.Table{Columns: []string{"WHEN", "ATTENTION", "WHAT", "MORE…"}, Fixed: []string{"WHEN"}}
	for _, c := range all {
		when := c.At.Format("2006-01-02 15:04")
		if c.Before {
			when += "?"
		}
		t.Rows = append(t.Rows, []string{when, c.Attention, printable.Line(c.What, 0), printable.Line(c.By, 0)})
	}
	return t.Print(out)
}

// apiHandler passes calls on to the API of a server, with a credential.
func apiHandler(config *restclient.Config) (http.Handler, error) {
	transport, server, err := transportTo(config)
	if err != nil {
		return nil, err
	}
	return &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(server)
			r.Out.Header.Del("User-Agent") // the transport adds that of this program
		},
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ErrorHandler: unreachable,
	}, nil
}

// unreachable answers a call that a proxy could not pass on to the server.
func unreachable(w http.ResponseWriter, _ *http.Request, err error) {
	http.Error(w, "the server does not answer: "+err.Error(), http.StatusBadGateway)
}

// transportTo returns the transport to a server, which adds a credential, and the server's address.
func transportTo(config *restclient.Config) (http.RoundTripper, *url.URL, error) {
	transport, err := restclient.TransportFor(config)
	if err != nil {
		return nil, nil, err
	}
	server, _, err := restclient.DefaultServerUrlFor(config)
	return transport, server, err
}
