package cli_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

func TestTableFitsATerminal(t *testing.T) {
	long := "registry.example.com/" + strings.Repeat("department/", 12) + "app:v1"
	for name, tt := range map[string]struct {
		table cli.Table
		want  string
	}{
		"short":                 {cli.Table{Columns: []string{"A", "BEE"}, Rows: [][]string{{"1", ""}, {"four", "x\x1b\ny"}}}, "A      BEE\n1      <none>\nfour   x\ufffd y\n"},
		"a reference":           {cli.Table{Columns: []string{"ID", "REFERENCE"}, Rows: [][]string{{"1", long}}}, "ID    REFERENCE\n1     …" + long[len(long)-113:] + "\n"},
		"a text that has room":  {cli.Table{Columns: []string{"ID", "WHY…"}, Rows: [][]string{{"1", "it is so"}}}, "ID    WHY\n1     it is so\n"},
		"a text below":          {cli.Table{Columns: []string{"ID", "WHY…"}, Rows: [][]string{{"1", strings.Repeat("word ", 23) + "and more"}, {"2", ""}}}, "ID\n1\n    " + strings.TrimSpace(strings.Repeat("word ", 23)) + "\n    and more\n2\n"},
		"a text in the middle":  {cli.Table{Columns: []string{"WHY…", "ID"}, Rows: [][]string{{strings.Repeat("word ", 24), "1"}}}, "WHY" + strings.Repeat(" ", 112) + "   ID\n" + strings.TrimSpace(strings.Repeat("word ", 23)) + " " + "   1\nword\n"},
		"indented":              {cli.Table{Columns: []string{"A"}, Rows: [][]string{{"1"}}, Indent: 2}, "  A\n  1\n"},
		"more columns than fit": {cli.Table{Columns: slices.Repeat([]string{"COLUMN"}, 20), Rows: [][]string{slices.Repeat([]string{"123456789"}, 20)}}, strings.TrimSpace(strings.Repeat("COLUMN     ", 20)) + "\n" + strings.TrimSpace(strings.Repeat("…3456789   ", 20)) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			if err := tt.table.PrintIn(&out, 120); err != nil || out.String() != tt.want {
				t.Errorf("%v, it prints\n%q, want\n%q", err, out.String(), tt.want)
			}
		})
	}
}

// A program reads whole cells, in a file and through a pipe; a terminal has its own width.
func TestOnlyATerminalCutsTables(t *testing.T) {
	long := "registry.example.com/" + strings.Repeat("department/", 12) + "app:v1"
	table := cli.Table{Columns: []string{"ID", "REFERENCE", "WHY…"}, Rows: [][]string{{"1", long, strings.Repeat("word ", 30)}}}
	file, err := os.CreateTemp(t.TempDir(), "table")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var piped strings.Builder
	if err := errors.Join(table.Print(file), table.Print(&piped)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file.Name())
	if err != nil || string(text) != piped.String() || !strings.Contains(piped.String(), "1     "+long+"\n") {
		t.Errorf("%v, in a file\n%s\nand through a pipe\n%s", err, text, piped.String())
	}
	for _, columns := range []int{60, 80, 200, 400} {
		var out strings.Builder
		if err := table.PrintIn(&out, columns); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
				t.Errorf("a terminal of %d columns has a line of %d: %s", columns, n, line)
			}
		}
		if is := strings.Contains(out.String(), long); is != (columns >= 200) {
			t.Errorf("a terminal of %d columns shows the reference: %v", columns, is)
		}
	}
}

// No word is broken, and no space is lost but where a line ends.
func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                      {""},
		"short":                 {"short"},
		"ten chars":             {"ten chars"},
		"ten chars more":        {"ten chars", "more"},
		"a  b  c  d  e  f":      {"a  b  c  d", " e  f"},
		"averyverylongword x":   {"averyverylongword", "x"},
		"x averyverylongword":   {"x", "averyverylongword"},
		"ünïcödé cöünts äs öne": {"ünïcödé", "cöünts äs", "öne"},
	} {
		if got := cli.Wrap(text, 10); !slices.Equal(got, want) {
			t.Errorf("%q is broken into %q, want %q", text, got, want)
		}
	}
}

// A command that a hint suggests has the flags that the one that failed was given.
func TestHintsKeepFlags(t *testing.T) {
	for _, tt := range []struct {
		given      []string
		hint, want string
	}{
		{[]string{"get", "a"}, "tidewaiter get b", "tidewaiter get b"},
		{[]string{"get", "--server", "X", "-o", "json", "a"}, "tidewaiter get r.example.com/b", "tidewaiter get -o json --server X r.example.com/b"},
		{[]string{"get", "--server", "X", "-o", "json", "a"}, "tidewaiter import b", "tidewaiter import --server X b"},
		{[]string{"get", "--server", "X", "a"}, "tidewaiter spool list shows the IDs", "tidewaiter spool list --server X shows the IDs"},
		{[]string{"get", "--token", "secret", "a"}, "tidewaiter import b", "tidewaiter import --token … b"},
		{[]string{"get", "--tls-verify=false", "--all", "a"}, "tidewaiter get b", "tidewaiter get --all --tls-verify=false b"},
		{[]string{"get", "--filter", "x y", "--filter", "z", "a"}, "tidewaiter get b", "tidewaiter get --filter 'x y' --filter z b"},
		// about the flag that was wrong
		{[]string{"get", "--server", "X", "-o", "xml", "a"}, "tidewaiter get -o json", "tidewaiter get --server X -o json"},
		{[]string{"get", "--server", "X", "a"}, "is it a tidewaiter server? --server names another", "is it a tidewaiter server? --server names another"},
		{[]string{"get", "--server", "X", "a"}, "try that (tidewaiter import), or another", "try that (tidewaiter import --server X), or another"},
		// about another place: a kubeconfig of the cluster, not of the server
		{[]string{"get", "--kubeconfig", "X", "a"}, "tidewaiter import b, or tidewaiter follow CONTEXT", "tidewaiter import --kubeconfig X b, or tidewaiter follow CONTEXT"},
		{[]string{"follow", "--kubeconfig", "X", "a"}, "tidewaiter follow b, or tidewaiter import", "tidewaiter follow --kubeconfig X b, or tidewaiter import"},
	} {
		root := someVerbs()
		cmd, flags, err := root.Find(tt.given)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.ParseFlags(flags); err != nil {
			t.Fatal(err)
		}
		if got := cli.KeepFlags(cmd, tt.hint); got != tt.want {
			t.Errorf("%q with the hint %q says %q, want %q", tt.given, tt.hint, got, tt.want)
		}
	}
}

// kubectl images is a plugin of one verb: the others are verbs of tidewaiter.
func TestHintsOfThePlugin(t *testing.T) {
	root := someVerbs()
	root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl"}
	cmd, _, err := root.Find([]string{"get"})
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.ParseFlags([]string{"--server", "X"}); err != nil {
		t.Fatal(err)
	}
	const want = "kubectl get --server X a, or tidewaiter import --server X b"
	if got := cli.KeepFlags(cmd, "tidewaiter get a, or tidewaiter import b"); got != want {
		t.Errorf("the hint is %q, want %q", got, want)
	}
}

func someVerbs() *cobra.Command {
	root := &cobra.Command{Use: "tidewaiter"}
	for _, verb := range []string{"get", "import", "follow"} {
		c := &cobra.Command{Use: verb, Run: func(*cobra.Command, []string) {}}
		c.Flags().String("kubeconfig", "", "")
		if verb == "follow" {
			cli.Elsewhere(c.Flags(), "kubeconfig")
		}
		c.Flags().String("server", "", "")
		c.Flags().String("token", "", "")
		c.Flags().StringP("output", "o", "", "")
		c.Flags().StringArray("filter", nil, "")
		c.Flags().Bool("tls-verify", true, "")
		c.Flags().Bool("all", false, "")
		root.AddCommand(c)
	}
	spool := &cobra.Command{Use: "spool"}
	list := &cobra.Command{Use: "list", Run: func(*cobra.Command, []string) {}}
	list.Flags().String("server", "", "")
	spool.AddCommand(list)
	root.AddCommand(spool)
	return root
}

// A line of the log names no file of the sources of others, whether in its message, in a text, in
// an error or in what a logger always says. Lines of client-go about its own watches are left out
// only of a quiet log.
func TestLogNamesNoSources(t *testing.T) {
	const place = "k8s.io/client-go@v0.37.1/tools/cache/reflector.go:343: "
	for quiet, want := range map[bool]int{true: 3, false: 4} {
		var out bytes.Buffer
		log := slog.New(cli.LogHandler{Handler: slog.NewTextHandler(&out, nil), Quiet: quiet})
		log.Error("Unhandled Error", "err", errors.New(place+"failed to list *v1.Pod: forbidden"))
		log.With("from", "pkg/mod/"+place+"cache").Warn("a watch ended", "why", place+"too old")
		log.WithGroup("group").Warn(place + "message")
		log.Error("Failed to watch", "reflector", place, "type", "*v1.Pod")
		if got := out.String(); strings.Contains(got, ".go:") || strings.Count(got, "\n") != want || !strings.Contains(got, "failed to list *v1.Pod: forbidden") || !strings.Contains(got, "too old") {
			t.Errorf("quiet %v: the log has\n%s", quiet, got)
		}
	}
}

// Who lacks a right in a namespace is told of a binding there, and of no more.
func TestHintsGrantNoMoreThanIsMissing(t *testing.T) {
	for message, want := range map[string]string{
		`imagetags.image.openshift.io "a" is forbidden: User "ann" cannot accept resource "imagetags" in API group "image.openshift.io" in the namespace "default"`: "kubectl create rolebinding NAME --namespace=default --clusterrole=tidewaiter:tag-accepter --user=ann",
		`pods is forbidden: User "ann" cannot list resource "pods" in API group "" in the namespace "shop"`:                                                         "kubectl create rolebinding NAME --namespace=shop --clusterrole=view --user=ann",
		`pods is forbidden: User "ann" cannot list resource "pods" in API group "" at the cluster scope`:                                                            "kubectl create clusterrolebinding NAME --clusterrole=view --user=ann",
		`images.image.openshift.io is forbidden: User "system:serviceaccount:ci:bot" cannot list resource "images" in API group "image.openshift.io"`:               "kubectl create clusterrolebinding NAME --clusterrole=tidewaiter:image-viewer --serviceaccount=ci:bot",
	} {
		if _, hint := cli.Explain("get", cli.Refused(message)); !strings.HasSuffix(hint, want) {
			t.Errorf("%s is hinted %q, want %q", message, hint, want)
		}
	}
	const events = `events is forbidden: User "ann" cannot create resource "events" in API group "" in the namespace "default"`
	err := &apierrors.StatusError{ErrStatus: metav1.Status{Code: 403, Message: events}}
	if _, hint := cli.Explain("import", err); !strings.Contains(hint, "clusterrolebinding NAME --clusterrole=tidewaiter:importer") {
		t.Errorf("an import is hinted %q", hint)
	}
}
