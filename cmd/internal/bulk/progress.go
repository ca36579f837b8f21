package bulk

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// progress keeps one line about a running import on a terminal. On anything else it
// writes nothing: there, the results show the progress.
type progress struct {
	mu         sync.Mutex
	w          io.Writer
	Width      func() int // 0 when w is not a terminal
	shown      bool
	begun      int
	finished   int
	lists      int // under way
	layers     int
	last       string
	lastNotice string
	total      int       // references, as far as they are known
	since      time.Time // when the first was begun
	Clock      clock.PassiveClock
}

// NewProgress returns a line of progress on w, which is shown on terminals only.
func NewProgress(w io.Writer) *progress {
	p := &progress{w: w, Width: func() int { return 0 }, Clock: clock.RealClock{}}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.Width = func() int {
			columns, _, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 80
			}
			return columns
		}
	}
	return p
}

// Planned adds n references to the total.
func (p *progress) Planned(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += n
}

// Started records that a job has begun.
func (p *progress) Started(j Job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun == 0 {
		p.since = p.Clock.Now()
	}
	p.count(j, 1)
	p.last = j.Ref.String()
	p.draw()
}

// count adds n to the jobs of a kind that have begun. The caller holds mu.
func (p *progress) count(j Job, n int) {
	if j.Kind == ImportJob {
		p.begun += n
	} else {
		p.lists += n
	}
}

// listed records that a running list has ended. A failed list counts as a running reference until
// Done.
func (p *progress) listed(failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lists--
	if failed {
		p.total++
		p.begun++
	}
}

// Event records a step of an import.
func (p *progress) Event(e importer.Event) {
	if e.Kind != importer.EventVerified {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.layers++
	p.last = e.Reference
	p.draw()
}

// Done records that a reference is finished. It hides the progress line while it calls print, which
// writes lines that stay.
func (p *progress) Done(print func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished++
	p.beside(print)
}

// aside hides the progress line while it calls print, which writes lines that stay.
func (p *progress) aside(print func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.beside(print)
}

// beside is aside for a caller that holds mu.
func (p *progress) beside(print func()) {
	p.clear()
	print()
	p.draw()
}

// postponed records that a running job will begin again later, and prints why unless that is "".
func (p *progress) postponed(j Job, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count(j, -1)
	p.write(why)
}

// noteOnce is note, but skips a line that is the same as the last one.
func (p *progress) noteOnce(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if line != p.lastNotice {
		p.lastNotice = line
		p.write(line)
	}
}

// Note writes a line that stays.
func (p *progress) Note(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write(line)
}

// write writes a line, if it is not empty, above the progress line. The caller holds mu.
func (p *progress) write(line string) {
	p.beside(func() {
		if line != "" {
			fmt.Fprintln(p.w, printable.Text(line))
		}
	})
}

// End removes the line for good.
func (p *progress) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.Width = func() int { return 0 }
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

func (p *progress) draw() {
	if p.begun == p.finished && p.lists == 0 {
		return
	}
	line := fmt.Sprintf("%d done, %d running", p.finished, p.begun-p.finished)
	if p.total > 1 {
		line = fmt.Sprintf("%d of %d done, %d running", p.finished, p.total, p.begun-p.finished)
		if took := p.Clock.Now().Sub(p.since); p.finished > 0 && p.finished < p.total && took >= time.Second {
			rate := float64(p.finished) / took.Seconds()
			left := time.Duration(float64(p.total-p.finished) / rate * float64(time.Second))
			line += fmt.Sprintf(", %.1f a second, %s left", rate, left.Round(time.Second))
		}
	}
	if p.lists > 0 {
		line += ", " + table.Quantity(p.lists, "list")
	}
	if p.layers > 0 {
		line += ", " + table.Quantity(p.layers, "layer") + " checked"
	}
	p.Show(line + ": " + p.last)
}

// Show replaces the line. It cuts the new one to the terminal's width.
func (p *progress) Show(line string) {
	width := p.Width()
	if width == 0 {
		return
	}
	if runes := []rune(line); len(runes) >= width {
		line = string(runes[:width-1])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
	p.shown = true
}
