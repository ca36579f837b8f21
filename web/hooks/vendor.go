package hooks

import (
	"errors"

	kjson "sigs.k8s.io/json"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// vendor has the authentication and the decoder of one Receiver.Type.
type vendor struct {
	auth auth
	// header is the default of Receiver.Header, for an auth that uses a header.
	header string
	// oneHost is set if payloads do not contain the host. The receiver must then have exactly one.
	oneHost bool
	// maxBody is the largest body of an authenticated sender, in bytes; 0 is maxBodyBytes.
	maxBody int
	// decode reads a body that is valid JSON. An error means that the body does not have the vendor's
	// form. The events have the payload's values, unchecked and without a Receiver. Events that are
	// neither pushes nor deletions have the vendor's Action, or come from [other]. decode returns no
	// events if nothing shows that the payload is the vendor's.
	decode func(*delivery) ([]push.Event, error)
}

// other returns the event for a vendor's payload that reports neither pushes nor deletions.
func other(what string) []push.Event {
	return []push.Event{{Action: push.Action("the event " + what)}}
}

// unmarshal reads JSON strictly, so that it means the same to every reader: keys are
// case-sensitive, and a key that occurs twice is an error.
func unmarshal(data []byte, into any) error {
	twice, err := kjson.UnmarshalStrict(data, into, kjson.DisallowDuplicateFields)
	return errors.Join(append(twice, err)...)
}
