package gzipparts

import (
	"encoding/binary"
	"errors"
	"io"
)

// bufferBytes are gathered before they are written.
const bufferBytes = 64 << 10

// Writer writes one gzip stream.
type Writer struct {
	w    io.Writer
	buf  []byte
	crc  uint32
	size uint32 // modulo 2^32, as the trailer has it
	err  error
}

// NewWriter returns a Writer to w, which gets at least 64 KiB at a time, but for
// the last. Call Close to have the rest written.
func NewWriter(w io.Writer) *Writer {
	// deflate, no flags, no time, compressed fast, on an unknown system
	return &Writer{w: w, buf: append(make([]byte, 0, 2*bufferBytes), 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff)}
}

// Write writes p's text. Once it has failed it goes on to.
func (w *Writer) Write(p Part) error {
	if w.err != nil {
		return w.err
	}
	w.buf = append(w.buf, p.Deflated...)
	w.crc = times(p.shift, w.crc) ^ p.CRC
	w.size += p.Size
	if len(w.buf) >= bufferBytes {
		w.flush()
	}
	return w.err
}

// Close ends the stream. It does not close the io.Writer.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	w.buf = append(w.buf, 0x03, 0x00) // the last block: compressed, and empty
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.crc)
	w.buf = binary.LittleEndian.AppendUint32(w.buf, w.size)
	w.flush()
	if w.err != nil {
		return w.err
	}
	w.err = errClosed
	return nil
}

var errClosed = errors.New("gzipparts: the stream has been closed")

func (w *Writer) flush() {
	_, w.err = w.w.Write(w.buf)
	w.buf = w.buf[:0]
}
