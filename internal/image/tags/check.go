package tags

import "time"

// Check records that a registry confirmed a reference. Only the time is stored.
type Check struct {
	// Reference is canonical, with a tag or a digest.
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// At is not later than the registry's answer.
	At time.Time `json:"at"`
}

// ChecksPath accepts a POST of a JSON array of at most MaxChecks checks. It has the form of an
// ImageTag's status, with a name that no tag can have, so that those who may write the status of
// ImageTags may send checks.
const ChecksPath = "/apis/image.openshift.io/v1/namespaces/" + Namespace + "/imagetags/checks/status"

// MaxChecks bounds the checks of one request.
const MaxChecks = 500
