package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// MaxWidth is how wide a text is that goes on in further lines, where there is no terminal.
const MaxWidth = 120

// none is how kubectl shows an empty cell.
const none = "<none>"

const (
	columnGap  = 3 // between two columns, as in kubectl's tables
	minColumn  = 6 // with the gap
	leastText  = 8 // to which a column is narrowed
	textIndent = 4 // of a text below a line
)

// Table is a table for people, as kubectl prints them, that fits a terminal.
type Table struct {
	// Columns are the names of the columns. On a terminal, a cell that is too wide loses its
	// beginning, as the end of a reference says more. Where the name ends in "…", which is not
	// printed, the cell is a text and goes on in the lines below. If that is the last column, and
	// there is not the room for it, the text has lines of its own below the others, and the column
	// no name.
	Columns []string
	// Rows have a cell for each column; anybody may have written the text. An empty one is shown as
	// <none>.
	Rows [][]string
	// Fixed are the names of columns whose cells are never cut, such as times.
	Fixed []string
	// Indent is how far the table is from the left.
	Indent int
	// Least are the widths of the columns, if their cells need no more, and NoNames leaves their
	// names out: for rows below a table with the same columns.
	Least   []int
	NoNames bool
}

// Widths are the widths that the columns need, also if they have no names in this table.
func (t Table) Widths() []int {
	widths := make([]int, len(t.Columns))
	for i, name := range t.Columns {
		widths[i] = utf8.RuneCountInString(strings.TrimSuffix(name, "…"))
		if i < len(t.Least) {
			widths[i] = max(widths[i], t.Least[i])
		}
		for _, row := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(shownCell(row[i])))
		}
	}
	return widths
}

// shownCell is a cell as it is printed where there is the room.
func shownCell(cell string) string {
	return cmp.Or(printable.Line(cell, 0), none)
}

// Print prints the table: as wide as the terminal, or else as wide as it needs.
func (t Table) Print(w io.Writer) error {
	columns := 0
	if f, ok := w.(*os.File); ok {
		columns, _, _ = term.GetSize(int(f.Fd())) // what is no terminal has no size
	}
	return t.PrintIn(w, columns)
}

// PrintIn prints the table for a terminal of some columns; 0 is for no terminal.
func (t Table) PrintIn(w io.Writer, columns int) error {
	names, isText, widths := make([]string, len(t.Columns)), make([]bool, len(t.Columns)), t.Widths()
	for i, name := range t.Columns {
		names[i], isText[i] = strings.CutSuffix(name, "…")
	}
	rows := make([][]string, len(t.Rows))
	for r, row := range t.Rows {
		rows[r] = make([]string, len(row))
		for i, cell := range row {
			rows[r][i] = shownCell(cell)
		}
	}
	last, below, page := len(names)-1, -1, cmp.Or(columns, MaxWidth)
	if isText[last] && t.total(widths) > page {
		below, names[last], widths[last] = last, "", 0
	}
	if columns > 0 {
		t.narrow(columns, widths, names)
	}
	out := &strings.Builder{}
	if !t.NoNames {
		t.line(out, names, widths)
	}
	for _, row := range rows {
		cells := make([][]string, len(row))
		height := 1
		for i, cell := range row {
			if i == below {
				continue
			}
			if isText[i] {
				cells[i] = wrapHard(cell, widths[i])
			} else {
				cells[i] = []string{CutLeft(cell, widths[i])}
			}
			height = max(height, len(cells[i]))
		}
		for h := range height {
			line := make([]string, len(row))
			for i := range row {
				if h < len(cells[i]) {
					line[i] = cells[i][h]
				}
			}
			t.line(out, line, widths)
		}
		if below >= 0 && row[below] != none {
			indent := t.Indent + textIndent
			for _, text := range Wrap(row[below], max(page-indent, leastText)) {
				out.WriteString(strings.Repeat(" ", indent) + text + "\n")
			}
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// total is the width of a line.
func (t Table) total(widths []int) int {
	sum := t.Indent
	for i, width := range widths {
		if i < len(widths)-1 {
			width = max(width+columnGap, minColumn)
		}
		sum += width
	}
	return sum
}

// narrow takes from the widest columns until a line fits.
func (t Table) narrow(columns int, widths []int, names []string) {
	for t.total(widths) > columns {
		widest := -1
		for i, width := range widths {
			if !slices.Contains(t.Fixed, names[i]) && (widest < 0 || width > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 || widths[widest] <= max(leastText, len(names[widest])) {
			return
		}
		widths[widest]--
	}
}

// line prints the cells of one line.
func (t Table) line(out *strings.Builder, cells []string, widths []int) {
	line := strings.Repeat(" ", t.Indent)
	for i, cell := range cells {
		line += fmt.Sprintf("%-*s", max(widths[i]+columnGap, minColumn), cell)
	}
	out.WriteString(strings.TrimRight(line, " ") + "\n")
}

// CutLeft cuts the beginning of a text that is wider than width.
func CutLeft(s string, width int) string {
	if n := utf8.RuneCountInString(s); n > width {
		return "…" + string([]rune(s)[n-width+1:])
	}
	return s
}

// Wrap breaks a text at spaces into lines of at most width characters. A word that is longer, such
// as a reference, stays whole.
func Wrap(s string, width int) (lines []string) {
	for rest := s; ; {
		line, next := rest, ""
		for i := range rest {
			if rest[i] == ' ' && (line == rest || utf8.RuneCountInString(rest[:i]) <= width) {
				line, next = rest[:i], rest[i+1:]
			}
		}
		if utf8.RuneCountInString(rest) <= width || line == rest {
			return append(lines, rest)
		}
		lines, rest = append(lines, line), next
	}
}

// wrapHard is Wrap that breaks words, too.
func wrapHard(s string, width int) (lines []string) {
	for _, line := range Wrap(s, width) {
		runes := []rune(line)
		for ; len(runes) > width; runes = runes[width:] {
			lines = append(lines, string(runes[:width]))
		}
		lines = append(lines, string(runes))
	}
	return lines
}
