package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// pollInterval is the time between two requests for a server's progress.
const pollInterval = 200 * time.Millisecond

// sweep has a server judge all its images again. With policies it judges what a server has by them,
// and changes nothing there; if no server holds the data directory, it judges the images of the
// directory.
func (o *verifyOptions) sweep(cmd *cobra.Command) error {
	if o.policy != "" {
		server, found, err := o.server(cmd)
		switch {
		case err != nil:
			return err
		case found:
			return o.tryPolicies(cmd, server)
		}
		return o.sweepDirectory(cmd)
	}
	client, server, err := o.runningClient(cmd)
	if err != nil {
		return err
	}
	asked, err := askVerification(cmd.Context(), client.Post())
	if err != nil {
		return err
	}
	return o.showSweep(cmd, server.destination(), asked.Sweep, func(ctx context.Context) (reverify.Progress, error) {
		return askVerification(ctx, client.Get())
	})
}

// triedPage is how many Images are in memory at a time while policies are tried. An Image has up to
// 12 MiB, usually some 20 KiB.
const triedPage = 10

// tryPolicies judges the signatures that a server has by the policies of --policy, which it does
// not learn of.
func (o *verifyOptions) tryPolicies(cmd *cobra.Command, server apiTarget) error {
	set, err := config.LoadPolicies(o.policy)
	if err != nil {
		return err
	}
	client, err := imageclient.New(server.Config)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "judging the images of %[2]s by %[1]s; nothing is changed there\n", o.policy, server)
	ctx, now, p := cmd.Context(), time.Now(), reverify.Progress{Verified: map[string]int64{}, Verdicts: map[string]int64{}}
	line := bulk.NewProgress(cmd.ErrOrStderr())
	defer line.End()
	err = pages.Each(ctx, metav1.ListOptions{Limit: triedPage}, client.List, func(list *imagev1.ImageList) error {
		for i := range list.Items {
			image := &list.Items[i]
			before := slices.Sorted(slices.Values(signatures.Everywhere(image)))
			signatures.VerifyImage(image, set, now, func(string) ([]*imagev1.Image, error) {
				above, err := client.List(ctx, metav1.ListOptions{Limit: triedPage, FieldSelector: fields.OneTermEqualSelector("lists", image.Name).String()})
				if err == nil && above.Continue != "" {
					err = fmt.Errorf("more than %d indexes list it", triedPage)
				}
				if err != nil {
					return nil, err
				}
				indexes := make([]*imagev1.Image, len(above.Items))
				for i := range above.Items {
					indexes[i] = &above.Items[i]
					signatures.VerifyImage(indexes[i], set, now, nil)
				}
				return indexes, nil
			})
			p.Count(image, !slices.Equal(before, slices.Sorted(slices.Values(signatures.Everywhere(image)))))
		}
		line.Show(tablecells.Quantity(p.Examined, "image") + " judged")
		return nil
	})
	if err != nil {
		return err
	}
	line.End()
	return o.finish(cmd, server.destination(), p)
}

// showSweep shows the progress of a sweep until it ends, and reports its result.
func (o *verifyOptions) showSweep(cmd *cobra.Command, destination string, sweep int64, ask func(context.Context) (reverify.Progress, error)) error {
	line := bulk.NewProgress(cmd.ErrOrStderr())
	defer line.End()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		p, err := ask(cmd.Context())
		if err != nil {
			return err
		}
		if p.Sweep >= sweep && !p.Running {
			line.End()
			return o.finish(cmd, destination, p)
		}
		if p.Sweep >= sweep {
			line.Show(fmt.Sprintf("%d of %s judged, %s changed", p.Examined, tablecells.Quantity(p.Total, "image"), tablecells.Quantity(p.Changed, "verdict")))
		}
		select {
		case <-cmd.Context().Done():
			return fmt.Errorf("interrupted; the server continues: %w", context.Cause(cmd.Context()))
		case <-tick.C:
		}
	}
}

// progressAt is the output of -o json: the progress, and the server.
type progressAt struct {
	reverify.Progress
	Destination string `json:"destination"`
}

func (o *verifyOptions) finish(cmd *cobra.Command, destination string, p reverify.Progress) error {
	if !o.output.ForPeople() {
		if err := o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: progressAt{p, destination}, Items: []any{progressAt{p, destination}}}); err != nil {
			return err
		}
	} else {
		var counts []string
		all := int64(0)
		for _, verdict := range knownVerdicts {
			if p.Verdicts[verdict] == 0 && verdict == verdicts.Excepted { // few servers have any
				continue
			}
			counts = append(counts, fmt.Sprintf("%d %s", p.Verdicts[verdict], verdict))
			all += p.Verdicts[verdict]
		}
		images, changed := tablecells.Quantity(p.Examined, "image"), tablecells.Quantity(p.Changed, "verdict")+" changed"
		if all != p.Examined {
			images += fmt.Sprintf(", %s in their repositories", tablecells.Quantity(all, "verdict"))
		}
		if o.policy != "" && p.Sweep == 0 {
			changed = tablecells.Clause(p.Changed, "image", "have") + " a different verdict on the server"
		}
		if p.Unimported > 0 {
			changed += "; " + notImported(p.Unimported)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s; %s\n", images, strings.Join(counts, ", "), changed)
	}
	if p.Error != "" {
		return errors.New(p.Error)
	}
	return o.failure(p)
}

// notImported says how many images that run are not imported.
func notImported(n int64) string {
	if n == 1 {
		return "1 image that runs is not imported"
	}
	return tablecells.Quantity(n, "image") + " that run are not imported"
}

// checkGiven returns an error for a flag with an empty value, such as an unset variable of a shell:
// the verb would otherwise do more than the user meant.
func checkGiven(cmd *cobra.Command, flag string, values []string) error {
	if cmd.Flags().Changed(flag) && len(values) == 0 {
		return cli.Misuse(fmt.Errorf("--%s is given without a value", flag), "name some of %s, or leave it out", strings.Join(knownVerdicts, ", "))
	}
	return nil
}

// checkFailOn puts the names of verdicts in --fail-on as they are written elsewhere.
func (o *verifyOptions) checkFailOn() error {
	if len(o.failOn) == 1 && strings.EqualFold(o.failOn[0], "none") {
		o.failOn = nil
	}
	for i, name := range o.failOn {
		at := slices.IndexFunc(knownVerdicts, func(v string) bool { return strings.EqualFold(v, name) })
		if at < 0 {
			return cli.Misuse(fmt.Errorf("--fail-on: %q is not a verdict", name), "they are %s, and none for never", strings.Join(knownVerdicts, ", "))
		}
		o.failOn[i] = knownVerdicts[at]
	}
	return nil
}

// failure is the error if some verdicts are among --fail-on.
func (o *verifyOptions) failure(p reverify.Progress) error {
	var found []string
	if p.Unimported > 0 && slices.Contains(o.failOn, verdicts.VerifiedUnknown) {
		found = append(found, notImported(p.Unimported))
	}
	for _, verdict := range knownVerdicts {
		if n := p.Verdicts[verdict]; n > 0 && slices.Contains(o.failOn, verdict) {
			found = append(found, fmt.Sprintf("%d %s", n, verdict))
		}
	}
	if len(found) == 0 {
		return nil
	}
	_, first, _ := strings.Cut(found[0], " ")
	which := "kubectl get images --field-selector signatures.verified=" + first
	switch {
	case p.Unimported > 0 && slices.Contains(o.failOn, verdicts.VerifiedUnknown):
		which = "kubectl get clusterpods --field-selector reason=NotImported"
	case o.policy != "" && p.Sweep == 0: // the server has other verdicts
		which = "tidewaiter verify --policy " + cli.Quote(o.policy) + " REF says why"
	case o.policy != "":
		which = "tidewaiter serve --data-dir " + cli.Quote(o.dataDir) + ", and there " + which
	}
	return &cli.Exit{Code: exitUntrusted, Err: cli.WithHint(
		fmt.Errorf("some verdicts are among --fail-on %s: %s", strings.Join(o.failOn, ","), strings.Join(found, ", ")), "%s; --fail-on none exits 0", which)}
}

func askVerification(ctx context.Context, request *restclient.Request) (p reverify.Progress, err error) {
	result := request.AbsPath(admin.VerificationPath).Do(ctx)
	if err := result.Error(); err != nil {
		return p, fmt.Errorf("asking the server: %w", err)
	}
	body, err := result.Raw()
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(body, &p)
}
