package policy

import (
	"fmt"
	"slices"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Exception lets (an addition of ours) images through that do not meet the policy, until it ends.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Exception struct {
	// Images are 1 to 32 images: a digest, in whichever repository of the scopes; a repository with
	// a digest; or a repository with a tag, whatever that leads to.
	//
	// +listType=atomic
	Images []string `json:"images"`
	// Until is when the exception ends, in RFC 3339 and whole seconds, such as
	// 2026-12-31T00:00:00Z.
	Until string `json:"until"`
	// By is who has decided this, at most 256 bytes.
	By string `json:"by"`
	// Reason is why, at most 512 bytes.
	Reason string `json:"reason"`
}

// ExceptionEndsSoon is how long before the end of an exception that is said.
const ExceptionEndsSoon = 7 * 24 * time.Hour

// Bounds of the exceptions of a policy.
const (
	maxExceptions      = 64
	maxExceptedImages  = 32
	maxExceptedBy      = 256
	maxExceptionReason = 512
)

// exception is an Exception that was checked.
type exception struct {
	Exception
	until   time.Time
	digests []string              // in any repository
	images  []reference.Reference // with a tag or a digest
}

// add adds an image as it is written.
func (e *exception) add(scopes []string, written string) error {
	if reference.IsDigest(written) {
		e.digests = append(e.digests, written)
		return nil
	}
	if err := checkScope(written); err != nil {
		return err
	}
	ref, err := reference.Parse(written)
	switch {
	case err != nil:
		return err
	case ref.Tag == "" && ref.Digest == "":
		return fmt.Errorf("%.128q names neither a tag nor a digest: an exception is for single images", written)
	case !slices.ContainsFunc(append(Scopes(ref), catchAll), func(scope string) bool { return slices.Contains(scopes, scope) }):
		return fmt.Errorf("%s is in none of the policy's scopes", ref)
	}
	e.images = append(e.images, ref)
	return nil
}

// has reports whether an image that is asked for by a reference is one of the exception's.
func (e *exception) has(asked reference.Reference, digest string) bool {
	if slices.Contains(e.digests, digest) {
		return true
	}
	return slices.ContainsFunc(e.images, func(image reference.Reference) bool {
		if image.Digest != "" {
			return image.Digest == digest && image.Name() == asked.Name()
		}
		return asked.Digest == "" && image == asked.Pulled()
	})
}
