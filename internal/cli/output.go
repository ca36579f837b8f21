package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Formats of verbs that print one object, and of those that print a list. Verbs add Wide where a
// table has more columns.
var (
	ObjectFormats = []string{"json", "yaml", "name"}
	ListFormats   = []string{"json", "jsonl", "yaml", "name"}
)

// Wide is the format of a table with all its columns.
const Wide = "wide"

// Output is the flag -o of a verb that prints objects.
type Output struct {
	format  string
	formats []string
}

// AddFlag adds the flag to a verb, with completion. The verb prints something for people without
// it, such as a table.
func (o *Output) AddFlag(cmd *cobra.Command, people string, formats ...string) {
	o.formats = formats
	cmd.Flags().VarP(o, "output", "o", fmt.Sprintf("one of %s, instead of %s", strings.Join(formats, ", "), people))
	Complete(cmd, "output", formats...)
}

// Set is part of pflag.Value.
func (o *Output) Set(format string) error {
	if !slices.Contains(o.formats, format) {
		return fmt.Errorf("-o is one of %s", strings.Join(o.formats, ", "))
	}
	o.format = format
	return nil
}

// String is part of pflag.Value.
func (o *Output) String() string { return o.format }

// Type is part of pflag.Value. It stands behind the flag in the help.
func (o *Output) Type() string { return "FORMAT" }

// Formats are the values that the flag takes.
func (o *Output) Formats() []string { return o.formats }

// Wide reports whether a table is wanted with all its columns.
func (o *Output) Wide() bool { return o.format == Wide }

// ForPeople reports whether a table or a page is wanted, and no document.
func (o *Output) ForPeople() bool { return o.format == "" || o.Wide() }

// Lines reports whether lines are wanted, of items or of names, which have no place for what is
// about all of them.
func (o *Output) Lines() bool { return o.format == "jsonl" || o.format == "name" }

// Document is the output of a verb for programs.
type Document struct {
	// Whole is printed by json and yaml.
	Whole any
	// Items are the lines of jsonl.
	Items []any
	// Names are the lines of name.
	Names []string
}

// Print prints a document in the format that was asked for.
func (o *Output) Print(w io.Writer, d Document) error {
	switch o.format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "    ")
		return e.Encode(d.Whole)
	case "yaml":
		text, err := yaml.Marshal(d.Whole)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	case "jsonl":
		e := json.NewEncoder(w)
		for _, item := range d.Items {
			if err := e.Encode(item); err != nil {
				return err
			}
		}
	case "name":
		for _, name := range d.Names {
			if _, err := fmt.Fprintln(w, printable.Line(name, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// ItemsOf returns the items of a list for a Document.
func ItemsOf[T any](list []T) []any {
	all := make([]any, len(list))
	for i := range list {
		all[i] = list[i]
	}
	return all
}
