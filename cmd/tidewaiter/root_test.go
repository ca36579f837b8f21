package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"weak"

	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

// tidewaiter runs one command line. The process keeps its log, in which tests that run at the same
// time write.
func tidewaiter(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return tidewaiterReading(t, "", args...)
}

// tidewaiterReading is tidewaiter with a standard input.
func tidewaiterReading(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	root := newRootCommand()
	root.PersistentPreRunE = nil
	var out, errOut servertest.LogBuffer
	code = execute(t.Context(), root, args, strings.NewReader(stdin), &out, &errOut)
	return code, out.String(), errOut.String()
}

// TestCommandsAreNotKept: nothing keeps a command line when it has ended. It is not parallel,
// because completions, which other tests ask for, are kept.
func TestCommandsAreNotKept(t *testing.T) {
	kept := weak.Make(newRootCommand())
	for range 10 {
		if runtime.GC(); kept.Value() == nil {
			return
		}
	}
	t.Error("all verbs of a command line are still in memory")
}

func TestMisuseIsExplained(t *testing.T) {
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"misspelt verb":        {[]string{"serv"}, []string{"unknown command", "serve"}},
		"misspelt verb, flags": {[]string{"serv", "--secure-port", "0"}, []string{"unknown command", "serve"}},
		"misspelt flag":        {[]string{"serve", "--data-di", "x"}, []string{"--data-di", "tidewaiter serve --data-dir"}},
		"letter of no flag":    {[]string{"pods", "-B"}, []string{"-B", "tidewaiter pods --help lists the flags"}},
		"all and one":          {[]string{"pods", "-A", "-n", "x"}, []string{"exclude each other"}},
		"short word":           {[]string{"pods", "--x"}, []string{"--x", "tidewaiter pods --help lists the flags"}},
		"beginning of a flag":  {[]string{"pods", "--out"}, []string{"tidewaiter pods --output"}},
		"flag of no kind":      {[]string{"serve", "--frobnicate"}, []string{"--frobnicate", "tidewaiter serve --help"}},
		"argument to serve":    {[]string{"serve", "x"}, []string{"unknown command"}},
		"no port":              {[]string{"serve", "--secure-port", "70000"}, []string{"70000"}},
		"backups all day":      {[]string{"serve", "--backup-dir", "b", "--backup-every", "1s"}, []string{"--backup-every 1s", "--backup-every 24h"}},
		"no backup is kept":    {[]string{"serve", "--backup-dir", "b", "--backup-keep", "0"}, []string{"--backup-keep 0", "--backup-keep 7"}},
		"backups of a copy":    {[]string{"serve", "--secure-port", "0", "--data-dir", t.TempDir(), "--etcd-servers", "http://127.0.0.1:1", "--backup-dir", "b"}, []string{"--backup-dir", "etcdctl snapshot save"}},
		"less than nothing":    {[]string{"serve", "--quota-backend-bytes", "-1"}, []string{"--quota-backend-bytes -1", "--quota-backend-bytes 8589934592"}},
		"no time to live":      {[]string{"serve", "--event-ttl", "0"}, []string{"--event-ttl 0s", "--event-ttl 1h"}},
		"no address":           {[]string{"serve", "--bind-address", "localhost"}, []string{"localhost", "--bind-address 127.0.0.1"}},
		"no number":            {[]string{"import", "--jobs", "many", "a"}, []string{"many"}},
		"reference":            {[]string{"import", "Quay.io/Acme/Web:V1"}, []string{"lower case", "tidewaiter import quay.io/acme/web:V1"}},
		"kubeconfig":           {[]string{"import", "--kubeconfig", "absent", "a"}, []string{"absent", "hint: "}},
		"changes of long ago":  {[]string{"changes", "--since", "8d"}, []string{"--since 8d is longer than 7d", "tidewaiter ran --since 8d"}},
		"config":               {[]string{"import", "--config", "absent", "a"}, []string{"absent", "hint: "}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := tidewaiter(t, tt.args...)
			if code != cli.ExitUsage || stdout != "" {
				t.Errorf("exit code %d, standard output %q", code, stdout)
			}
			for _, w := range tt.want {
				if !strings.Contains(stderr, w) {
					t.Errorf("%q does not contain %q", stderr, w)
				}
			}
		})
	}
}

// A help has no backslash but where a line of a shell goes on, and there it has one. Its lines fit
// a terminal, but for those of flags.
func TestHelpIsPrintedAsItIsTyped(t *testing.T) {
	for cmd := range verbs(newRootCommand()) {
		for line := range strings.Lines(cmd.Long + "\n" + cmd.Example) {
			line = strings.TrimSuffix(line, "\n")
			if strings.Contains(strings.TrimSuffix(line, ` \`), `\`) || utf8.RuneCountInString(line) > 110 || strings.ContainsAny(line, "\t\r") || line != strings.TrimRight(line, " ") {
				t.Errorf("%s --help prints the line %q", cmd.CommandPath(), line)
			}
		}
	}
}

// No line says where in client-go's code it comes from, and at verbosity 0 its watches say nothing.
func TestLogHasNoPathsOfSources(t *testing.T) {
	const path = "pkg/mod/k8s.io/client-go@v0.37.1/tools/cache/reflector.go:343"
	for verbosity, want := range []int{1, 2} {
		var out strings.Builder
		if err := setUpLogging(&out, verbosity, logText); err != nil {
			t.Fatal(err)
		}
		slog.Error("Failed to watch", "err", errors.New("very short watch: "+path+": Unexpected watch close"), "reflector", path)
		slog.Error("Something else", "err", errors.New(path+": gone"))
		if got := out.String(); strings.Contains(got, ".go:") || strings.Count(got, "\n") != want || !strings.Contains(got, "err=gone") {
			t.Errorf("at verbosity %d: %s", verbosity, got)
		}
	}
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		t.Fatal(err)
	}
}

// What klog warns of is logged at verbosity 0, what it tells is not.
func TestWarningsAreLogged(t *testing.T) {
	var out strings.Builder
	if err := setUpLogging(&out, 0, logText); err != nil {
		t.Fatal(err)
	}
	klog.Warning("low water")
	klog.Errorf("%s water", "no")
	klog.Info("high water")
	klog.V(1).Info("high water")
	got := out.String()
	if !strings.Contains(got, `level=WARN msg="low water"`) || !strings.Contains(got, `level=ERROR msg="no water"`) || strings.Contains(got, "high") {
		t.Errorf("logged:\n%s", got)
	}
}

// Each line of --logging-format json is one object, whoever logs it and whatever is in it. Other
// formats are refused.
func TestLogsAreJSON(t *testing.T) {
	var out strings.Builder
	if err := setUpLogging(&out, 0, logJSON); err != nil {
		t.Fatal(err)
	}
	klog.Warning("low\n\"water\"")
	klog.ErrorS(errors.New("no\x1b water"), "ebb")
	slog.Warn("high water", "at", 12*time.Hour, "err", fmt.Errorf("flood: %w", errors.New("tide")))
	if err := setUpLogging(io.Discard, 0, logText); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		var entry struct {
			Time            time.Time
			Level, Msg, Err string
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Time.IsZero() {
			t.Errorf("%v in %s", err, line)
		}
		got = append(got, entry.Level+" "+entry.Msg+" "+entry.Err)
	}
	if want := []string{"WARN low\n\"water\" ", "ERROR ebb no\x1b water", "WARN high water flood: tide"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	defer slog.SetDefault(slog.Default())
	for _, flag := range []string{"--logging-format", "--log-format"} {
		for format, want := range map[string]int{"xml": cli.ExitUsage, "json": cli.ExitOK} {
			var stderr strings.Builder
			code := run(t.Context(), []string{"version", flag, format}, strings.NewReader(""), io.Discard, &stderr)
			if code != want || strings.Contains(stderr.String(), `"xml" is neither text nor json`) != (format == "xml") {
				t.Errorf("%s %s: %d, %s", flag, format, code, &stderr)
			}
		}
	}
}

// Every verb has an example, help is not an error, and it lists each verb in one of its groups. The
// usage of import begins with the flags that most people need.
func TestHelp(t *testing.T) {
	root := newRootCommand()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Hidden {
			continue
		}
		if c.GroupID == "" {
			t.Errorf("the help lists %s in no group", c.Name())
		}
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		code, stdout, stderr := tidewaiter(t, c.Name(), "--help")
		if code != cli.ExitOK || stderr != "" || !strings.Contains(stdout, "Examples:\n") || !strings.Contains(stdout, "tidewaiter "+c.Name()) {
			t.Errorf("tidewaiter %s --help: exit code %d, %s%s", c.Name(), code, stdout, stderr)
		}
	}
	for of, parts := range map[string][]string{
		"":       {"\nAsk:\n", "  describe ", "\nImport:\n", "  import ", "\nDecide:\n", "  verify ", "\nServe:\n", "  follow ", "\nLook after:\n", "  prune "},
		"import": {"\nCommon flags:\n", "--all-tags", "--from-pods", "\nOther flags:\n", "--certificate-authority"},
	} {
		code, rest, _ := tidewaiter(t, append(strings.Fields(of), "--help")...)
		for _, part := range parts {
			_, after, found := strings.Cut(rest, part)
			if code != cli.ExitOK || !found {
				t.Fatalf("%s --help lacks %q, or has it too early", of, part)
			}
			rest = after
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := tidewaiter(t, "completion", shell); code != cli.ExitOK || !strings.Contains(stdout, "__complete") {
			t.Errorf("completion %s: exit code %d, %d bytes, %s", shell, code, len(stdout), stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	code, stdout, _ := tidewaiter(t, "version")
	if code != cli.ExitOK || !strings.HasPrefix(stdout, "tidewaiter "+version.Build()+" (go") {
		t.Errorf("exit code %d, %q", code, stdout)
	}
}

// The demonstration shows what pushes become, and leaves nothing behind.
func TestDemoOnce(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	code, stdout, stderr := tidewaiter(t, "demo", "--once")
	if code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, w := range []string{"verified: True", "verified: Unsigned", "verified: False", "harbour/lighthouse", "ByIndex", "VERDICT"} {
		if !strings.Contains(stdout, w) {
			t.Errorf("the output lacks %q:\n%s", w, stdout)
		}
	}
	if left := entries(t, tmp); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A single letter is near to no flag, so -A of kubectl does not become another.
func TestNearestFlag(t *testing.T) {
	t.Parallel()
	pods, _, err := newRootCommand().Find([]string{"pods"})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"A": "", "n": "", "outdatd": "outdated", "out": "output", "nothing-near": ""} {
		if got := nearestFlag(pods, name); got != want {
			t.Errorf("--%s is near to %q, want %q", name, got, want)
		}
	}
	if got := nearest.Likely("harbour/fery", []string{"harbour/ferry", "harbour/buoy"}); got != "harbour/ferry" {
		t.Errorf("fery is near to %q", got)
	}
}
