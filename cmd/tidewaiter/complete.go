package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Bounds on the reads with which a word is completed in a shell.
const (
	completionPage  = 500 // objects that are read at a time
	completionPages = 4   // pages that are read at most
)

// completionPatience is how long a shell waits for the words of a server. Tests wait longer.
var completionPatience = 2 * time.Second

// complete completes a word with names that the server knows, as far as they are read in time. It
// ignores errors, because a shell does not show them.
func (o *clientOptions) complete(cmd *cobra.Command, begun string, known func(context.Context, *looker, func(string))) ([]cobra.Completion, cobra.ShellCompDirective) {
	cmd.SetErr(io.Discard)
	ctx, cancel := context.WithTimeout(cmd.Context(), completionPatience)
	defer cancel()
	var all []cobra.Completion
	if l, err := o.looker(cmd); err == nil {
		known(ctx, l, func(word string) {
			if word = printable.Line(word, 0); strings.HasPrefix(word, begun) {
				all = append(all, word)
			}
		})
	}
	slices.Sort(all)
	return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
}

// completeReferences has shells complete up to n arguments with the references of tags that the
// server knows.
func (o *clientOptions) completeReferences(n int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) >= n {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return o.complete(cmd, begun, someReferences)
	}
}

// someReferences yields the references of known tags.
func someReferences(ctx context.Context, l *looker, yield func(string)) {
	_ = l.someTags(ctx, func(ref reference.Reference) { yield(ref.String()) })
}

// completeNames has shells complete the flags of a verb that name a followed cluster, a namespace,
// a policy or an image.
func (o *clientOptions) completeNames(cmd *cobra.Command) {
	for flag, known := range map[string]func(context.Context, *looker, func(string)){
		"cluster": func(ctx context.Context, l *looker, yield func(string)) { l.someNames(ctx, clustersPath, "", yield) },
		"namespace": func(ctx context.Context, l *looker, yield func(string)) {
			cluster, _ := cmd.Flags().GetString("cluster")
			l.someNamespaces(ctx, cluster, yield)
		},
		"base":   someReferences,
		"delete": someReferences,
		"remove-policy": func(ctx context.Context, l *looker, yield func(string)) {
			l.someNames(ctx, "/apis/config.openshift.io/v1/clusterimagepolicies", "", yield)
		},
	} {
		if cmd.Flags().Lookup(flag) == nil {
			continue
		}
		cli.CompleteBy(cmd, flag, func(cmd *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return o.complete(cmd, begun, known)
		})
	}
}

// someNames yields the names in the first page of a list.
func (l *looker) someNames(ctx context.Context, path, selector string, yield func(string)) {
	table, err := cli.GetTable(ctx, l.Config, path, url.Values{"limit": {fmt.Sprint(completionPage)}, "fieldSelector": {selector}, "includeObject": {string(metav1.IncludeNone)}})
	if err != nil {
		return
	}
	for _, row := range table.Rows {
		yield(fmt.Sprint(row.Cells[0]))
	}
}

// someNamespaces yields the namespaces with known pods, in one cluster or in all, and the server's
// own namespaces.
func (l *looker) someNamespaces(ctx context.Context, cluster string, yield func(string)) {
	selector := ""
	if cluster == "" {
		l.someNames(ctx, "/api/v1/namespaces", "", yield)
	} else {
		selector = fields.OneTermEqualSelector("spec.cluster", cluster).String()
	}
	l.someNames(ctx, clusterPodsPath, selector, func(pod string) {
		if parts := strings.SplitN(pod, ":", 3); len(parts) == 3 { // cluster, namespace, name
			yield(parts[1])
		}
	})
}
