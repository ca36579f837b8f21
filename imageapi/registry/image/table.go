package image

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// maxPlatforms is how many platforms of an index a cell names, and maxPlatform how long each may
// be, in bytes.
const (
	maxPlatforms = 4
	maxPlatform  = 128
)

// maxSigners is how many signers a cell names, and maxVerdicts how many verdicts.
const (
	maxSigners  = 2
	maxVerdicts = 8
)

type column struct {
	metav1.TableColumnDefinition
	cell func(r row) any
}

// row has the data for the cells of a row.
type row struct {
	*imagev1.Image
	metadata *docker10.DockerImage
	// asked is the reference that the row is about; the zero Reference if it is about the image
	// wherever it is.
	asked    reference.Reference
	held     []annotation.HeldVerdict // all that the image holds, or that for the reference alone
	verified string
	signers  []string
	attested string
	pods     string
	outdated string
	bases    *bases // that the row was selected by; nil if it was not
}

// columns of `kubectl get images`, and after them those that -o wide adds, the long ones last.
var columns = []column{
	{
		metav1.TableColumnDefinition{Name: "Image", Type: "string", Description: "The beginning of the digest: tidewaiter describe takes it."},
		func(r row) any { return shortName(r.Name) },
	},
	{
		metav1.TableColumnDefinition{Name: "Repository", Type: "string", Description: "The image's repository, shortened from the left; of several, how many more."},
		func(r row) any { return r.repositories() },
	},
	{
		metav1.TableColumnDefinition{Name: "Tags", Type: "string", Description: "The tags that lead to the image now, as many as fit."},
		func(r row) any { return r.tags() },
	},
	{
		metav1.TableColumnDefinition{Name: "Verdict", Type: "string", Description: "Whether a signature is trusted: True, ByIndex, False, Unsigned (a policy demands a signature), NoPolicy (no policy covers it), Excepted and until which day, or Unknown and why. If repositories differ, the worst, and in how many of them: True (2 of 3)."},
		func(r row) any { return r.verdict() },
	},
	{
		metav1.TableColumnDefinition{Name: "Pods", Type: "string", Description: "Number of pods that use the image now; a plus means that there may be more, Unknown that there may be some."},
		func(r row) any { return r.pods },
	},
	{
		metav1.TableColumnDefinition{Name: "Age", Type: "string", Description: "Time since the Image object was created."},
		func(r row) any { return metatable.ConvertToHumanReadableDateType(r.CreationTimestamp) },
	},
	{
		metav1.TableColumnDefinition{Name: "Outdated", Type: "string", Priority: 1, Description: "Number of these, in followed clusters, that name a tag which leads elsewhere now; a plus means that there may be more, Unknown that there may be some."},
		func(r row) any { return r.outdated },
	},
	{
		metav1.TableColumnDefinition{Name: "Gone", Type: "string", Priority: 1, Description: "The first repository whose registry says that it no longer has the image, and how many more; <none> if none is known."},
		func(r row) any { return orNone(firstOf(annotation.GoneFrom(r.Annotations, r.Name))) },
	},
	{
		metav1.TableColumnDefinition{Name: "Size", Type: "string", Priority: 1, Description: "Bytes in the registry, each layer counted once."},
		func(r row) any { return table.Size(r.metadata.Size) },
	},
	{
		metav1.TableColumnDefinition{Name: "Layers", Type: "integer", Priority: 1, Description: "Number of layers."},
		func(r row) any { return int64(len(r.DockerImageLayers)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Platform", Type: "string", Priority: 1, Description: "Operating system and architecture; of an index, those of its images."},
		func(r row) any { return platforms(r.Image, r.metadata) },
	},
	{
		metav1.TableColumnDefinition{Name: "Signatures", Type: "integer", Priority: 1, Description: "Number of signatures, trusted or not."},
		func(r row) any { return int64(countSignatures(r.Image)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Signer", Type: "string", Priority: 1, Description: "The signers of the trusted signatures."},
		func(r row) any { return orNone(some(r.signers, maxSigners)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Attested", Type: "string", Priority: 1, Description: "Whether attestations are trusted, all of them where a policy demands some: True, False, Unknown, or ByIndex."},
		func(r row) any { return orNone(r.attested) },
	},
	{
		metav1.TableColumnDefinition{Name: "Created", Type: "string", Format: "date-time", Priority: 1, Description: "When the image was built, according to its config."},
		func(r row) any {
			if r.metadata.Created.IsZero() {
				return table.None
			}
			return r.metadata.Created.UTC().Format(time.RFC3339)
		},
	},
	{
		metav1.TableColumnDefinition{Name: "Base", Type: "string", Priority: 1, Description: "What the image is built on, by its annotations. Of images that are selected by a base, how that is known: annotation, layers, or both."},
		func(r row) any { return orNone(printable.Line(r.base(), maxRepositoryCell)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Verdicts", Type: "string", Priority: 1, Description: "The verdict in each of the image's repositories, and for each tag that is the scope of a policy."},
		func(r row) any { return orNone(r.verdicts()) },
	},
	{
		metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Priority: 1, Description: "The digest of the image's manifest."},
		func(r row) any { return r.Name },
	},
}

var imageColumns = func() []metav1.TableColumnDefinition {
	all := make([]metav1.TableColumnDefinition, len(columns))
	for i, c := range columns {
		all[i] = c.TableColumnDefinition
	}
	return all
}()

// tableConvertor implements rest.TableConvertor for Image and ImageList.
type tableConvertor struct{ images *REST }

// ConvertToTable prints an Image or an ImageList. Rows that were selected by a reference are about
// that reference.
func (c tableConvertor) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	c.images.Facts.warnOfStale(ctx)
	about, on, err := c.about(ctx)
	if err != nil {
		return nil, err
	}
	rows := func(image *imagev1.Image) [][]any { return c.rows(ctx, image, about, on) }
	return table.Of[*imagev1.Image]{Columns: imageColumns, Rows: rows}.ConvertToTable(ctx, object, options)
}

// WarnOfUse returns a convertor of another resource that shows pods, too: it gives the warnings of
// the table of images.
func (r *REST) WarnOfUse(c rest.TableConvertor) rest.TableConvertor { return warnsOfUse{c, r.Facts} }

type warnsOfUse struct {
	rest.TableConvertor
	facts *facts
}

// ConvertToTable is part of rest.TableConvertor.
func (c warnsOfUse) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	c.facts.warnOfStale(ctx)
	return c.TableConvertor.ConvertToTable(ctx, object, options)
}

// about is the reference, and on the base, that a request selects images by.
func (c tableConvertor) about(ctx context.Context) (ref reference.Reference, on *bases, err error) {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok || info.FieldSelector == "" {
		return ref, nil, nil
	}
	selector, err := fields.ParseSelector(info.FieldSelector)
	if err == nil {
		selector, err = selector.Transform(ConvertFieldLabel)
	}
	if err != nil {
		return ref, nil, err
	}
	if on, _, err = c.images.basesIn(ctx, &internalversion.ListOptions{FieldSelector: selector}); err != nil {
		return ref, nil, err
	}
	if ref = namedIn(selector); ref.Host != "" && (ref.Tag != "" || ref.Digest != "") {
		ref = ref.Pulled()
		if c.images.answers != nil {
			ref, _, _, err = c.images.answers.Leads(ctx, ref) // a mirror's name stands for another
		}
	}
	return ref, on, err
}

func (c tableConvertor) rows(ctx context.Context, image *imagev1.Image, about reference.Reference, on *bases) [][]any {
	f, r := c.images.Facts, row{Image: image, bases: on}
	var err error
	if r.metadata, err = manifest.Metadata(image); err != nil {
		r.metadata = &docker10.DockerImage{}
	}
	r.pods, r.outdated = f.podsCell(image), f.outdatedCell(image)
	r.held = f.stored.Held(image)
	switch v, isThere := heldIn(r.held, about); {
	case isArtifact(image): // no verdicts on signatures of an artifact are kept
		r.held, r.verified = nil, table.None
	case !isThere:
		r.verified, r.signers = f.stored.Summarize(image)
		r.attested = f.stored.Attested(image)
	default:
		r.asked = about
		if about.Tag != "" || about.Digest != "" {
			if v, err = c.images.Verdict(ctx, image, about, ""); err != nil {
				v = annotation.Verdict{Verified: verdicts.VerifiedUnknown}
				warning.AddWarning(ctx, "", printable.Line(fmt.Sprintf("the verdict for %s is unknown: %v", about, err), MaxWhy))
			}
		}
		r.held = []annotation.HeldVerdict{{Place: about.String(), Verdict: v}}
		r.verified, r.signers, r.attested = v.Verified, v.Signers, v.Attested
	}
	cells := make([]any, len(columns))
	for i, column := range columns {
		cells[i] = column.cell(r)
	}
	return [][]any{cells}
}

func orNone(s string) string { return cmp.Or(s, table.None) }

// platforms names what the image runs on. Without the annotation only the architecture is known.
func platforms(image *imagev1.Image, metadata *docker10.DockerImage) string {
	if len(image.DockerImageManifests) == 0 {
		if p := image.Annotations[annotation.Platform]; p != "" {
			if version := image.Annotations[annotation.OSVersion]; version != "" {
				p += ":" + version
			}
			return p
		}
		return orNone(metadata.Architecture)
	}
	var all []string
	if slices.ContainsFunc(image.DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.OS == "windows" }) {
		if index, err := manifest.Of(image); err == nil { // only the manifest has the versions
			for _, child := range index.ImageChildren() {
				p := ""
				if child.Platform != nil {
					p = printable.Line(child.Platform.Exact(), maxPlatform)
				}
				all = append(all, orNone(p))
			}
			return some(all, maxPlatforms)
		}
	}
	for _, p := range manifest.Platforms(image.DockerImageManifests) {
		all = append(all, orNone(p.String()))
	}
	return some(all, maxPlatforms)
}

// some joins at most limit of all, and counts the others.
func some(all []string, limit int) string {
	if n := len(all) - limit; n > 0 {
		all = append(all[:limit:limit], fmt.Sprintf("+%d", n))
	}
	return strings.Join(all, ",")
}
