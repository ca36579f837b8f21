package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/tidewaiter/tidewaiter/internal/printable"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// finding is what a search found of one kind: the first hits, and a list that has all of them.
type finding struct {
	counted
	Title, Link string // Link is empty if no page lists them
	Hits        []hit
	Refused     *notice
}

// hit is a tag, a repository or a workload that a search found.
type hit struct {
	Name, By text
	Link     string
}

// maxHits is how many hits of one kind a page shows.
const maxHits = 10

// wholeDigest is a digest, or the digits of one of SHA-256.
var wholeDigest = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$|^sha512:[0-9a-f]{128}$`)

// elsewhere searches for a text that is not a reference.
func (v *visit) elsewhere(text string) (found []*finding, err error) {
	list := func(title, path, selector, link string) func() ([]*finding, error) {
		return func() ([]*finding, error) {
			c, err := v.count(path, selector)
			return []*finding{{counted: c, Title: title, Link: link, Refused: noticeOf("look for these", err)}}, err
		}
	}
	looks := []func() ([]*finding, error){
		func() ([]*finding, error) { return v.findTags(text) },
		func() ([]*finding, error) { return v.findWorkloads(text) },
		list("Images that this signer has signed", imagesPath, "signatures.signer="+escapeTerm(text), link("images", "signer", text)),
		list("Images with this package", imagesPath, "package="+escapeTerm(text), link("images", "package", text)),
	}
	if wholeDigest.MatchString(text) {
		if !strings.Contains(text, ":") {
			text = "sha256:" + text
		}
		looks = append(looks[:0], list("Images with this layer", imagesPath, "layer="+text, link("images", "layer", text)))
	}
	return together(looks...)
}

// together runs searches at the same time. It returns the kinds in which they found something, and
// the kinds that they could not read.
func together(looks ...func() ([]*finding, error)) (found []*finding, err error) {
	all := make([][]*finding, len(looks))
	var group errgroup.Group
	for i, look := range looks {
		group.Go(func() (err error) {
			if all[i], err = look(); isCode(err, http.StatusUnauthorized) {
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for _, one := range slices.Concat(all...) {
		if one.Count > 0 || one.Refused != nil {
			found = append(found, one)
		}
	}
	// what was found comes before what could not be read
	slices.SortStableFunc(found, func(a, b *finding) int { return cmp.Compare(min(b.Count, 1), min(a.Count, 1)) })
	return found, nil
}

// contains reports whether a text of the API has a part, whatever its case.
func contains(whole text, part string) bool {
	return strings.Contains(strings.ToLower(string(whole)), strings.ToLower(part))
}

// findTags finds tags and repositories with a text in their names. A tag that is the text comes
// first.
func (v *visit) findTags(part string) ([]*finding, error) {
	tags, _, err := v.tagsWith("", part, func(repository, tag text) bool { return contains(repository, part) || contains(tag, part) })
	more := tags.Metadata.Continue != ""
	byTag := &finding{Title: "Tags", Refused: noticeOf("look for tags and repositories", err)}
	rows := rowsOf(tags, part)
	byName := &finding{counted: counted{Count: len(rows), More: more}, Title: "Repositories", Link: link("repositories", "q", part)}
	for _, r := range rows[:min(len(rows), maxHits)] {
		byName.Hits = append(byName.Hits, hit{r.Name, text(tablecells.Quantity(len(r.Tags), "tag")), link("repository", "name", r.Name)})
	}
	for i := range tags.Items {
		if repository, tag, _ := tags.Items[i].follows(); contains(tag, part) {
			reference := repository + ":" + tag
			byTag.Count++
			byTag.Hits = append(byTag.Hits, hit{reference, "", link("image", "ref", reference)})
		}
	}
	slices.SortStableFunc(byTag.Hits, func(a, b hit) int {
		return cmp.Compare(strings.Index(string(b.Name)+"\n", ":"+part+"\n"), strings.Index(string(a.Name)+"\n", ":"+part+"\n"))
	})
	byTag.More, byTag.Hits = more && byTag.Count > 0, byTag.Hits[:min(len(byTag.Hits), maxHits)]
	return []*finding{byTag, byName}, err
}

// findWorkloads finds workloads and pods by their names, or by a part of these among the first
// pods.
func (v *visit) findWorkloads(part string) ([]*finding, error) {
	found := &finding{Title: "Workloads", Link: link("running", "pod", part)}
	var pods list[clusterPod]
	err := v.call.get(v.ctx(), podsPath, url.Values{"limit": {fmt.Sprint(countUpTo)}, "fieldSelector": {"pod=" + escapeTerm(part)}}, &pods)
	if err == nil && len(pods.Items) == 0 {
		found.Link = ""
		err = v.call.get(v.ctx(), podsPath, url.Values{"limit": {fmt.Sprint(podsSorted)}, "fieldSelector": {"named=" + escapeTerm(part)}}, &pods)
	}
	all := workloadsOf(pods.Items)
	found.Count, found.More, found.Refused = len(all), len(all) > 0 && pods.Metadata.Continue != "", noticeOf("look for workloads", err)
	for _, w := range all[:min(len(all), maxHits)] {
		found.Hits = append(found.Hits, hit{w.Name, w.Cluster + " / " + w.Namespace + ", " + text(tablecells.Quantity(len(w.Pods), "pod")), w.Link()})
	}
	return []*finding{found}, err
}

// typedPath is the path of the results while a person types.
const typedPath = Root + "typed"

// leastTyped is how many characters are searched for while a person types.
const leastTyped = 2

// typed has what is found while a person types.
type typed struct {
	Query string
	Image text // the query, if it is a reference to an image
	Found []*finding
}

// Hits are how many links there are.
func (t *typed) Hits() (n int) {
	for _, f := range t.Found {
		n += len(f.Hits)
	}
	return n + min(len(t.Image), 1)
}

// asTyped finds what begins to be typed into the search box: references, tags, repositories and
// workloads. Signers, packages and layers have only whole names, which the page of images finds.
func (v *visit) asTyped() error {
	data := &typed{Query: strings.TrimSpace(printable.Line(v.r.URL.Query().Get("q"), 1024))}
	p := &page{Name: "typed", Fragment: true, Data: data}
	if utf8.RuneCountInString(data.Query) < leastTyped {
		return v.show(p)
	}
	answers, err := v.review(false, data.Query)
	if err == nil && slices.Contains([]text{"Found", "Gone", "NotImported", "Unseen"}, answers.References[0].State) {
		data.Image = text(data.Query)
	} else if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Found, err = together(func() ([]*finding, error) { return v.findTags(data.Query) }, func() ([]*finding, error) { return v.findWorkloads(data.Query) })
	if err != nil {
		return err
	}
	return v.show(p)
}

// find looks up a search text. It sends the browser to the image if the text is a reference to one,
// otherwise to the list that has the text, if only one has.
func (v *visit) find(data *imageList) (found bool, err error) {
	answers, err := v.review(false, data.Query)
	if err != nil {
		if isCode(err, http.StatusForbidden) {
			data.Refused = noticeOf("ask about references", err)
			return false, nil
		}
		return false, err
	}
	a := &answers.References[0]
	switch a.State {
	case "Found", "Gone", "NotImported", "Unseen":
		hits := 0
		if isWord(data.Query, a) {
			if data.Elsewhere, err = v.elsewhere(data.Query); err != nil {
				return false, err
			}
			for _, f := range data.Elsewhere {
				hits += f.Count
			}
		}
		if hits > 1 { // one is the image's own repository
			data.Found, data.IsImage = a, true
			return false, nil
		}
		v.goTo(link("image", "ref", data.Query))
		return true, nil
	case "Ambiguous":
	default:
		if data.Elsewhere, err = v.elsewhere(data.Query); err != nil {
			return false, err
		}
		known := a.Suggestion != "" || len(a.Meaning.Others) > 0 || len(a.Meaning.KnownTags) > 0
		if only := data.Elsewhere; len(only) == 1 && only[0].Refused == nil && !known && v.askedFor() == "" {
			to := only[0].Link
			if len(only[0].Hits) == 1 && !only[0].More {
				to = only[0].Hits[0].Link
			}
			if to != "" {
				v.goTo(to)
				return true, nil
			}
		}
	}
	data.Found = a
	return false, nil
}

// isWord reports whether a search text that means an image is one word, which may as well be a part
// of the names of others, and not the beginning of a digest.
func isWord(query string, a *referenceAnswer) bool {
	digest := strings.TrimPrefix(string(a.Meaning.Digest), "sha256:")
	return !strings.ContainsAny(query, "/:@") && !strings.HasPrefix(digest, query)
}

// namesRegistry reports whether a reference begins with a registry. For any other, the registry
// would be a guess, so the page does not offer to import it.
func namesRegistry(reference string) bool {
	host, _, ok := strings.Cut(reference, "/")
	return ok && (strings.ContainsAny(host, ".:") || host == "localhost")
}

// review gets the API's answers about references.
func (v *visit) review(former bool, references ...string) (*reviewStatus, error) {
	spec := reviewSpec{FormerTags: former}
	for _, r := range references {
		spec.References = append(spec.References, question{Reference: text(r)})
	}
	return v.reviewOf(spec)
}

// reviewOf gets the API's answers to questions.
func (v *visit) reviewOf(spec reviewSpec) (*reviewStatus, error) {
	got := &review{}
	if err := v.call.post(v.ctx(), reviewsPath, nil, &review{APIVersion: "tidewaiter.dev/v1", Kind: "ReferenceReview", Spec: spec}, got); err != nil {
		return nil, err
	}
	if len(got.Status.References) != len(spec.References) {
		return nil, &apiError{Code: http.StatusBadGateway, Message: "the API did not answer all questions", Path: reviewsPath}
	}
	return &got.Status, nil
}
