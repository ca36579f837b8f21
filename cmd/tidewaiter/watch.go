package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// The lists whose changes change verdicts, and which image a tag leads to.
var (
	imagesPath    = "/apis/" + imagev1.GroupVersion.String() + "/images"
	imageTagsPath = "/apis/" + imagev1.GroupVersion.String() + "/imagetags"
)

// watchFlag is the flag of verbs that show what changes.
type watchFlag bool

func (w *watchFlag) addFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVarP((*bool)(w), "watch", "w", false, usage)
}

// errWatchIsTable is the error for --watch with another output.
var errWatchIsTable = cli.Misuse(errors.New("--watch prints a table"), "leave -o out; for programs, kubectl get clusterpods --watch -o json")

// metadataAccept asks a server for what tells that an object changed, and no more; of is the kind.
func metadataAccept(of string) string { return "application/json;as=" + of + ";v=v1;g=meta.k8s.io" }

// watchSettles is how long changes are collected before the next request to the server.
const watchSettles = time.Second

// eachChange calls show now, and after each change of an object in some lists, until ctx ends. It
// watches the lists that the caller may watch, and warns about the others.
func (l *looker) eachChange(ctx context.Context, lists []string, show func() error) error {
	client, err := pathClient(l.Config)
	if err != nil {
		return err
	}
	changed, ended := make(chan struct{}, 1), make(chan error, len(lists))
	var refused error
	n := 0
	for _, path := range lists {
		w := &listWatch{client: client, path: path, changed: changed}
		if err := w.open(ctx); err != nil {
			refused = err
			fmt.Fprintf(l.notes, "Warning: changes of %s are not seen: %s\n", path[strings.LastIndexByte(path, '/')+1:], printable.Line(err.Error(), 0))
			continue
		}
		n++
		go func() { ended <- w.run(ctx) }()
	}
	if n == 0 {
		return refused
	}
	for {
		if err := show(); err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%s no longer tells of changes: %w", l.Server.destination(), err)
		case <-changed:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchSettles):
		}
		select { // what changed meanwhile is shown now, too
		case <-changed:
		default:
		}
	}
}

// listWatch is a list that is watched.
type listWatch struct {
	client  restclient.Interface
	path    string
	changed chan<- struct{}
	stream  io.ReadCloser
}

// open begins to watch: run reports changes from now on.
func (w *listWatch) open(ctx context.Context) error {
	request := func(kind string) *restclient.Request {
		return w.client.Get().AbsPath(w.path).SetHeader("Accept", metadataAccept(kind))
	}
	raw, err := request("PartialObjectMetadataList").Param("limit", "1").DoRaw(ctx)
	if err != nil {
		return err
	}
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal(raw, &list); err != nil {
		return err
	}
	w.stream, err = request("PartialObjectMetadata").Param("watch", "true").Param("resourceVersion", list.ResourceVersion).Stream(ctx)
	return err
}

// run reports each change until ctx ends, or until the server has ended the watch and it cannot be
// opened again.
func (w *listWatch) run(ctx context.Context) error {
	for {
		events := json.NewDecoder(w.stream)
		for {
			var event struct{ Type string }
			if err := events.Decode(&event); err != nil || event.Type == "ERROR" {
				break
			}
			w.tell()
		}
		_ = w.stream.Close()
		if err := w.open(ctx); err != nil {
			return err
		}
		w.tell() // between the two, something may have changed
	}
}

func (w *listWatch) tell() {
	select {
	case w.changed <- struct{}{}:
	default: // that is told already
	}
}

// rowsWatch prints the rows of a table, and then those that have changed.
type rowsWatch struct {
	out io.Writer
	// keys is how many columns name a row.
	keys   int
	shown  map[string][]string
	widths []int
}

// show prints what is new since it was called last, with what happened: as kubectl get
// --output-watch-events.
func (r *rowsWatch) show(t cli.Table) error {
	now := map[string][]string{}
	changes := cli.Table{Columns: append([]string{"EVENT"}, t.Columns...), Least: r.widths, NoNames: r.widths != nil}
	add := func(event string, row []string) { changes.Rows = append(changes.Rows, append([]string{event}, row...)) }
	for _, row := range t.Rows {
		key := strings.Join(row[:r.keys], "\n")
		for now[key] != nil {
			key += "\n" // another row of the same name
		}
		now[key] = row
		before, was := r.shown[key]
		switch {
		case !was:
			add("ADDED", row)
		case differ(t.Columns, before, row):
			add("MODIFIED", row)
		}
	}
	var gone []string
	for key := range r.shown {
		if now[key] == nil {
			gone = append(gone, key)
		}
	}
	slices.Sort(gone)
	for _, key := range gone {
		add("DELETED", r.shown[key])
	}
	r.shown = now
	if len(changes.Rows) == 0 {
		return nil
	}
	if r.widths == nil {
		r.widths = changes.Widths()
		r.widths[0] = len("MODIFIED")
		changes.Least = r.widths
	}
	return changes.Print(r.out)
}

// differ reports whether two rows differ in more than their age.
func differ(columns, a, b []string) bool {
	for i := range columns {
		if a[i] != b[i] && columns[i] != "SINCE" {
			return true
		}
	}
	return false
}
