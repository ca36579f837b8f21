package answers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

const (
	impactPage = 100              // images at a time
	maxImpact  = 45 * time.Second // how long a review may take: a request may take a minute
	maxNested  = 3                // indexes above each other
	maxJudged  = 64               // indexes that are kept
)

// projection answers one review of an act.
type projection struct {
	*Answerer
	spec          *ImpactReviewSpec
	rights        rights
	now, then     scenario
	before, after *session
	most          int // rows

	tags    map[string][]seenTag      // by the digest that they lead to
	indexes map[string]*imagev1.Image // that were judged as after the act, by name
	hidden  string                    // the digest of an image that is deleted
	// in is the repository that loses an image; zero if the act is not about one. byPlace is true if
	// the act is about places where images are, and not about the images.
	in      reference.Reference
	byPlace bool
	unread  map[string]bool // digests that are used, but whose images were not seen
	known   bool            // a tag or an image is in the registry that goes away
	unmeant string          // why the reference in the act leads to nothing known

	status  ImpactReviewStatus
	omitted int
	// that are touched; true for those that admission would refuse from then on
	pods      map[string]bool
	workloads map[string]bool
	complete  bool // no more pods than these are touched, as far as the pods of each row are known
	undecided map[string]bool
	images    int
	named     *ImpactTouched // if the spec requests it
	last      string         // the image that was counted last
	changes   map[[2]string]*changed
	unknowns  map[UnknownPart]bool
}

// seenTag is a tag that leads to an image.
type seenTag struct {
	ref reference.Reference
	led Led
}

// place is a name under which an image can be requested.
type place struct {
	ref       reference.Reference
	led       Led
	namespace string // whose pods ask, if it has policies of its own
	// what the reference means: not Found if only a container that runs the image knows that it led
	// there
	state State
}

// Impact answers a review of an act for the caller in ctx, who must be allowed to list images.
func (a *Answerer) Impact(ctx context.Context, spec *ImpactReviewSpec) (*ImpactReviewStatus, error) {
	f := &projection{
		Answerer: a, spec: spec, rights: a.rightsOf(ctx), most: int(cmp.Or(spec.MaxRows, defaultRows)), complete: true,
		tags: map[string][]seenTag{}, indexes: map[string]*imagev1.Image{}, pods: map[string]bool{}, workloads: map[string]bool{}, undecided: map[string]bool{},
		changes: map[[2]string]*changed{}, unknowns: map[UnknownPart]bool{}, byPlace: spec.LoseRegistry != "",
	}
	if lacks := cmp.Or(f.rights.listImages, f.rights.getImages); lacks != "" {
		return nil, apierrors.NewForbidden(GroupVersion.WithResource(ImpactResource).GroupResource(), "", fmt.Errorf("a review of an act reads all images, and %s", lacks))
	}
	f.status.AsOf = metav1.NewTime(a.now().UTC().Truncate(time.Second))
	var err error
	if f.now, f.then, err = a.scenarios(ctx, spec); err != nil {
		return nil, err
	}
	f.before = a.as(f.now, nil)
	f.after = a.as(f.then, f.vouching)
	switch {
	case spec.Delete != "":
		err = f.deleting(ctx)
	case spec.Package != "":
		err = f.withPackage(ctx)
	case len(spec.Advisories) > 0:
		err = f.withAdvisories(ctx)
	default:
		err = f.all(ctx)
	}
	if err != nil {
		return nil, err
	}
	f.finish()
	return &f.status, nil
}

// as returns a session of the program itself that judges by other policies.
func (a *Answerer) as(by Policies, vouching func(context.Context, string, string) ([]*imagev1.Image, error)) *session {
	other := *a
	other.Policies, other.vouching = by, vouching
	return other.own("")
}

// all examines every image that the act may be about.
func (f *projection) all(ctx context.Context) error {
	options := &internalversion.ListOptions{Limit: impactPage}
	var err error
	if options.FieldSelector, err = f.selector(ctx); err != nil {
		return err
	}
	if options.FieldSelector == nil {
		if err := f.readTags(ctx); err != nil {
			return err
		}
		f.unread = map[string]bool{}
		for _, digest := range f.Use.Digests() {
			f.unread[digest] = true
		}
	}
	began := time.Now() // of a real clock: it measures how long this takes
	for {
		page, err := f.page(ctx, options)
		if err != nil {
			return err
		}
		if page.Continue == "" {
			if n := len(f.unread); n > 0 {
				f.doubt("verdict", fmt.Errorf("not imported: %s that pods run or workloads need, so nothing is known of them", table.Quantity(n, "digest")))
			}
			return f.unstored(ctx, f.isStored)
		}
		if time.Since(began) > maxImpact {
			left := "more"
			if n := page.RemainingItemCount; n != nil {
				left = fmt.Sprintf("%d more", *n)
			}
			f.doubt("images", fmt.Errorf("there was time for %s, and there are %s", table.Quantity(f.status.Summary.Examined, "image"), left))
			f.complete = false
			f.then.unseen, f.then.revoked = nil, policy.Signers{} // policies may cover the others, and signers have signed them
			return nil
		}
		options.Continue = page.Continue
	}
}

// isStored reports whether an image is stored. It is called when all images were seen.
func (f *projection) isStored(ctx context.Context, digest string) (bool, error) {
	switch {
	case f.spec.content():
		return f.hasLayers(ctx, digest)
	case f.unread[digest]:
		return false, nil
	}
	f.before.read = 0 // an image at a time
	image, err := f.before.image(ctx, digest)
	return image != nil, err
}

// page examines a page of images. Their share of the memory of lists is released when it returns.
func (f *projection) page(ctx context.Context, options *internalversion.ListOptions) (*imagev1.ImageList, error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	if f.spec.Base != "" {
		ctx = warning.WithWarningRecorder(ctx, baseDoubts{f})
	}
	obj, err := f.Images.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), options)
	if err != nil {
		return nil, err
	}
	list := obj.(*imagev1.ImageList)
	for i := range list.Items {
		f.status.Summary.Examined++
		delete(f.unread, list.Items[i].Name)
		if err := f.image(ctx, &list.Items[i]); err != nil {
			return nil, err
		}
	}
	return list, ctx.Err()
}

// readTags reads where tags lead.
func (f *projection) readTags(ctx context.Context) error {
	if lacks := f.rights.listTags; lacks != "" {
		f.doubt("meaning", fmt.Errorf("which tags lead to an image: %w", &unpermitted{lacks}))
		f.complete = false
		return nil
	}
	options, n := &internalversion.ListOptions{Limit: maxHistories}, 0
	for {
		more, err := f.tagsPage(ctx, options, &n)
		if err != nil || more == "" {
			return err
		}
		if n >= maxTagsRead {
			f.doubt("meaning", fmt.Errorf("only the first %d tags were looked at", n))
			f.complete = false
			return nil
		}
		options.Continue = more
	}
}

func (f *projection) tagsPage(ctx context.Context, options *internalversion.ListOptions, n *int) (more string, err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	obj, err := f.Tags.List(genericapirequest.WithNamespace(ctx, tags.Namespace), options)
	if err != nil {
		return "", err
	}
	list := obj.(*imagev1.ImageTagList)
	for i := range list.Items {
		ref, ok := tags.Reference(&list.Items[i])
		f.known = f.known || ref.Host == f.spec.LoseRegistry
		f.then.sees(ref)
		if now, _ := tags.Now(&list.Items[i]); ok && now != "" {
			f.tags[now] = append(f.tags[now], seenTag{ref, f.ledTo(&list.Items[i], now)})
			*n++
		}
	}
	return list.Continue, ctx.Err()
}

func (f *projection) image(ctx context.Context, image *imagev1.Image) error {
	f.before.read, f.after.read = 0, 0 // an image at a time
	switch {
	case f.spec.LoseRegistry != "":
		return f.lost(ctx, image)
	case f.spec.content():
		if err := f.leadingTo(ctx, image.Name); err != nil {
			return err
		}
		return f.touchAll(ctx, image, Contains, nil)
	}
	return f.judged(ctx, image, false)
}

// places returns the names under which an image can be requested: each repository with the digest,
// the tags that lead to it, and the tags that its containers name. The latter may lead elsewhere,
// or it may be unknown where they lead or whether the image is in that repository. Each name occurs
// once more for each namespace whose policies judge it.
func (f *projection) places(ctx context.Context, image *imagev1.Image, by *runners) (all []place) {
	add := func(ref reference.Reference, led Led, state State) {
		for _, namespace := range append([]string{""}, f.namespaces(ref)...) {
			all = append(all, place{ref, led, namespace, state})
		}
	}
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		add(repository.WithDigest(image.Name), Led{}, Found)
	}
	for _, tag := range f.tags[image.Name] {
		add(tag.ref, tag.led, Found)
	}
	for _, ref := range by.tags(image.Name, f.spec.content() || f.spec.Package != "") {
		if !slices.ContainsFunc(all, func(p place) bool { return p.ref == ref }) {
			state, led := f.ledBefore(ctx, ref, image.Name)
			add(ref, led, state)
		}
	}
	for _, ref := range by.elsewhere(image.Name) {
		add(ref, Led{}, NotImported)
	}
	return all
}

// ledBefore returns the state of a reference whose tag is not known to lead to a running image, and
// what the tag's history has about that image.
func (f *projection) ledBefore(ctx context.Context, ref reference.Reference, digest string) (State, Led) {
	_, tag, err := f.before.tagOf(ctx, ref)
	led := Led{Moved: tags.Away(tag, digest)}
	switch now, known := tags.Now(tag); {
	case err != nil:
		return Unknown, led
	case now != "":
		return Moved, led
	case known:
		return Gone, led
	case tag != nil:
		return Unseen, led
	}
	return Absent, led
}

// namespaces are those whose policies judge a reference, now or after the act.
func (f *projection) namespaces(ref reference.Reference) []string {
	f.then.sees(ref)
	all := append(f.now.namespaces(ref), f.then.namespaces(ref)...)
	slices.Sort(all)
	return slices.Compact(all)
}

// judged finds the references under which an image has another verdict after the act. hidden is
// true if an index is deleted: then the verdict may change under the same policies.
func (f *projection) judged(ctx context.Context, image *imagev1.Image, hidden bool) error {
	by, err := f.runners(ctx, image)
	if err != nil {
		return err
	}
	var rows []ImpactRow
	var again *imagev1.Image // as it is after the act
	for _, p := range f.places(ctx, image, by) {
		if !hidden && f.then.same(p.ref, p.namespace) {
			continue
		}
		if p.state == NotImported { // it is not known under this name, so it has no verdict
			// Policies count only in namespaces that have pods with this name.
			if named := f.podsOf(by, &ImpactRow{Reference: p.ref.String(), Namespace: p.namespace}); !hidden && len(named) > 0 {
				f.undecide(p.ref.String())
			}
			continue
		}
		row, err := f.row(ctx, image, p, Judged)
		if err != nil {
			f.doubtImage(image.Name, by, err)
			continue
		}
		was := row.Before.Verdict
		if again == nil {
			again = f.verified(ctx, image)
		}
		v, j, err := f.after.verdict(ctx, again, p.ref, p.led, p.namespace)
		if err != nil {
			f.doubtImage(image.Name, by, err)
			continue
		}
		row.After = ImpactSide{State: p.state, Verdict: v, Admission: j.Findings.Worst().String()}
		if v.Verified != was.Verified || row.After.Admission != row.Before.Admission {
			rows = append(rows, row)
		}
	}
	if len(rows) == 0 && by.notStarted && !hidden {
		f.mayTurn(ctx, image, again)
	}
	f.touch(image, rows, by)
	return nil
}

// verified returns an image with the verdicts that it would hold after the act, so that each
// signature is judged once.
func (f *projection) verified(ctx context.Context, image *imagev1.Image) *imagev1.Image {
	again := *image
	again.Annotations, again.Signatures = maps.Clone(image.Annotations), slices.Clone(image.Signatures)
	f.then.verify(&again, func(key string) ([]*imagev1.Image, error) { return f.vouching(ctx, key, image.Name) })
	return &again
}

// row returns a row with the present verdict, or an error if the verdict cannot be computed.
func (f *projection) row(ctx context.Context, image *imagev1.Image, p place, effect Effect) (row ImpactRow, err error) {
	row = ImpactRow{Image: image.Name, Reference: p.ref.String(), Namespace: p.namespace, Effect: effect}
	if row.Before.State = p.state; p.state == NotImported {
		row.After = row.Before
		return row, nil
	}
	v, j, err := f.before.verdict(ctx, image, p.ref, p.led, p.namespace)
	if err != nil {
		return row, err
	}
	row.Before = ImpactSide{State: p.state, Verdict: v, Admission: j.Findings.Worst().String()}
	row.After = row.Before
	return row, nil
}

// touchAll adds a row for each name of an image. change fills in the row, or returns false to leave
// it out.
func (f *projection) touchAll(ctx context.Context, image *imagev1.Image, effect Effect, change func(place, *ImpactRow) bool) error {
	by, err := f.runners(ctx, image)
	if err != nil {
		return err
	}
	var rows []ImpactRow
	for _, p := range f.places(ctx, image, by) {
		if p.state != Found && effect == Incomplete || p.state == Gone && effect == Unpullable {
			continue // a reference that is gone cannot go again
		}
		if p.namespace != "" && !by.in(p.namespace, p.ref.String()) {
			continue // no pod of the namespace sees the verdict by its policies, which does not change
		}
		row, err := f.row(ctx, image, p, effect)
		switch {
		case change != nil && !change(p, &row):
		case err != nil:
			f.doubtImage(image.Name, by, err)
		default:
			rows = append(rows, row)
		}
	}
	f.touch(image, f.cleared(image, rows, by), by)
	return nil
}

// lost finds what is in a registry that goes away.
func (f *projection) lost(ctx context.Context, image *imagev1.Image) error {
	var elsewhere []string
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		if repository.Host != f.spec.LoseRegistry {
			elsewhere = append(elsewhere, repository.Name())
		} else {
			f.known = true
		}
	}
	return f.touchAll(ctx, image, Unpullable, func(p place, row *ImpactRow) bool {
		row.Elsewhere = elsewhere[:min(len(elsewhere), maxOthers)]
		return p.ref.Host == f.spec.LoseRegistry
	})
}

// deleting finds what a deletion touches.
func (f *projection) deleting(ctx context.Context) error {
	m, err := f.before.resolve(ctx, Question{Reference: f.spec.Delete})
	if err != nil {
		return err
	}
	if _, _, f.byPlace = strings.Cut(f.spec.Delete, "@"); f.byPlace {
		f.in = m.ref.Bare()
	}
	f.byPlace = f.byPlace || m.ref.Tag != ""
	switch {
	case m.state == Gone || m.state == Unseen || m.state == Absent && m.ref.Tag != "" && m.ref.Host != "":
		return f.untagUnknown(ctx, m)
	case m.state == Absent && m.digest == "":
		f.meansNothing(m)
		return nil
	case m.state == Invalid || m.state == Ambiguous || m.digest == "":
		return apierrors.NewBadRequest(f.meaningOf(m))
	case m.ref.Tag != "":
		return f.untag(ctx, m)
	case m.image == nil:
		return f.deleteUnstored(ctx, m)
	}
	return f.deleteImage(ctx, m.image)
}

// meaningOf returns what is wrong with the reference in an act.
func (f *projection) meaningOf(m *resolved) string {
	text := cmp.Or(m.message, f.spec.Delete+f.spec.Base+f.spec.Image+" leads nowhere")
	if len(m.others) > 0 {
		text = fmt.Sprintf("%s; it may mean %s", text, strings.Join(m.others, ", "))
	}
	return printable.Line(text, maxText)
}

// meansNothing records that the reference in an act leads to nothing known, so the effect of the
// act is unknown.
func (f *projection) meansNothing(m *resolved) {
	f.unmeant = f.meaningOf(m) + ": is it spelt as its registry has it? If so, import it first"
	if reference.NamesRegistry(f.spec.Delete + f.spec.Base + f.spec.Image) {
		f.unmeant += ": tidewaiter import " + m.ref.String()
	}
}

// untagUnknown finds what names a tag that leads nowhere, as far as is known: it cannot be pulled
// after the act, whatever its registry has now.
func (f *projection) untagUnknown(ctx context.Context, m *resolved) error {
	_, complete := f.Use.Pods("", nil)
	by := &runners{complete: complete}
	if err := f.name(ctx, by, nil, f.before.spellings(m.ref)); err != nil {
		return err
	}
	row := ImpactRow{Reference: m.ref.String(), Effect: Deleted, Before: ImpactSide{State: m.state}, After: ImpactSide{State: Gone}}
	if m.state == Absent && by.complete && len(by.containers) == 0 && len(f.needing(&imagev1.Image{}, &row)) == 0 {
		f.meansNothing(m)
		return nil
	}
	f.touch(&imagev1.Image{}, []ImpactRow{row}, by)
	return nil
}

// deleteUnstored finds what runs, or needs, a digest that is not stored, by the names that it has.
func (f *projection) deleteUnstored(ctx context.Context, m *resolved) error {
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: m.digest}}
	if err := f.leadingTo(ctx, m.digest); err != nil {
		return err
	}
	by, err := f.runners(ctx, image)
	if err != nil {
		return err
	}
	var rows []ImpactRow
	add := func(ref reference.Reference, after State) {
		if f.in.Host == "" || ref.Bare() == f.in {
			rows = append(rows, ImpactRow{Image: m.digest, Reference: ref.String(), Effect: Deleted, Before: ImpactSide{State: NotImported}, After: ImpactSide{State: after}})
		}
	}
	for _, tag := range f.tags[m.digest] {
		add(tag.ref, Gone)
	}
	for _, ref := range by.elsewhere(m.digest) {
		add(ref, NotImported)
	}
	if len(rows) == 0 { // no pod runs it there
		row := ImpactRow{Image: m.digest, Reference: m.digest, Effect: Deleted, Before: ImpactSide{State: NotImported}, After: ImpactSide{State: NotImported}}
		if m.ref.Host != "" {
			row.Reference = m.ref.String()
		}
		if len(f.needing(image, &row)) == 0 {
			f.meansNothing(m)
			return nil
		}
		rows = append(rows, row)
	}
	f.touch(image, rows, by)
	return nil
}

// untag finds what runs by a tag that its registry loses: the image that it leads to, or one that
// it led to before.
func (f *projection) untag(ctx context.Context, m *resolved) error {
	if f.rights.listTags != "" {
		return apierrors.NewForbidden(GroupVersion.WithResource(ImpactResource).GroupResource(), "", &unpermitted{f.rights.listTags})
	}
	f.status.Summary.Examined = 1
	last, err := f.isLastTag(ctx, m)
	if err != nil {
		return err
	}
	image := m.image
	if image == nil {
		image = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: m.digest}}
	}
	f.tags[m.digest] = []seenTag{{m.ref, f.ledTo(m.tag, m.digest)}}
	by, err := f.runners(ctx, image)
	if err != nil {
		return err
	}
	rows := f.untagged(ctx, image, m.image != nil, place{ref: m.ref, led: f.ledTo(m.tag, m.digest), state: m.state}, by.running(""))
	for i := range rows {
		rows[i].LastTag = last
	}
	f.touch(image, rows, by.running(""))
	for _, digest := range by.former(m.ref) {
		old, err := f.before.image(ctx, digest)
		if err != nil {
			return err
		}
		its := old != nil && slices.Contains(annotation.In(old.Annotations, old.DockerImageReference, old.Name), m.ref.Bare())
		if old == nil {
			old = &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}}
		}
		rows := f.untagged(ctx, old, its, place{ref: m.ref, led: Led{Moved: tags.Away(m.tag, digest)}, state: Moved}, by.running(digest))
		f.touch(old, rows, by.running(digest))
	}
	return nil
}

// untagged returns the rows of an image that pods run by a tag which is deleted: one for each
// namespace that judges the tag by policies of its own, and one for the others. judged is true if
// the image has a verdict there.
func (f *projection) untagged(ctx context.Context, image *imagev1.Image, judged bool, p place, by *runners) (rows []ImpactRow) {
	for _, namespace := range append([]string{""}, f.namespaces(p.ref)...) {
		row := ImpactRow{Image: image.Name, Reference: p.ref.String(), Namespace: namespace, Effect: Deleted, Before: ImpactSide{State: p.state}}
		if (namespace != "" || p.state == Moved) && len(f.podsOf(by, &row)) == 0 {
			continue
		}
		if judged {
			p.namespace = namespace
			known, err := f.row(ctx, image, p, Deleted)
			if err != nil {
				f.doubt("verdict", err)
			} else {
				row = known
			}
		}
		row.After = ImpactSide{State: Gone}
		rows = append(rows, row)
	}
	return rows
}

// isLastTag reports whether no other tag of the repository is known to lead to what a tag leads to.
// Tags of other repositories do not keep it in this one.
func (f *projection) isLastTag(ctx context.Context, m *resolved) (bool, error) {
	leading, more, err := f.before.tagged(ctx, selectors.TagImage, m.digest, maxHistories)
	if err != nil {
		return false, err
	}
	for i := range leading {
		if ref, ok := tags.Reference(&leading[i]); ok && ref.Bare() == m.ref.Bare() && ref.Tag != m.ref.Tag {
			return false, nil
		}
	}
	if more {
		f.doubt("meaning", fmt.Errorf("only the first %d tags that lead to %s were looked at, so it is not known whether %s is the last of its repository", maxHistories, m.digest, m.ref))
	}
	return !more, nil
}

// deleteImage finds what the deletion of an image touches: its names, what it lists, and the
// indexes that list it. If one repository loses it, that is its names there, and the indexes there:
// the Image stays, so that what it lists keeps its verdicts.
func (f *projection) deleteImage(ctx context.Context, image *imagev1.Image) error {
	f.status.Summary.Examined = 1
	if err := f.leadingTo(ctx, image.Name); err != nil {
		return err
	}
	err := f.touchAll(ctx, image, Deleted, func(p place, row *ImpactRow) bool {
		row.After = ImpactSide{State: p.state}
		switch n, _ := f.Use.Pods(image.Name, nil); {
		case p.state != Found:
		case f.in.Host != "":
			row.After.State = Gone
		case n > 0 || p.ref.Tag != "":
			row.After.State = NotImported
		default:
			row.After.State = Absent
		}
		return f.loses(p)
	})
	if err != nil {
		return err
	}
	if f.in.Host == "" {
		if err := f.hide(ctx, image); err != nil {
			return err
		}
	}
	above, err := f.above(ctx, image.Name)
	if err != nil {
		f.doubt("meaning", err)
		f.complete = false
	}
	for i := range above {
		f.status.Summary.Examined++
		if err := f.leadingTo(ctx, above[i].Name); err != nil {
			return err
		}
		if err := f.touchAll(ctx, &above[i], Incomplete, func(p place, _ *ImpactRow) bool { return f.loses(p) }); err != nil {
			return err
		}
	}
	return nil
}

// loses reports whether a place is in the repository that loses an image, if one does.
func (f *projection) loses(p place) bool { return f.in.Host == "" || p.ref.Bare() == f.in }

// hide finds whose verdict changes if an index no longer vouches for what it lists.
func (f *projection) hide(ctx context.Context, index *imagev1.Image) error {
	f.hidden = index.Name
	for _, listed := range index.DockerImageManifests {
		child, err := f.before.image(ctx, listed.Digest)
		if err != nil {
			return err
		}
		if child == nil {
			continue
		}
		f.status.Summary.Examined++
		if err := f.leadingTo(ctx, child.Name); err != nil {
			return err
		}
		if err := f.judged(ctx, child, true); err != nil {
			return err
		}
	}
	return nil
}

// leadingTo reads which tags lead to one image.
func (f *projection) leadingTo(ctx context.Context, digest string) error {
	if lacks := f.rights.listTags; lacks != "" {
		f.doubt("meaning", fmt.Errorf("which tags lead to an image: %w", &unpermitted{lacks}))
		f.complete = false
		return nil
	}
	all, more, err := f.before.tagged(ctx, selectors.TagImage, digest, maxHistories)
	if err != nil {
		return err
	}
	if more {
		f.doubt("meaning", fmt.Errorf("only the first %d tags that lead to %s were looked at", maxHistories, digest))
		f.complete = false
	}
	f.tags[digest] = nil
	for i := range all {
		if ref, ok := tags.Reference(&all[i]); ok {
			f.tags[digest] = append(f.tags[digest], seenTag{ref, f.ledTo(&all[i], digest)})
		}
	}
	return nil
}

// above lists the indexes that list an image.
func (f *projection) above(ctx context.Context, digest string) ([]imagev1.Image, error) {
	obj, err := f.Images.List(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(selectors.Lists, digest), Limit: maxListing,
	})
	if err != nil {
		return nil, err
	}
	list := obj.(*imagev1.ImageList)
	if list.Continue != "" {
		return list.Items, fmt.Errorf("more than %d indexes list %s", maxListing, digest)
	}
	return list.Items, nil
}

// vouching finds the indexes that would vouch for an image after the act under a verdict's key.
func (f *projection) vouching(ctx context.Context, key, digest string) ([]*imagev1.Image, error) {
	return f.vouchingFrom(ctx, key, digest, 0)
}

func (f *projection) vouchingFrom(ctx context.Context, key, digest string, depth int) (all []*imagev1.Image, err error) {
	if depth == maxNested {
		return nil, nil
	}
	above, err := f.above(ctx, digest)
	if err != nil {
		return nil, err
	}
	for i := range above {
		index := f.indexes[above[i].Name]
		if index == nil {
			index = &above[i]
			f.then.verify(index, func(key string) ([]*imagev1.Image, error) { return f.vouchingFrom(ctx, key, index.Name, depth+1) })
			if len(f.indexes) >= maxJudged {
				clear(f.indexes)
			}
			f.indexes[index.Name] = index
		}
		if index.Name != f.hidden && signatures.Vouches(index, key) {
			all = append(all, index)
		}
	}
	return all[:min(len(all), maxVerifiedIndexes)], nil
}

// doubt notes a part of the answer that is not known.
func (f *projection) doubt(part string, err error) {
	if u := (UnknownPart{Part: part, Reason: whyNot(err)}); len(f.unknowns) < maxOthers {
		f.unknowns[u] = true
	}
}
