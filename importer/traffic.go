package importer

import "sync/atomic"

// Traffic counts what an Importer has asked of registries, their token servers and their
// storage.
type Traffic struct {
	// Requests counts each attempt.
	Requests int64
	// Bytes are the bytes read of answers' bodies.
	Bytes int64
}

type traffic struct{ requests, bytes atomic.Int64 }

// Traffic returns the counts until now.
func (im *Importer) Traffic() Traffic {
	return Traffic{im.traffic.requests.Load(), im.traffic.bytes.Load()}
}
