// Package imagestreamimport imports images and repositories for streams: for requests, and for tags
// that must be imported.
package imagestreamimport

import (
	"cmp"
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"time"

	configv1 "github.com/openshift/api/config/v1"
	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/internal/virtual"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/strategy"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/room"
)

// Importer imports images from registries. Its errors are those of the Kubernetes API.
type Importer interface {
	// Import stores the images that a reference leads to, returns that one first, and records where
	// its tag leads. A dry run stores and records nothing.
	Import(ctx context.Context, ref reference.Reference, dryRun bool) ([]*imagev1.Image, error)
	// Tags returns the tags that a repository lists, the most wanted first, and known ones that it
	// does not list and may have all the same, at most a number of them.
	Tags(ctx context.Context, repository reference.Reference, most int) (listed, unlisted []string, err error)
}

// Bounds of imports.
const (
	// images of one request; the other tags of a repository are named as additional tags
	maxImports        = 50
	maxAdditionalTags = 1000             // names of tags of one repository
	importsAtOnce     = 4                // images of one request
	maxImporting      = 16               // requests that import at a time
	maxOfUser         = 4                // of them of one user
	patience          = 5 * time.Second  // of a request that waits for others
	importTime        = 45 * time.Second // of a request; the API server ends it after a minute
)

// everything is a name that oc new-app --list sends among others. As OpenShift does, the server
// answers that there is no such image, and continues with the others.
const everything = "*"

// REST imports images, and has tags of a stream follow them.
type REST struct {
	virtual.Resource
	shown    *imagestream.Reader
	given    *genericregistry.Store // streams, written by forgetStrategy
	importer Importer
	allowed  []configv1.RegistryLocation // none for all
	room     *room.Room
	strategy streamImportStrategy
}

var (
	_ rest.Creater              = &REST{}
	_ rest.Scoper               = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewREST returns the storage of ImageStreamImports, which imports through importer from the
// registries that allowed has; none allows all.
func NewREST(scheme *runtime.Scheme, shown *imagestream.Reader, importer Importer, allowed []configv1.RegistryLocation) *REST {
	given := *shown.Streams
	given.UpdateStrategy = imagestream.ForgetStrategy{Strategy: shown.Streams.UpdateStrategy.(imagestream.Strategy)}
	return &REST{virtual.Resource{Object: &imagev1.ImageStreamImport{}, Namespaced: true, Singular: "imagestreamimport"}, shown, &given, importer, allowed, room.New(maxImporting, maxOfUser), streamImportStrategy{strategy.NewNamespaced(scheme)}}
}

// wanted is one image that an import requests.
type wanted struct {
	spec *imagev1.ImageImportSpec
	ref  reference.Reference
	tag  string // of the stream; "" for none
	out  *imagev1.ImageImportStatus
	// the tag is known, and its repository does not list it: if it is gone, that is no failure
	unlisted bool
}

// Create is part of rest.Creater. It succeeds also if no image can be imported: the status has the
// result of each.
func (r *REST) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	asked, ok := obj.(*imagev1.ImageStreamImport)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not an ImageStreamImport: %T", obj))
	}
	options = cmp.Or(options, &metav1.CreateOptions{})
	version, uid := asked.ResourceVersion, asked.UID
	asked.ResourceVersion = ""
	if err := virtual.BeforeCreate(ctx, r.strategy, asked, validate); err != nil {
		return nil, err
	}
	if r.importer == nil {
		return nil, apierrors.NewBadRequest("this server does not import: use one that serves requests")
	}
	var ofStream []imagev1.ImageImportSpec
	obj, err := r.shown.Streams.Get(ctx, asked.Name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && version == "" && uid == "":
	case err != nil:
		return nil, err
	default:
		stream := obj.(*imagev1.ImageStream)
		if version != "" && version != stream.ResourceVersion {
			return nil, apierrors.NewConflict(imagev1.Resource("imagestreams"), asked.Name, fmt.Errorf("it has been modified, to resourceVersion %s", stream.ResourceVersion))
		}
		if uid != "" && uid != stream.UID {
			return nil, apierrors.NewNotFound(imagev1.Resource("imagestreams"), asked.Name)
		}
		if ofStream, err = r.ofStream(asked, stream); err != nil {
			return nil, err
		}
	}
	if err := r.mayImport(ctx, asked, ofStream); err != nil {
		return nil, err
	}
	release, err := r.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	dryRun := !asked.Spec.Import || len(options.DryRun) > 0
	all := r.importAll(ctx, asked, ofStream, dryRun)
	if asked.Spec.Import {
		if asked.Status.Import, err = r.tagAll(ctx, asked.Name, all, options.DryRun); err != nil {
			return nil, err
		}
	}
	return asked, nil
}

// begin waits for a moment until one more import of a user may run.
func (r *REST) begin(ctx context.Context) (release func(), err error) {
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	who := ""
	if user, ok := genericapirequest.UserFrom(ctx); ok {
		who = user.GetName()
	}
	if release, err = r.room.Acquire(waiting, who, 1); err == nil {
		return release, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, apierrors.NewTooManyRequests(fmt.Sprintf("%d imports of this user, or %d of all, run: try again in a moment", maxOfUser, maxImporting), 5)
}

// mayImport refuses an import from registries that are not allowed, or of repositories that the
// user may not follow, because the server's credentials may see more than the user. It runs before
// any request to a registry.
func (r *REST) mayImport(ctx context.Context, asked *imagev1.ImageStreamImport, ofStream []imagev1.ImageImportSpec) error {
	_, anywhere := r.shown.May(ctx, authorizer.AttributesRecord{Verb: "create", Resource: "images"})
	var errs field.ErrorList
	check := func(from string, insecure bool, at *field.Path) {
		ref, err := reference.Parse(from)
		if err != nil {
			return // everything
		}
		if !anywhere && !imagestream.AllowedRegistry(r.allowed, ref.Host, insecure) {
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("images from %s may not be imported: the configuration has no such entry (streams.allowedRegistriesForImport)", ref.Host)))
			return
		}
		if err := r.shown.MayFollow(ctx, genericapirequest.NamespaceValue(ctx), tags.Namespace, tags.Stream(ref), at); err != nil {
			errs = append(errs, err)
		}
	}
	spec := field.NewPath("spec")
	if repository := asked.Spec.Repository; repository != nil && ofStream == nil {
		check(repository.From.Name, repository.ImportPolicy.Insecure, spec.Child("repository", "from", "name"))
	}
	for i := range ofStream {
		check(ofStream[i].From.Name, ofStream[i].ImportPolicy.Insecure, spec.Child("repository", "from", "name"))
	}
	for i := range asked.Spec.Images {
		image := &asked.Spec.Images[i]
		check(image.From.Name, image.ImportPolicy.Insecure, spec.Child("images").Index(i).Child("from", "name"))
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(imagev1.GroupVersion.WithKind("ImageStreamImport").GroupKind(), asked.Name, errs)
	}
	return nil
}

// importAll imports the requested images, and records the result of each.
func (r *REST) importAll(ctx context.Context, asked *imagev1.ImageStreamImport, ofStream []imagev1.ImageImportSpec, dryRun bool) []wanted {
	ctx, cancel := context.WithTimeout(ctx, importTime)
	defer cancel()
	var all []wanted
	asked.Status.Images = make([]imagev1.ImageImportStatus, len(asked.Spec.Images))
	for i := range asked.Spec.Images {
		spec := &asked.Spec.Images[i]
		w := wanted{spec: spec, out: &asked.Status.Images[i]}
		ref, err := reference.Parse(spec.From.Name)
		if err != nil { // everything
			w.out.Status = *imagestream.StatusOf(apierrors.NewInvalid(imagev1.GroupVersion.WithKind("DockerImage").GroupKind(), spec.From.Name, field.ErrorList{field.Invalid(field.NewPath("from", "name"), spec.From.Name, err.Error())}))
			continue
		}
		w.ref = ref.Pulled()
		if spec.To != nil {
			w.tag, w.out.Tag = spec.To.Name, spec.To.Name
		}
		all = append(all, w)
	}
	all = append(all, r.ofRepository(ctx, asked, ofStream, len(all))...)
	var group errgroup.Group
	group.SetLimit(importsAtOnce)
	for i := range all {
		group.Go(func() error {
			r.importOne(ctx, &all[i], dryRun)
			return nil
		})
	}
	_ = group.Wait() // no function returns an error
	all = slices.DeleteFunc(all, func(w wanted) bool {
		return w.unlisted && w.out.Image == nil && w.out.Status.Reason == metav1.StatusReasonNotFound
	})
	size := 0
	for i := range all {
		if all[i].show(&size); all[i].unlisted {
			asked.Status.Repository.Images = append(asked.Status.Repository.Images, *all[i].out)
		}
	}
	return all
}

// ofStream returns the tags of a stream that follow other registries, if an import requests the
// stream's own repository; otherwise nil. The registry reports pushes to its own repository by
// itself. oc import-image --all requests that repository because the server writes it into the
// spec. Where the spec has none, as in OpenShift, oc requests these tags.
func (r *REST) ofStream(asked *imagev1.ImageStreamImport, stream *imagev1.ImageStream) (all []imagev1.ImageImportSpec, err error) {
	repository := asked.Spec.Repository
	if repository == nil {
		return nil, nil
	}
	from, _ := reference.ParseRepository(repository.From.Name) // validated
	if own, follows := r.shown.Own(stream); !follows || from != own {
		return nil, nil
	}
	for i := range stream.Spec.Tags {
		tag := &stream.Spec.Tags[i]
		if r.shown.ToImport(tag) {
			all = append(all, imagev1.ImageImportSpec{From: *tag.From, To: &corev1.LocalObjectReference{Name: tag.Name},
				ImportPolicy: repository.ImportPolicy, ReferencePolicy: repository.ReferencePolicy, IncludeManifest: repository.IncludeManifest})
		}
	}
	if len(all) == 0 {
		return nil, apierrors.NewInvalid(imagev1.GroupVersion.WithKind("ImageStreamImport").GroupKind(), asked.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "repository", "from", "name"), repository.From.Name, "it is the stream's own repository, which its registry reports, and no tag of the stream follows another registry")})
	}
	return all, nil
}

// ofRepository returns the images to import from the requested repository. had is the number of the
// other requested images.
func (r *REST) ofRepository(ctx context.Context, asked *imagev1.ImageStreamImport, ofStream []imagev1.ImageImportSpec, had int) (all []wanted) {
	spec := asked.Spec.Repository
	if spec == nil {
		return nil
	}
	repository, _ := reference.ParseRepository(spec.From.Name) // validated
	out := &imagev1.RepositoryImportStatus{}
	asked.Status.Repository = out
	var names, unlisted []string
	for i := range ofStream {
		names = append(names, ofStream[i].To.Name)
	}
	if ofStream == nil {
		var err error
		if names, unlisted, err = r.importer.Tags(ctx, repository, maxImports); err != nil {
			out.Status = *imagestream.StatusOf(err)
			return nil
		}
	}
	out.Status.Status = metav1.StatusSuccess
	more := names[min(len(names), maxImports-had):]
	out.AdditionalTags = more[:min(len(more), maxAdditionalTags)]
	names = names[:len(names)-len(more)]
	out.Images = make([]imagev1.ImageImportStatus, len(names))
	for i, name := range names {
		out.Images[i].Tag = name
		if ofStream != nil {
			ref, _ := reference.Parse(ofStream[i].From.Name) // parsed before, as it was imported
			all = append(all, wanted{ref: ref.Pulled(), tag: name, out: &out.Images[i], spec: &ofStream[i]})
			continue
		}
		all = append(all, wanted{ref: repository.WithTag(name), tag: name, out: &out.Images[i], spec: ofTag(spec, repository.WithTag(name))})
	}
	for _, name := range unlisted[:max(0, min(len(unlisted), maxImports-had-len(names)))] {
		all = append(all, wanted{ref: repository.WithTag(name), tag: name, out: &imagev1.ImageImportStatus{Tag: name}, spec: ofTag(spec, repository.WithTag(name)), unlisted: true})
	}
	return all
}

// ofTag is what the import of a repository wants of one of its tags.
func ofTag(spec *imagev1.RepositoryImportSpec, tag reference.Reference) *imagev1.ImageImportSpec {
	return &imagev1.ImageImportSpec{
		From: corev1.ObjectReference{Kind: "DockerImage", Name: tag.String()}, ImportPolicy: spec.ImportPolicy, ReferencePolicy: spec.ReferencePolicy, IncludeManifest: spec.IncludeManifest,
	}
}

func (r *REST) importOne(ctx context.Context, w *wanted, dryRun bool) {
	images, err := r.importer.Import(ctx, w.ref, dryRun)
	if err == nil && len(images) == 0 {
		err = apierrors.NewInternalError(fmt.Errorf("the import of %s had no result", w.ref))
	}
	if err != nil {
		w.out.Status = *imagestream.StatusOf(err)
		return
	}
	if dryRun {
		if images, err = described(images); err != nil {
			w.out.Status = *imagestream.StatusOf(apierrors.NewInvalid(imagev1.GroupVersion.WithKind("DockerImage").GroupKind(), w.ref.String(), field.ErrorList{field.Invalid(field.NewPath("dockerImageManifest"), field.OmitValueType{}, err.Error())}))
			return
		}
	}
	original := w.spec.ImportPolicy.ImportMode == imagev1.ImportModePreserveOriginal
	if w.tag == "" && !original {
		images = ofPlatform(images)
	}
	w.out.Status.Status = metav1.StatusSuccess
	show := func(image *imagev1.Image) *imagev1.Image {
		return r.shown.OfStream(ctx, image, w.ref.WithDigest(image.Name).String()).DeepCopy()
	}
	w.out.Image = show(images[0])
	if !original {
		return
	}
	for _, image := range images[1:] {
		w.out.Manifests = append(w.out.Manifests, *show(image))
	}
}

// ofPlatform returns the rest of images, beginning at one image. If the first of images is an
// index, that is the image for Linux on the server's processor, else on amd64, else the first that
// the index lists. A client that requests an image without a tag needs what would run: oc new-app
// reads its ports.
func ofPlatform(images []*imagev1.Image) []*imagev1.Image {
	var from []int // of the images that it lists, as far as they are here
	var listed []imagev1.ImageManifest
	for _, m := range images[0].DockerImageManifests {
		if at := slices.IndexFunc(images, func(image *imagev1.Image) bool { return image.Name == m.Digest }); at > 0 {
			from, listed = append(from, at), append(listed, m)
		}
	}
	if len(from) == 0 {
		return images
	}
	for _, architecture := range []string{goruntime.GOARCH, "amd64"} {
		if i := manifest.Choose(manifest.Platforms(listed), manifest.Platform{OS: "linux", Architecture: architecture}); i >= 0 {
			return images[from[i]:]
		}
	}
	return images[from[0]:]
}

// described returns images that were not stored, with the fields that the server would have
// computed from their bytes. oc prints them after a dry run, and oc new-app reads ports and volumes
// in them. The first may be an index of the others.
func described(images []*imagev1.Image) ([]*imagev1.Image, error) {
	out := make([]*imagev1.Image, len(images))
	for i := len(images) - 1; i >= 0; i-- {
		out[i] = images[i].DeepCopy()
		if err := manifest.Derive(out[i], out[i+1:]...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// show removes manifests and configs from the answer, unless they are requested and there is room.
// size is the room that other images take. The configs of an index's images stay, as in OpenShift:
// oc new-app reads the ports of the first one there.
func (w *wanted) show(size *int) {
	leaveOut := func(image *imagev1.Image, listed bool) {
		if !w.spec.IncludeManifest {
			image.DockerImageManifest = ""
			if !listed {
				image.DockerImageConfig = ""
			}
		}
		if *size += len(image.DockerImageManifest) + len(image.DockerImageConfig); *size > imageregistry.LargestPage {
			image.DockerImageManifest, image.DockerImageConfig = "", ""
		}
	}
	if w.out.Image != nil {
		leaveOut(w.out.Image, false)
	}
	for i := range w.out.Manifests {
		leaveOut(&w.out.Manifests[i], true)
	}
}

// tagAll makes the tags of a stream follow the imported images, and creates the stream if there is
// none. If an import failed, it creates the tag if there is none, with a condition that has the
// reason.
func (r *REST) tagAll(ctx context.Context, name string, all []wanted, dryRun []string) (*imagev1.ImageStream, error) {
	transform := func(ctx context.Context, _, old runtime.Object) (runtime.Object, error) {
		stream := old.(*imagev1.ImageStream).DeepCopy()
		if stream.Name == "" {
			stream.Namespace, stream.Name = genericapirequest.NamespaceValue(ctx), name
		}
		for i := range all {
			if all[i].tag != "" {
				all[i].setFrom(stream)
			}
		}
		return stream, nil
	}
	update := func(store *genericregistry.Store, transform rest.TransformFunc) (*imagev1.ImageStream, error) {
		obj, _, err := store.Update(ctx, name, rest.DefaultUpdatedObjectInfo(nil, transform), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{DryRun: dryRun})
		if err != nil {
			return nil, err
		}
		return obj.(*imagev1.ImageStream), nil
	}
	imported := map[string]*metav1.Status{}
	for _, w := range slices.Backward(all) { // of two imports of one tag the first counts
		if imported[w.tag] = nil; w.out.Image == nil {
			imported[w.tag] = &w.out.Status
		}
	}
	ctx = imagestream.WithImported(ctx, imported)
	stream, err := update(r.shown.Streams, transform)
	if err != nil {
		return nil, err
	}
	failed := slices.ContainsFunc(all, func(w wanted) bool { return w.tag != "" && w.out.Image == nil })
	if failed && len(dryRun) == 0 {
		if stream, err = update(r.given, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			stream := old.(*imagev1.ImageStream).DeepCopy()
			for i := range all {
				if w := &all[i]; w.tag != "" && w.out.Image == nil {
					// a tag that its registry is known to have shows what is known instead
					imagestream.SetFailed(imagestream.OwnHistory(stream, w.tag), &w.out.Status, stream.Generation)
				}
			}
			return stream, nil
		}); err != nil {
			return nil, err
		}
	}
	return r.shown.Show(ctx, stream)
}

// setFrom has a tag of a stream follow the reference that was imported for it.
func (w *wanted) setFrom(stream *imagev1.ImageStream) {
	at := slices.IndexFunc(stream.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == w.tag })
	switch {
	case at < 0:
		at = len(stream.Spec.Tags)
		stream.Spec.Tags = append(stream.Spec.Tags, imagev1.TagReference{Name: w.tag, ReferencePolicy: w.spec.ReferencePolicy})
	case w.out.Image == nil:
		return
	}
	tag := &stream.Spec.Tags[at]
	tag.From, tag.ImportPolicy, tag.Reference = &corev1.ObjectReference{Kind: "DockerImage", Name: w.spec.From.Name}, w.spec.ImportPolicy, false
	imagestream.SetTagDefaults(tag)
}

// streamImportStrategy prepares and validates an ImageStreamImport.
type streamImportStrategy struct{ strategy.Namespaced }

var _ rest.RESTCreateStrategy = streamImportStrategy{}

// PrepareForCreate is part of rest.RESTCreateStrategy.
func (streamImportStrategy) PrepareForCreate(_ context.Context, obj runtime.Object) {
	obj.(*imagev1.ImageStreamImport).Status = imagev1.ImageStreamImportStatus{}
}

// Validate returns the faults of an import, by the rules of openshift-apiserver.
func (streamImportStrategy) Validate(_ context.Context, obj runtime.Object) (errs field.ErrorList) {
	asked, spec := obj.(*imagev1.ImageStreamImport), field.NewPath("spec")
	kind := func(from *corev1.ObjectReference, at *field.Path) bool {
		if from.Kind != "DockerImage" {
			errs = append(errs, field.NotSupported(at.Child("kind"), from.Kind, []string{"DockerImage"}))
			return false
		}
		return true
	}
	for _, reason := range imagestream.ValidateName(asked.Name, false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), asked.Name, reason))
	}
	if len(asked.Spec.Images) == 0 && asked.Spec.Repository == nil {
		errs = append(errs, field.Required(spec.Child("images"), "at least one image, or a repository"))
	}
	if n := len(asked.Spec.Images); n > maxImports {
		return append(errs, field.TooMany(spec.Child("images"), n, maxImports))
	}
	to := map[string]bool{}
	for i := range asked.Spec.Images {
		image, at := &asked.Spec.Images[i], spec.Child("images").Index(i)
		_, err := reference.Parse(image.From.Name)
		if err != nil && image.From.Name == everything && image.To == nil {
			err = nil
		}
		if kind(&image.From, at.Child("from")) && err != nil {
			errs = append(errs, field.Invalid(at.Child("from", "name"), image.From.Name, err.Error()))
		}
		if image.To == nil {
			continue
		}
		switch {
		case !reference.IsTag(image.To.Name):
			errs = append(errs, field.Invalid(at.Child("to", "name"), image.To.Name, "must be a tag"))
		case to[image.To.Name]:
			errs = append(errs, field.Duplicate(at.Child("to", "name"), image.To.Name))
		}
		to[image.To.Name] = true
	}
	if repository := asked.Spec.Repository; repository != nil {
		at := spec.Child("repository", "from")
		if _, err := reference.ParseRepository(repository.From.Name); kind(&repository.From, at) && err != nil {
			errs = append(errs, field.Invalid(at.Child("name"), repository.From.Name, err.Error()))
		}
	}
	return errs
}

// SetImportDefaults completes an import as OpenShift does.
func SetImportDefaults(spec *imagev1.ImageStreamImportSpec) {
	setDefault := func(importing *imagev1.TagImportPolicy, reference *imagev1.TagReferencePolicy) {
		tag := imagev1.TagReference{ImportPolicy: *importing, ReferencePolicy: *reference}
		imagestream.SetTagDefaults(&tag)
		*importing, *reference = tag.ImportPolicy, tag.ReferencePolicy
	}
	for i := range spec.Images {
		setDefault(&spec.Images[i].ImportPolicy, &spec.Images[i].ReferencePolicy)
	}
	if spec.Repository != nil {
		setDefault(&spec.Repository.ImportPolicy, &spec.Repository.ReferencePolicy)
	}
}
