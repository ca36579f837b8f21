package imagepackages

import (
	"context"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/sbom"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxProblem bounds the text about a statement that cannot be read, in bytes.
const maxProblem = 256

// Create is part of rest.Creater.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validation rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	if err := r.derive(ctx, obj.(*packages.ImagePackages), nil); err != nil {
		return nil, err
	}
	return r.Store.Create(ctx, obj, validation, options)
}

// Update is part of rest.Updater.
func (r *REST) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, onCreate rest.ValidateObjectFunc, onUpdate rest.ValidateObjectUpdateFunc, create bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	derived := rest.WrapUpdatedObjectInfo(info, func(ctx context.Context, obj, old runtime.Object) (runtime.Object, error) {
		before, _ := old.(*packages.ImagePackages)
		return obj, r.derive(ctx, obj.(*packages.ImagePackages), before)
	})
	return r.Store.Update(ctx, name, derived, onCreate, onUpdate, create, options)
}

// derive reads the signed documents of a list from the signatures that the image holds, so that
// what a trusted signer vouches for is what that signer signed, whatever the writer of the list
// sends. A document that an index lists is not held: its packages count as read by the server if
// the server, or an administrator, has written them.
func (r *REST) derive(ctx context.Context, list, old *packages.ImagePackages) error {
	pack(list)
	image, err := r.imageOf(ctx, list)
	if err != nil {
		return err
	}
	packed := 0
	for i := range list.Sources {
		s := &list.Sources[i]
		s.DerivedFrom = ""
		switch {
		case s.Signature != "":
			s.Signed, s.Index = true, ""
			if content := signed(image, s.Signature); content != nil {
				read(s, content, list.Name)
			}
		case s.Index != "" && (isServer(ctx) || isStored(old, s)):
			s.DerivedFrom = s.Blob
		}
		packed = s.Fit(packed)
	}
	return nil
}

// imageOf returns the image whose packages are listed, if the list has a signed document; nil if
// there is no such image.
func (r *REST) imageOf(ctx context.Context, list *packages.ImagePackages) (*imagev1.Image, error) {
	if r.images == nil || !slices.ContainsFunc(list.Sources, func(s packages.Source) bool { return s.Signature != "" }) {
		return nil, nil
	}
	obj, err := r.images.Get(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), list.Name, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the signatures of %s cannot be read: %w", list.Name, err)
	}
	return obj.(*imagev1.Image), nil
}

// signed returns the content of an attestation of an image; nil if the image does not hold it.
func signed(image *imagev1.Image, name string) []byte {
	if image == nil {
		return nil
	}
	for i := range image.Signatures {
		if s := &image.Signatures[i]; s.Name == image.Name+"@"+name && s.Type == verdicts.TypeAttestation {
			return s.Content
		}
	}
	return nil
}

// read fills in a source from a signed document about the image of a digest.
func read(s *packages.Source, content []byte, digest string) {
	_, note := packages.SplitProblem(s.Problem)
	statement, err := payload.ParseAttestation(content)
	var document *sbom.Document
	if err == nil {
		s.DerivedFrom, s.Type = statement.Sum, printable.Line(statement.PredicateType, packages.MaxName)
		document, err = sbom.ReadStatement(statement, digest)
	}
	if err == nil {
		err = document.Fill(s)
	}
	if err != nil {
		s.Format, s.Count, s.Statements, s.Author, s.Packages, s.Packed = "", 0, nil, "", nil, nil
		s.Problem = printable.Line(err.Error(), maxProblem)
	}
	s.Problem = packages.JoinProblem(s.Problem, note)
}

// isServer reports whether the server itself, or an administrator, sent the request.
func isServer(ctx context.Context) bool {
	who, ok := genericapirequest.UserFrom(ctx)
	return ok && slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup)
}

// isStored reports whether a source of an index is as the server has read it before.
func isStored(old *packages.ImagePackages, s *packages.Source) bool {
	return old != nil && slices.ContainsFunc(old.Sources, func(o packages.Source) bool {
		return o.DerivedFrom == s.Blob && o.SameDocument(s)
	})
}
