package policy

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Exception (an addition of ours) lets images through that do not meet the policy, until it ends.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Exception struct {
	// Images are 1 to 32 images: a digest, which counts in every repository of the scopes; a
	// repository with a digest; or a repository with a tag, which counts for whatever image the tag
	// leads to.
	//
	// +listType=atomic
	Images []string `json:"images"`
	// Until is when the exception ends, in RFC 3339 and whole seconds, such as
	// 2026-12-31T00:00:00Z.
	Until string `json:"until"`
	// By is the person who decided this, at most 256 bytes.
	By string `json:"by"`
	// Reason is why, at most 512 bytes.
	Reason string `json:"reason"`
}

// ExceptionEndsSoon is how long before its end an exception is reported to end soon.
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

// ofNothing are digests of empty content, which scripts compute by mistake.
var ofNothing = func() (all []string) {
	for _, content := range []string{"", "\n", "{}", "{}\n"} {
		all = append(all, fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))), fmt.Sprintf("sha512:%x", sha512.Sum512([]byte(content))))
	}
	return all
}()

// add adds an image as it is written.
func (e *exception) add(scopes []string, written string) error {
	if slices.Contains(ofNothing, written[strings.LastIndexByte(written, '@')+1:]) {
		return fmt.Errorf("%.128q is the digest of an empty file, or of {}, which no image can have", written)
	}
	if strings.HasPrefix(written, "sha512:") {
		return fmt.Errorf("%.128q alone can be the digest of no image: registries name images by sha256; write repository@sha512:… for one that does not", written)
	}
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
	case !slices.ContainsFunc(append(Scopes(ref), CatchAll), func(scope string) bool { return slices.Contains(scopes, scope) }):
		return fmt.Errorf("%s is in none of the policy's scopes", ref)
	}
	e.images = append(e.images, ref)
	return nil
}

// has reports whether the exception includes an image, given a reference to it and its digest.
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
