package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/sbom"
	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/oci"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// PackageStore stores the packages of images. Its errors are those of the Kubernetes API.
type PackageStore interface {
	GetPackages(ctx context.Context, digest string, options metav1.GetOptions) (*packages.ImagePackages, error)
	CreatePackages(ctx context.Context, list *packages.ImagePackages, options metav1.CreateOptions) (*packages.ImagePackages, error)
	UpdatePackages(ctx context.Context, list *packages.ImagePackages, options metav1.UpdateOptions) (*packages.ImagePackages, error)
}

const (
	// documentMemory bounds the bytes of documents that all jobs together hold at a time. One
	// registry may use half of it, which is enough for the largest document. Parsing a document
	// takes some four times its size.
	documentMemory = 2 * (sbom.MaxDocument + 1)
	// maxUnknownSize is how much of it a document of unknown size takes.
	maxUnknownSize = sbom.MaxDocument
	// maxAttestationManifests bounds BuildKit's attestation manifests of one index that are read.
	maxAttestationManifests = 64
	// maxReadAgain is the size up to which the next search reads a document again that could not be
	// read.
	maxReadAgain = 1 << 20
	// maxProblem bounds the text about a document that cannot be read, in bytes.
	maxProblem = 256
)

// KeepPackages makes imports read the SBOMs and VEX documents that are attached to images, and
// write the packages that they list to store. Call it before the first import.
func (im *Importer) KeepPackages(store PackageStore) { im.packages = store }

// documentsOf reads the documents that a search found from its annotations.
func documentsOf(annotations map[string]string) (all []annotation.Document) {
	_ = json.Unmarshal([]byte(annotations[annotation.Documents]), &all) // the finder's own
	return all
}

// hadDocuments reports whether an earlier search of a repository saw documents.
func hadDocuments(image *imagev1.Image, repository string) bool {
	if image == nil {
		return false
	}
	var listed []struct {
		Type, MediaType string
	}
	// empty, if another client wrote it
	_ = json.Unmarshal(annotation.Found(image.Annotations)[repository].Attestations, &listed)
	return slices.ContainsFunc(listed, func(a struct{ Type, MediaType string }) bool {
		return packages.IsDocument(a.Type) || packages.IsDocument(a.MediaType)
	})
}

// keepPackages reads the documents that were found for an image in a node's repository, and stores
// the packages that they list. index is the index that lists the documents, "" if a search found
// them. If whole is true, found is complete, and documents of earlier searches are dropped. A
// document is read once. An error means that the registry or the API did not answer.
func (r *run) keepPackages(ctx context.Context, n node, found []annotation.Document, index string, whole bool, out *outcome) error {
	slices.SortFunc(found, func(a, b annotation.Document) int {
		return cmp.Or(cmp.Compare(a.Manifest, b.Manifest), cmp.Compare(a.Blob, b.Blob))
	})
	unlock, err := r.Client.Lock(ctx, "packages "+n.session.Repository.Name()+"@"+n.digest)
	if err != nil {
		return err
	}
	defer unlock()
	read := map[string]packages.Source{}
	err = retry.RetryOnConflict(record.Backoff, func() error {
		stored, err := r.packages.GetPackages(ctx, n.digest, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			stored, err = nil, nil
		}
		if err != nil {
			return err
		}
		list := &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: n.digest}}
		if stored != nil {
			changed := *stored
			list, changed.Sources = &changed, slices.Clone(stored.Sources)
		}
		if err := r.merge(ctx, n, list, found, index, whole, read, out); err != nil {
			return err
		}
		switch {
		case stored == nil && len(list.Sources) == 0:
			return nil
		case stored == nil:
			_, err = r.packages.CreatePackages(ctx, list, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return apierrors.NewConflict(packages.GroupVersion.WithResource(packages.Resource).GroupResource(), n.digest, err)
			}
			return err
		case apiequality.Semantic.DeepEqual(stored.Sources, list.Sources) && !slices.ContainsFunc(list.Sources, packages.Source.IsUnderived):
			return nil
		}
		_, err = r.packages.UpdatePackages(ctx, list, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		out.warnings = append(out.warnings, fmt.Sprintf("%s: its packages are not kept: %s", n.reference, pull.Clean(err.Error())))
		return nil
	}
	return err
}

// dropNote drops a note about other documents.
func dropNote(s *packages.Source) { s.Problem, _ = packages.SplitProblem(s.Problem) }

// merge replaces the sources of a repository, or of an index there, with the documents that were
// found.
func (r *run) merge(ctx context.Context, n node, list *packages.ImagePackages, found []annotation.Document, index string, whole bool, read map[string]packages.Source, out *outcome) error {
	repository := n.reference.Bare().String()
	isOurs := func(s packages.Source) bool { return s.Repository == repository && s.Index == index }
	list.Sources = slices.DeleteFunc(list.Sources, func(s packages.Source) bool {
		i := slices.IndexFunc(found, func(d annotation.Document) bool { return s.Manifest == d.Manifest && s.Blob == d.Blob })
		if !isOurs(s) || i < 0 {
			return isOurs(s) && whole
		}
		// the server has not read it itself, or it could not be read
		return s.Index != "" && s.DerivedFrom == "" || s.Format == "" && found[i].Size <= maxReadAgain
	})
	known := func(d annotation.Document) int {
		return slices.IndexFunc(list.Sources, func(s packages.Source) bool { return isOurs(s) && s.Manifest == d.Manifest && s.Blob == d.Blob })
	}
	packed, unread := 0, 0
	if slices.ContainsFunc(found, func(d annotation.Document) bool { return known(d) < 0 }) {
		for i := range list.Sources {
			packed += len(packedOf(&list.Sources[i]))
		}
	}
	for _, d := range found {
		at := known(d)
		switch {
		case at >= 0 && !whole:
			continue
		case at < 0 && len(list.Sources) == packages.MaxSources:
			unread++
			continue
		case at < 0:
			source, ok := read[d.Blob]
			if !ok {
				var err error
				if source, err = r.readDocument(ctx, n, d); err != nil {
					return err
				}
				read[d.Blob] = source
			}
			packed = source.Fit(packed)
			source.Repository, source.Manifest, source.Blob, source.Index = repository, d.Manifest, d.Blob, index
			at, list.Sources = len(list.Sources), append(list.Sources, source)
		}
		source := &list.Sources[at]
		source.Type, source.Signed, source.Signature = pull.Clean(d.Type), d.Signed, d.Signature
	}
	slices.SortFunc(list.Sources, func(a, b packages.Source) int {
		return cmp.Or(cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Index, b.Index), cmp.Compare(a.Manifest, b.Manifest), cmp.Compare(a.Blob, b.Blob))
	})
	last := -1 // of ours, or of all
	for i := range list.Sources {
		ours := isOurs(list.Sources[i])
		if ours && whole || len(list.Sources) < packages.MaxSources {
			// the next search of their repository reads these
			dropNote(&list.Sources[i])
		}
		if ours || last < 0 || !isOurs(list.Sources[last]) {
			last = i
		}
	}
	if unread > 0 {
		note := fmt.Sprintf("%s not read: at most %d of an image are", table.Clause(unread, "more document", "are"), packages.MaxSources)
		out.warnings = append(out.warnings, fmt.Sprintf("%s: %s", n.reference, note))
		dropNote(&list.Sources[last])
		list.Sources[last].Problem = packages.JoinProblem(list.Sources[last].Problem, note)
	}
	return nil
}

// packedOf packs the packages of a source that was read from the API.
func packedOf(s *packages.Source) []byte {
	if s.Packed != nil {
		return s.Packed
	}
	// the server packs them again, and returns an error if they are faulty
	packed, _ := packages.Pack(s.Packages)
	return packed
}

// readDocument reads one document. A fault of the document is in the source's Problem; an error
// means that the registry failed.
func (r *run) readDocument(ctx context.Context, n node, d annotation.Document) (source packages.Source, err error) {
	problem := func(err error) (packages.Source, error) {
		return packages.Source{Problem: printable.Line(pull.Clean(err.Error()), maxProblem)}, nil
	}
	size := cmp.Or(d.Size, maxUnknownSize)
	switch {
	case d.Size < 0 || d.Size > sbom.MaxDocument:
		return problem(fmt.Errorf("it has %d bytes, at most %d are read", d.Size, sbom.MaxDocument))
	case !reference.IsDigest(d.Blob):
		return problem(errors.New("its digest is malformed"))
	}
	var content []byte
	var release func()
	if err := untilKept(ctx, r.Clock, func(before int) (err error) {
		content, release, err = r.readBlobOf(ctx, n, d, size, before)
		return err
	}); err != nil {
		if isOfOne(n, err) {
			return problem(err)
		}
		return source, err
	}
	defer release()
	if err := manifest.VerifyDigest(content, d.Blob); err != nil {
		return problem(err)
	}
	var document *sbom.Document
	if d.Signed {
		var statement *payload.Statement
		if statement, err = payload.ParseAttestation(content); err == nil {
			document, err = sbom.ReadStatement(statement, n.digest)
		}
	} else {
		document, err = sbom.Read(content, n.digest)
	}
	if err != nil {
		return problem(err)
	}
	return source, document.Fill(&source)
}

// readBlobOf is readBlob for a document that may be in another repository.
func (r *run) readBlobOf(ctx context.Context, n node, d annotation.Document, size int64, before int) (content []byte, release func(), err error) {
	if d.Repository == "" {
		return r.readBlob(ctx, n, d.Blob, size, before)
	}
	other, err := reference.ParseRepository(d.Repository)
	if err != nil {
		return nil, nil, err
	}
	err = r.Reach(ctx, other.WithDigest(d.Blob), func(at *pull.Session) (err error) {
		n.session = at
		content, release, err = r.readBlob(ctx, n, d.Blob, size, before)
		return err
	})
	return content, release, err
}

// readBlob reads a document's bytes, which take up memory until the caller calls release. If others
// need the memory first, the error is room.ErrGaveWay, which was so before times.
func (r *run) readBlob(ctx context.Context, n node, digest string, size int64, before int) (content []byte, release func(), err error) {
	ctx, cancel := context.WithCancelCause(pull.WithBudget(ctx, size, r.Limits.Request, pull.JobOf(ctx)))
	defer cancel(nil)
	piece, err := r.documents.Begin(ctx, n.session.Repository.RegistryStr(), size, before, func() { cancel(room.ErrGaveWay) })
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			piece.Release()
		}
	}()
	resp, err := n.session.Registry.Do(ctx, http.MethodGet, n.session.Registry.Path("blobs/"+digest), "")
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if content, err = piece.Read(resp.Body, size); err == nil && int64(len(content)) > size {
		err = &oci.TooLargeError{Limit: size}
	}
	return content, piece.Release, err
}

// isOfOne reports whether an error is about one document only, so that another attempt would fail
// in the same way.
func isOfOne(n node, err error) bool {
	var large *oci.TooLargeError
	switch reason := pull.Describe(n.reference, err).Reason; {
	case errors.As(err, &large), reason == pull.NotFound, reason == pull.TooLarge, reason == pull.Denied, reason == pull.OverBudget, reason == pull.DigestMismatch, reason == pull.InvalidImage:
		return true
	}
	return false
}

// attestationOf is the annotation by which BuildKit's index says which image an attestation
// manifest is about
// (https://github.com/moby/buildkit/blob/master/docs/attestations/attestation-storage.md).
const attestationOf = "vnd.docker.reference.digest"

// hasUnderived reports whether a list has a document of an index that this server has not read
// itself, but an earlier release or a client has.
func (r *run) hasUnderived(ctx context.Context, n node, index *manifest.Manifest) bool {
	looked := 0
	for _, child := range index.Children {
		if !child.IsAttestation() {
			continue
		}
		if looked++; looked > maxAttestationManifests {
			break
		}
		list, err := r.packages.GetPackages(ctx, child.Annotations[attestationOf], metav1.GetOptions{})
		if err == nil && slices.ContainsFunc(list.Sources, func(s packages.Source) bool { return s.Index == n.digest && s.IsUnderived() }) {
			return true
		}
	}
	return false
}

// keepListed reads the SBOMs that an index lists beside its images, as BuildKit's indexes do. An
// index does not change, so keepListed reads them when the index is new, and again only if that
// failed or if hasUnderived returns true.
func (r *run) keepListed(ctx context.Context, n node, index *manifest.Manifest, out *outcome) error {
	imported := map[string]bool{}
	out.walk(func(o *outcome) {
		for i := range o.images {
			imported[o.images[i].Image.Name] = true
		}
	})
	found, manifests := map[string][]annotation.Document{}, 0
	for _, child := range index.Children {
		of := child.Annotations[attestationOf]
		if !child.IsAttestation() || !imported[of] || !reference.IsDigest(child.Digest) {
			continue
		}
		if manifests++; manifests > maxAttestationManifests {
			out.warnings = append(out.warnings, fmt.Sprintf("%s: only the first %d attestations that it lists are read", n.reference, maxAttestationManifests))
			break
		}
		if err := pull.JobOf(ctx).Manifest(); err != nil {
			return err
		}
		m, err := fetchManifest(ctx, n.session, child.Digest, child.Digest)
		if err != nil && (asUnread(err) != nil || isOfOne(n, err)) {
			out.warnings = append(out.warnings, fmt.Sprintf("%s: the attestations %s cannot be read: %s", n.reference, child.Digest, pull.Clean(err.Error())))
			continue
		}
		if err != nil {
			return err
		}
		for _, l := range m.Layers {
			if typ := l.Annotations["in-toto.io/predicate-type"]; packages.IsDocument(typ) {
				found[of] = append(found[of], annotation.Document{Type: typ, Manifest: child.Digest, Blob: l.Digest, Size: l.Size})
			}
		}
	}
	for _, of := range slices.Sorted(maps.Keys(found)) {
		image := node{reference: n.reference.Bare().WithDigest(of), digest: of, session: n.session}
		if err := r.keepPackages(ctx, image, found[of], n.digest, true, out); err != nil {
			return err
		}
	}
	return nil
}
