package hooks

import "github.com/tidewaiter/tidewaiter/importer/push"

// vendor is how one Receiver.Type authenticates and what its payloads mean.
type vendor struct {
	auth auth
	// header is the default of Receiver.Header, for an auth that uses a header.
	header string
	// oneHost is set for payloads that name no host. The receiver must then have
	// exactly one.
	oneHost bool
	// maxBody is how many bytes a body may have whose sender has proved that it knows the
	// secret; 0 is maxBodyBytes.
	maxBody int
	// decode reads a body that is known to be JSON. An error means that the body does
	// not have the vendor's shape. The events hold the payload's values, unchecked and
	// without a Receiver. Events that do not matter may be left out, or have the
	// vendor's own Action.
	decode func(*delivery) ([]push.Event, error)
}
