package tags

import "time"

// Check records that a registry confirmed where a reference leads. Only the time is stored.
type Check struct {
	// Reference is canonical, with a tag or a digest.
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// At is not later than the registry's answer.
	At time.Time `json:"at"`
}

// ChecksPath takes a POST of a JSON array of at most MaxChecks checks. Writers of the status of
// ImageTags may send them: the path is that of one, which no tag can have.
const ChecksPath = "/apis/image.openshift.io/v1/namespaces/" + Namespace + "/imagetags/checks/status"

// MaxChecks bounds the checks of one request.
const MaxChecks = 500
