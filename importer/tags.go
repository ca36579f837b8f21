package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

const (
	tagPageSize = 1000 // the most that ECR answers with
	maxTagPages = 100
)

// signatureTag is a tag that carries signatures, attestations or referrers of
// another manifest: cosign's sha256-<hex>.sig, .att and .sbom, and the
// distribution-spec's referrers tag schema.
var signatureTag = regexp.MustCompile(`^sha(256|384|512)-[0-9a-f]{64,128}($|\.)`)

// SubjectOfTag returns the digest whose signatures, attestations or referrers a tag carries; ok is
// false for a tag that may be an image's.
func SubjectOfTag(tag string) (digest string, ok bool) {
	if !signatureTag.MatchString(tag) {
		return "", false
	}
	algorithm, hex, _ := strings.Cut(tag, "-")
	hex, _, _ = strings.Cut(hex, ".")
	return algorithm + ":" + hex, true
}

// Tags lists the tags of a repository that may be images, without those that carry signatures.
// "latest" comes first, then higher versions before lower ones. Names that cannot be tags are left
// out, with a warning. It reads at most 100 pages of 1000 tags; a repository with more is an error
// with reason TooLarge. Mirrors are asked first, as for a reference by tag. Errors are those of
// Import.
func (im *Importer) Tags(ctx context.Context, repository reference.Reference) (tags, warnings []string, err error) {
	ref := repository.Bare()
	cut := ""
	if err := im.Reach(ctx, ref, func(s *pull.Session) (err error) {
		read := im.Now()
		if tags, cut, err = listTags(ctx, s); err == nil && cut == "" && im.finder != nil {
			im.finder.Listed(s.Repository, tags, read)
		}
		return err
	}); err != nil {
		return nil, nil, err
	}
	if cut != "" {
		warnings = append(warnings, mayBeCut(ref.Name(), "tags", len(tags), cut))
	}
	refused, last := 0, ""
	tags = slices.DeleteFunc(tags, func(tag string) bool {
		isTag := reference.IsTag(tag) // it becomes part of a URL
		if !isTag {
			refused++
			last = tag
		}
		return !isTag || signatureTag.MatchString(tag)
	})
	if refused > 0 {
		warnings = append(warnings, fmt.Sprintf("%s lists %s, %q last", ref.Name(), table.Quantity(refused, "invalid tag name"), pull.Clean(last)))
	}
	slices.SortFunc(tags, compareTags)
	return slices.Compact(tags), warnings, nil
}

// listTags reads all pages of the distribution-spec's tag listing. cut is why there may be more, or
// "".
func listTags(ctx context.Context, s *pull.Session) (tags []string, cut string, err error) {
	ctx = pull.WithBudget(ctx, manifest.MaxManifestSize, s.Limits.Request, nil)
	path := s.Registry.Path(fmt.Sprintf("tags/list?n=%d", tagPageSize))
	return readList(ctx, s, s.Registry.List(path, tagPageSize), "tag list", "tags", maxTagPages, math.MaxInt, func(raw []byte) ([]string, error) {
		var page struct {
			Tags []string `json:"tags"`
		}
		err := json.Unmarshal(raw, &page)
		return page.Tags, err
	})
}

// compareTags orders "latest" before all, then numbers within tags by value and
// descending, so that v1.10 comes before v1.9, and build-10 before build-9. A release comes
// before its pre-releases (1.2 before 1.2-rc1), and versions before words. Words are in the order
// of the alphabet.
func compareTags(a, b string) int {
	if a == b {
		return 0
	}
	if a == "latest" {
		return -1
	}
	if b == "latest" {
		return 1
	}
	if va, vb := isVersion(a), isVersion(b); va != vb {
		if va {
			return -1
		}
		return 1
	} else if !va {
		return cmp.Or(compareChunks(a, b, -1), strings.Compare(a, b))
	}
	ra, pa, _ := strings.Cut(strings.TrimPrefix(a, "v"), "-")
	rb, pb, _ := strings.Cut(strings.TrimPrefix(b, "v"), "-")
	if c := compareChunks(rb, ra, 1); c != 0 {
		return c
	}
	if (pa == "") != (pb == "") {
		if pa == "" {
			return -1
		}
		return 1
	}
	if c := compareChunks(pb, pa, 1); c != 0 {
		return c
	}
	return strings.Compare(a, b)
}

func isVersion(tag string) bool {
	tag = strings.TrimPrefix(tag, "v")
	return tag != "" && tag[0] >= '0' && tag[0] <= '9'
}

var chunks = regexp.MustCompile(`[0-9]+|[^0-9]+`)

// compareChunks compares digits by value, times sign, and the rest as text.
func compareChunks(a, b string, sign int) int {
	as, bs := chunks.FindAllString(a, -1), chunks.FindAllString(b, -1)
	for i := range min(len(as), len(bs)) {
		x, y := strings.TrimLeft(as[i], "0"), strings.TrimLeft(bs[i], "0")
		if isVersion(as[i]) && isVersion(bs[i]) {
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y)); c != 0 {
				return sign * c
			}
			continue
		}
		if c := strings.Compare(as[i], bs[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}
