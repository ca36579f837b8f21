package importer

import (
	"cmp"
	"encoding/json"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// setSearch stores the result of a search of one repository in image, as that repository's. err is
// why the search ended early, if it did.
func setSearch(image *imagev1.Image, repository reference.Reference, found []imagev1.ImageSignature, annotations map[string]string, err error) {
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	r := annotation.Repository{Unread: annotations[annotation.Unread], Unusable: annotations[annotation.Unusable], Cut: annotations[annotation.Cut] != ""}
	if err != nil {
		// Earlier results stay: all that is known is that not everything was read.
		r.Unread = pull.Clean(err.Error())
		setFound(image, repository, r)
		return
	}
	image.Signatures = slices.Clone(found)
	// In another order than the registry's: when there are too many for one request, small ones are
	// first.
	slices.SortFunc(image.Signatures, func(a, b imagev1.ImageSignature) int {
		return cmp.Or(cmp.Compare(len(a.Content), len(b.Content)), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range image.Signatures {
		r.Signatures = append(r.Signatures, record.UniquePart(s.Name))
	}
	if text := annotations[annotation.Attestations]; text != "" {
		r.Attestations = json.RawMessage(text)
	}
	// the finder's own, an array of strings
	_ = json.Unmarshal([]byte(annotations[annotation.Warnings]), &r.Warnings)
	_ = json.Unmarshal([]byte(annotations[annotation.Manifests]), &r.Manifests)
	setFound(image, repository, r)
	for key, value := range annotations {
		switch key {
		case annotation.Attestations, annotation.Documents, annotation.Warnings, annotation.Manifests, annotation.Unread, annotation.Unusable, annotation.Cut:
			continue
		}
		if _, own := image.Annotations[key]; !own {
			image.Annotations[key] = value
		}
	}
}

func setFound(image *imagev1.Image, repository reference.Reference, r annotation.Repository) {
	annotation.SetFound(image.Annotations, map[string]annotation.Repository{repository.Bare().String(): r})
}
