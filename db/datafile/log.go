package datafile

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Sizes in the log, see https://sqlite.org/fileformat2.html, "The Write-Ahead Log".
const (
	logHeader   = 32
	frameHeader = 24
)

// CheckLog looks for damage in the log of a database that no process has open. A killed process
// leaves its log behind. SQLite treats the first frame with a wrong checksum as the end, and
// silently drops everything that was committed after it. The real end may be incomplete, too, but
// the writer starts a commit only when the one before it is durable. So a wrong frame is damage if
// a complete commit and another frame follow it.
func CheckLog(path string) error {
	f, err := os.Open(path + "-wal")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<20)
	header := make([]byte, logHeader)
	if _, err := io.ReadFull(r, header); err != nil {
		return endOfLog(err)
	}
	// If the log's own header is damaged, take the salts from the first frame.
	var order binary.ByteOrder = binary.LittleEndian
	if header[3]&1 == 1 {
		order = binary.BigEndian
	}
	salts := header[16:24]
	at := logSum{}.add(order, header[:24])
	damaged, whole := 0, at == sumAt(header[24:])
	if !whole {
		order, salts = binary.LittleEndian, nil
	}
	pageSize := binary.BigEndian.Uint32(header[8:])
	if !whole || pageSize < 512 || pageSize > 1<<16 {
		pageSize = 4096
	}
	frame := make([]byte, frameHeader+pageSize)
	var page uint32
	commit := false // the previous frame ends a commit after the damage
	for n := 1; ; n++ {
		if _, err := io.ReadFull(r, frame); err != nil {
			return endOfLog(err)
		}
		if salts == nil {
			salts = bytes.Clone(frame[8:16])
		}
		own := bytes.Equal(frame[8:16], salts)
		sum := at.add(order, frame[:8]).add(order, frame[frameHeader:])
		at = sumAt(frame[16:])
		follows := own && sum == at
		if !whole && commit && follows {
			detail := "its header is damaged"
			if damaged != 0 {
				detail = fmt.Sprintf("its frame %d, for page %d, is damaged", damaged, page)
			}
			return &CorruptError{Path: path, Detail: fmt.Sprintf("in the log %s-wal, %s: what was committed after it would be lost", filepath.Base(path), detail)}
		}
		if whole && !follows {
			whole, damaged, page = false, n, binary.BigEndian.Uint32(frame)
		}
		commit = own && binary.BigEndian.Uint32(frame[4:]) != 0
	}
}

func endOfLog(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

// logSum is the log's running checksum.
type logSum [2]uint32

func sumAt(b []byte) logSum {
	return logSum{binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])}
}

func (s logSum) add(order binary.ByteOrder, b []byte) logSum {
	for ; len(b) >= 8; b = b[8:] {
		s[0] += order.Uint32(b) + s[1]
		s[1] += order.Uint32(b[4:]) + s[0]
	}
	return s
}
