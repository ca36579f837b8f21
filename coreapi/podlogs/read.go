package podlogs

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

const (
	// partSize bounds the part of a line that is in memory. A runtime cuts lines at 16 KiB, so only
	// lines of a broken log are longer.
	partSize = 32 << 10
	// poll is how often a followed log is checked.
	poll = 250 * time.Millisecond
	// timestampFormat is a line's timestamp as Kubernetes shows it, of fixed width.
	timestampFormat = "2006-01-02T15:04:05.000000000Z07:00"
)

// logOptions choose a part of a log, as core/v1 PodLogOptions do.
type logOptions struct {
	tailLines  *int64    // this many of the file's lines, from its end; nil for all
	limitBytes *int64    // at most this many bytes; nil for all
	since      time.Time // only lines from then on
	follow     bool      // go on until the container has ended
	timestamps bool      // begin each line with its time
}

// logReader copies a log from the file of a container runtime, as the kubelet does. A line is
// "TIMESTAMP STREAM TAG CONTENT", where the tag P means that the next line continues it.
type logReader struct {
	path           string
	opts           logOptions
	container      *container
	stdout, stderr bool // which streams are wanted
	out            *bufio.Writer

	lines int64 // left to copy, if tailLines bounds them
	begun bool  // a line was understood

	// The state of the copy.
	middle   bool // within a line of the file
	wanted   bool // the rest of that line is copied
	partial  bool // the next line continues it
	attached bool // the next line of the file continues the last one
}

// errNoMore ends a copy that has everything wanted.
var errNoMore = errors.New("everything requested has been copied")

func newLogReader(s *fileStream, w io.Writer) *logReader {
	r := &logReader{path: s.path, opts: s.opts, container: s.container, stdout: s.stdout, stderr: s.stderr, lines: -1}
	if s.opts.limitBytes != nil {
		w = &limitedWriter{w, *s.opts.limitBytes}
	}
	r.out = bufio.NewWriterSize(w, partSize)
	return r
}

// copy copies what is wanted of the log, until the log or ctx ends.
func (r *logReader) copy(ctx context.Context) error {
	err := r.copyAll(ctx)
	err = errors.Join(err, r.out.Flush())
	if errors.Is(err, errNoMore) {
		return nil
	}
	return err
}

func (r *logReader) copyAll(ctx context.Context) error {
	f, err := openLog(r.path)
	if err != nil {
		return err
	}
	defer func() { f.Close() }()
	if n := r.opts.tailLines; n != nil {
		start, err := tailStart(ctx, f, *n)
		if err != nil {
			return err
		}
		if _, err := f.Seek(start, io.SeekStart); err != nil {
			return err
		}
		if !r.opts.follow {
			r.lines = *n // without lines that are written meanwhile
		}
	}
	parts := &partReader{r: f, buf: make([]byte, partSize)}
	for {
		// Check this before reading to the end: then everything that was written until now is read.
		next, ended := r.rotated(f), !r.opts.follow || !r.container.running(ctx)
		if err := r.copyParts(ctx, parts); err != nil {
			return err
		}
		if next || ended {
			if err := r.copyPart(parts.rest(), false); err != nil {
				return err
			}
		}
		if next {
			file, err := openLog(r.path)
			if err != nil {
				return err
			}
			f.Close()
			f, parts.r = file, file
			r.middle = false
			continue
		}
		if ended {
			return nil
		}
		if err := r.out.Flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// rotated reports whether the log continues in a new file. The runtime continues to write into the
// old file until it has made the new one.
func (r *logReader) rotated(f *os.File) bool {
	if !r.opts.follow {
		return false
	}
	old, err := f.Stat()
	if err != nil {
		return false
	}
	now, err := os.Lstat(r.path)
	return err == nil && !os.SameFile(old, now)
}

// copyParts copies the present contents of the file.
func (r *logReader) copyParts(ctx context.Context, parts *partReader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		part, end, err := parts.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.copyPart(part, end); err != nil {
			return err
		}
	}
}

// copyPart copies a part of a line; end is true for its last part.
func (r *logReader) copyPart(part []byte, end bool) error {
	if len(part) == 0 && !end {
		return nil
	}
	if !r.middle {
		if r.lines == 0 {
			return errNoMore
		}
		line, ok := parseLine(part)
		if !ok && !r.begun {
			return errors.New("the file is not a log in the CRI format")
		}
		r.begun = r.begun || ok
		r.wanted = ok && !line.time.Before(r.opts.since) && (line.stdout && r.stdout || !line.stdout && r.stderr)
		r.partial = line.partial
		if r.wanted && r.opts.timestamps && !r.attached {
			if _, err := fmt.Fprintf(r.out, "%s ", line.time.Format(timestampFormat)); err != nil {
				return err
			}
		}
		if ok {
			r.attached = line.partial && len(line.content) > 0
			r.lines--
		}
		part = line.content
	}
	r.middle = !end
	if !r.wanted {
		return nil
	}
	if _, err := r.out.Write(part); err != nil {
		return err
	}
	if end && !r.partial {
		return r.out.WriteByte('\n')
	}
	return nil
}

// logLine is a line of a log, or its beginning.
type logLine struct {
	time    time.Time
	stdout  bool // else stderr
	partial bool // the next line continues this one
	content []byte
}

// parseLine reads a line of a log in the CRI format.
// https://github.com/kubernetes/design-proposals-archive/blob/main/node/kubelet-cri-logging.md
func parseLine(b []byte) (l logLine, ok bool) {
	at, b, _ := bytes.Cut(b, []byte{' '})
	stream, b, _ := bytes.Cut(b, []byte{' '})
	tags, content, ok := bytes.Cut(b, []byte{' '})
	if !ok {
		return logLine{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, string(at))
	if err != nil || string(stream) != "stdout" && string(stream) != "stderr" {
		return logLine{}, false
	}
	tag, _, _ := bytes.Cut(tags, []byte{':'})
	return logLine{time: t, stdout: string(stream) == "stdout", partial: string(tag) == "P", content: content}, true
}

// partReader reads lines in parts no larger than its buffer.
type partReader struct {
	r     io.Reader
	buf   []byte
	start int // buf[start:end] is read and not returned
	end   int
}

// next returns the next part of a line, without the line break, and whether the line ends
// there. The part is valid until the next call. At the end of the file next returns io.EOF; a
// later call returns more if the file has grown.
func (p *partReader) next() (part []byte, end bool, err error) {
	for {
		held := p.buf[p.start:p.end]
		if i := bytes.IndexByte(held, '\n'); i >= 0 {
			p.start += i + 1
			return held[:i], true, nil
		}
		if len(held) == len(p.buf) {
			return p.rest(), false, nil
		}
		p.start, p.end = 0, copy(p.buf, held)
		n, err := p.r.Read(p.buf[p.end:])
		p.end += n
		if n == 0 && err != nil {
			return nil, false, err
		}
	}
}

// rest returns the rest of a last line that has no line break.
func (p *partReader) rest() []byte {
	rest := p.buf[p.start:p.end]
	p.start = p.end
	return rest
}

// openLog opens a log file. It follows no link, and waits for no pipe.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, errors.New("the log is a symbolic link now; links are not followed")
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("the log is a %s now, not a regular file", fileKind(info.Mode()))
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// tailStart returns where the last n lines of the file begin. A last line without a line break
// does not count.
func tailStart(ctx context.Context, f *os.File, n int64) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	buf := make([]byte, partSize)
	for end := info.Size(); end > 0; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		start := max(0, end-partSize)
		b := buf[:end-start]
		if _, err := f.ReadAt(b, start); err != nil {
			return 0, err
		}
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if n--; n < 0 {
				return start + int64(i) + 1, nil
			}
		}
		end = start
	}
	return 0, nil
}

// limitedWriter writes n bytes, and no more.
type limitedWriter struct {
	io.Writer
	n int64
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if int64(len(p)) < l.n {
		n, err := l.Writer.Write(p)
		l.n -= int64(n)
		return n, err
	}
	n, err := l.Writer.Write(p[:l.n])
	l.n -= int64(n)
	err = cmp.Or(err, errNoMore)
	return n, err
}
