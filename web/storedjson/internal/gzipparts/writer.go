package gzipparts

import (
	"encoding/binary"
	"errors"
	"io"
)

// Writer writes one gzip stream.
type Writer struct {
	w   io.Writer
	sum Sum
	err error
}

// NewWriter writes the beginning of a stream to w.
func NewWriter(w io.Writer) *Writer {
	// deflate, no flags, no time, compressed fast, on an unknown system
	_, err := w.Write([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff})
	return &Writer{w: w, err: err}
}

// Write writes the result of Append for one text, or several results in a row. sum is the Sum of
// the texts. Once Write has failed, it always fails.
func (w *Writer) Write(deflated []byte, sum Sum) error {
	if w.err != nil {
		return w.err
	}
	w.sum = w.sum.Then(sum)
	_, w.err = w.w.Write(deflated)
	return w.err
}

// Close ends the stream. It does not close the io.Writer.
func (w *Writer) Close() error {
	if w.err != nil {
		return w.err
	}
	end := []byte{0x03, 0x00} // the last block: compressed, and empty
	end = binary.LittleEndian.AppendUint32(end, w.sum.crc)
	end = binary.LittleEndian.AppendUint32(end, w.sum.size)
	if _, w.err = w.w.Write(end); w.err != nil {
		return w.err
	}
	w.err = errClosed
	return nil
}

var errClosed = errors.New("gzipparts: the stream has been closed")
