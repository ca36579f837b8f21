package servertest

import (
	"bytes"
	"sync"
)

// LogBuffer collects the log of a test's server.
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
