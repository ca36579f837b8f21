package console

import (
	"net/http"
	"regexp"
	"strings"

	"golang.org/x/sync/errgroup"
)

// finding is a list in which a search text that is not a reference was found: by layer, signer,
// pod, or part of a repository's name.
type finding struct {
	counted
	Title, Link string
	Refused     *notice
}

// wholeDigest is a digest, or the digits of one of SHA-256.
var wholeDigest = regexp.MustCompile(`^(sha256:)?[0-9a-f]{64}$|^sha512:[0-9a-f]{128}$`)

// elsewhere searches lists for a text that is not a reference. It returns the lists in which it
// found the text, and those that it could not read.
func (v *visit) elsewhere(text string) (found []*finding, err error) {
	list := func(title, path, selector, link string) func() (*finding, error) {
		return func() (*finding, error) {
			c, err := v.count(path, selector)
			return &finding{c, title, link, noticeOf("look for these", err)}, err
		}
	}
	looks := []func() (*finding, error){
		list("Images that this signer has signed", imagesPath, "signatures.signer="+escapeTerm(text), link("images", "signer", text)),
		list("Pods of this name", podsPath, "pod="+escapeTerm(text), link("running", "pod", text)),
		func() (*finding, error) {
			tags, err := v.tagsOf("", "")
			n := len(rowsOf(tags, text))
			return &finding{counted{Count: n, More: n > 0 && tags.Metadata.Continue != ""}, "Repositories with this in their name", link("repositories", "q", text), noticeOf("look for these", err)}, err
		},
	}
	if wholeDigest.MatchString(text) {
		if !strings.Contains(text, ":") {
			text = "sha256:" + text
		}
		looks = append(looks[:0], list("Images with this layer", imagesPath, "layer="+text, link("images", "layer", text)))
	}
	all := make([]*finding, len(looks))
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
	for _, one := range all {
		if one.Count > 0 || one.Refused != nil {
			found = append(found, one)
		}
	}
	return found, nil
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
		v.goTo(link("image", "ref", data.Query))
		return true, nil
	case "Ambiguous":
	default:
		if data.Elsewhere, err = v.elsewhere(data.Query); err != nil {
			return false, err
		}
		known := a.Suggestion != "" || len(a.Meaning.Others) > 0 || len(a.Meaning.KnownTags) > 0
		if len(data.Elsewhere) == 1 && data.Elsewhere[0].Refused == nil && !known && v.askedFor() == "" {
			v.goTo(data.Elsewhere[0].Link)
			return true, nil
		}
	}
	data.Found = a
	return false, nil
}

// review gets the API's answers about references.
func (v *visit) review(former bool, references ...string) (*reviewStatus, error) {
	asked := &review{APIVersion: "tidewaiter.dev/v1", Kind: "ReferenceReview", Spec: reviewSpec{FormerTags: former}}
	for _, r := range references {
		asked.Spec.References = append(asked.Spec.References, question{Reference: text(r)})
	}
	got := &review{}
	if err := v.call.post(v.ctx(), reviewsPath, nil, asked, got); err != nil {
		return nil, err
	}
	if len(got.Status.References) != len(references) {
		return nil, &apiError{Code: http.StatusBadGateway, Message: "the API did not answer all questions", Path: reviewsPath}
	}
	return &got.Status, nil
}
