package pull

import "sync/atomic"

// Traffic counts a Client's requests to registries, their token servers and their storage.
type Traffic struct {
	// Requests counts each attempt.
	Requests int64
	// Bytes counts the bytes read from answers.
	Bytes int64
}

type traffic struct{ requests, bytes atomic.Int64 }

// Traffic returns the counts until now.
func (c *Client) Traffic() Traffic {
	return Traffic{c.traffic.requests.Load(), c.traffic.bytes.Load()}
}
