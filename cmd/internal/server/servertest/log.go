package servertest

import (
	"bytes"
	"sync"
)

// LogBuffer is what a test's server logs.
type LogBuffer struct {
	Mu  sync.Mutex
	Buf bytes.Buffer
}

// Write is part of io.Writer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.Buf.Write(p)
}

// String returns what has been logged.
func (b *LogBuffer) String() string {
	b.Mu.Lock()
	defer b.Mu.Unlock()
	return b.Buf.String()
}
