package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// imageView has the data of the page of an image.
type imageView struct {
	Asked    string
	Answer   *referenceAnswer
	Verdicts []verdict // for each reference
	Image    *image    // nil if it is not stored
	Layers   []layerView
	InLayers int64     // bytes
	Config   [][2]text // settings of the config: name and value
	Env      []text
	Labels   [][2]text
	Pull     []string
	Checks   []checkView
	From     []provenance
	// Documents list the image's packages. If there are none, NoPackages may say why.
	Documents  []document
	NoPackages *notice
	Search     string      // part of the packages' names
	Packages   []packageOf // that match: the first shownPackages
	Matching   int
	Listed     bool     // the packages were read
	Sharing    *sharing // nil if no image shares layers with it
	Refused    *notice
	MayAsk     bool     // the person may import the image
	Done       string   // confirms the import that was just requested
	Ran        *ranView // when it ran; nil if there is nothing to ask about
	TagRan     *ranView // what ran under its tag; nil if it was asked about without one
}

// Deletes is what the page asks about whether it may be deleted: the tag, or else the image.
func (d *imageView) Deletes() text {
	if m := &d.Answer.Meaning; m.Tag != "" {
		return m.Reference
	}
	return d.Answer.Meaning.Digest
}

// layerView is a layer with its share of the image.
type layerView struct {
	Digest, By text
	Size       int64
	Share      int // of the largest, in percent
	// the number of images with this layer, including this image; nil if they were not counted
	In *counted
}

// checkView is a signature or attestation, and each check of it.
type checkView struct {
	Kind, Signer, Key text
	Attestation       bool
	Checks            []condition
	Claims            [][2]text
}

// image shows an image.
func (v *visit) image() error {
	data := &imageView{Asked: strings.TrimSpace(printable.Line(v.r.URL.Query().Get("ref"), 1024))}
	if data.Asked == "" {
		v.goTo(Root + "images")
		return nil
	}
	status, err := v.review(true, data.Asked)
	if err != nil {
		return err
	}
	a := &status.References[0]
	data.Answer = a
	p := &page{Name: "image", Title: data.Asked, Nav: "images", AsOf: status.AsOf, Data: data, Commands: []string{"tidewaiter describe " + quoted(data.Asked)}}
	if a.State == "Ambiguous" || a.State == "Absent" || a.State == "Invalid" || a.State == "Unknown" {
		v.goTo(link("images", "q", data.Asked, "done", v.r.URL.Query().Get("done")))
		return nil
	}
	data.MayAsk = a.Meaning.Reference != "" && v.may("post", importsPath)
	data.Done = v.askedFor()
	if a.Meaning.Digest != "" {
		p.Commands = append(p.Commands, "kubectl get image "+quoted(string(a.Meaning.Digest))+" -o yaml")
	}
	if a.State == "Found" {
		if err := v.readImage(data); err != nil {
			if isCode(err, http.StatusUnauthorized) {
				return err
			}
			data.Refused = noticeOf("read images", err)
		}
	}
	if about := a.Meaning.Digest; about != "" || a.Meaning.Reference != "" {
		if about == "" {
			about = a.Meaning.Reference
		}
		if data.Ran, err = v.overTime("image="+escapeTerm(string(about)), lineOfWorkload); err != nil {
			return err
		}
		if m := &a.Meaning; m.Tag != "" && m.Digest != "" {
			if data.TagRan, err = v.overTime("image="+escapeTerm(string(m.Repository+":"+m.Tag)), lineOfImage); err != nil {
				return err
			}
		}
		p.Commands = append(p.Commands, "tidewaiter ran "+quoted(string(about)))
	}
	return v.show(p)
}

// importsPath is the API's path to import a reference.
const importsPath = "/tidewaiter/imports"

// askedFor returns the confirmation of an import that was just requested; "" if there was none.
func (v *visit) askedFor() string {
	if v.r.URL.Query().Get("done") != "import" {
		return ""
	}
	return "The registry is being asked. Load the page again in a moment; Activity shows how it went."
}

// importReference requests the import of a reference.
func (v *visit) importReference() error {
	ref := strings.TrimSpace(printable.Line(v.r.PostFormValue("ref"), 1024))
	if err := v.call.post(v.ctx(), importsPath, url.Values{"reference": {ref}}, nil, nil); err != nil {
		return err
	}
	v.goTo(link("image", "ref", ref, "done", "import"))
	return nil
}

// readImage reads the stored image, and the verdict for each reference to it.
func (v *visit) readImage(data *imageView) error {
	m := &data.Answer.Meaning
	var references []string
	for _, tag := range m.Tags {
		references = append(references, string(tag))
	}
	for _, repository := range m.Repositories {
		if !slices.ContainsFunc(m.Tags, func(tag text) bool { return strings.HasPrefix(string(tag), string(repository)+":") }) {
			references = append(references, string(repository)+"@"+string(m.Digest))
		}
	}
	if len(references) > 0 {
		status, err := v.review(false, references...)
		if err != nil {
			return err
		}
		for i := range status.References {
			if verdict := status.References[i].Verdict; verdict != nil {
				data.Verdicts = append(data.Verdicts, *verdict)
			}
		}
	}
	data.Image = &image{}
	if err := v.call.get(v.ctx(), imagesPath+"/"+string(m.Digest), nil, data.Image); err != nil {
		data.Image = nil
		return err
	}
	data.fill()
	var packages list[imagePackages] // which has the documents without what they list
	err := v.call.get(v.ctx(), packagesPath, url.Values{"fieldSelector": {"metadata.name=" + string(m.Digest)}}, &packages)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.NoPackages = noticeOf("list the packages of images", err)
	for _, one := range packages.Items {
		data.Documents = append(data.Documents, one.Sources...)
	}
	if err := v.readPackages(data); err != nil {
		return err
	}
	return v.readSharing(data)
}

// Bounds of the packages on the page of an image.
const (
	shownPackages = 50
	readPackages  = 2000 // of an image with more, packages are read for a search alone
)

// readPackages reads the packages of an image that match the search.
func (v *visit) readPackages(data *imageView) error {
	data.Search = strings.TrimSpace(printable.Line(v.r.URL.Query().Get("packages"), 256))
	count := 0
	for _, d := range data.Documents {
		count += d.Count
	}
	if count == 0 || count > readPackages && data.Search == "" {
		return nil
	}
	var all imagePackages
	err := v.call.get(v.ctx(), packagesPath+"/"+string(data.Answer.Meaning.Digest), nil, &all)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	if data.NoPackages = noticeOf("list the packages of images", err); err != nil {
		return nil
	}
	data.Listed = true
	known := map[packageOf]bool{} // several documents list a package
	for _, d := range all.Sources {
		for _, p := range d.Packages {
			if known[p] || !contains(p.Name, data.Search) && !contains(p.PURL, data.Search) {
				continue
			}
			known[p] = true
			if data.Matching++; data.Matching <= shownPackages {
				data.Packages = append(data.Packages, p)
			}
		}
	}
	return nil
}

// fill derives what the page shows from what was read.
func (d *imageView) fill() {
	m := &d.Answer.Meaning
	if m.Tag != "" {
		d.Pull = append(d.Pull, "podman pull "+quoted(string(m.Repository)+":"+string(m.Tag)))
	}
	for _, repository := range m.Repositories {
		if m.Repository == "" || repository == m.Repository {
			d.Pull = append(d.Pull, "podman pull "+quoted(string(repository)+"@"+string(m.Digest)))
		}
	}
	d.layers()
	if c := d.Image.config(); c != nil {
		add := func(name string, value text) {
			if value != "" {
				d.Config = append(d.Config, [2]text{text(name), value})
			}
		}
		add("Entrypoint", words(c.Entrypoint))
		add("Command", words(c.Cmd))
		if c.User == "" {
			add("User", "none is set: root, as a rule")
		}
		add("User", c.User)
		add("Working folder", c.WorkingDir)
		add("Ports", text(joined(slices.Sorted(maps.Keys(c.ExposedPorts)), ", ")))
		add("Volumes", text(joined(slices.Sorted(maps.Keys(c.Volumes)), ", ")))
		d.Env = c.Env
		for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
			d.Labels = append(d.Labels, [2]text{key, c.Labels[key]})
		}
	}
	d.From = d.Image.provenance()
	for i := range d.Image.Signatures {
		s := &d.Image.Signatures[i]
		check := checkView{Kind: s.Type, Attestation: strings.Contains(string(s.Type), "Attestation"), Checks: s.Conditions}
		if s.IssuedTo != nil {
			check.Signer, check.Key = s.IssuedTo.CommonName, s.IssuedTo.PublicKeyID
		}
		for _, key := range slices.Sorted(maps.Keys(s.Claims)) {
			check.Claims = append(check.Claims, [2]text{key, s.Claims[key]})
		}
		d.Checks = append(d.Checks, check)
	}
}

// layers assigns each layer the entry of the config's history that made it.
func (d *imageView) layers() {
	var h history
	_ = json.Unmarshal([]byte(d.Image.Config), &h) // without a history the layers have no lines
	var lines []text
	for _, one := range h.History {
		if !one.Empty {
			lines = append(lines, one.CreatedBy)
		}
	}
	largest := int64(1)
	for _, l := range d.Image.Layers {
		largest = max(largest, l.Size)
		d.InLayers += l.Size
	}
	for i, l := range d.Image.Layers {
		view := layerView{Digest: l.Name, Size: l.Size, Share: int(max(1, l.Size*100/largest))}
		if len(lines) == len(d.Image.Layers) {
			view.By = lines[i]
		}
		d.Layers = append(d.Layers, view)
	}
}

// words writes a command, with quotes around words that need them.
func words(all []text) text {
	quotedWords := make([]string, len(all))
	for i, w := range all {
		quotedWords[i] = quoted(string(w))
	}
	return text(strings.Join(quotedWords, " "))
}

// raw shows an Image as the API returns it.
func (v *visit) raw() error {
	digest := v.r.URL.Query().Get("digest")
	if digest == "" || strings.ContainsAny(digest, "/?#%") {
		return &apiError{Code: http.StatusBadRequest, Message: "that is not a digest"}
	}
	path := imagesPath
	if v.r.URL.Query().Has("packages") {
		path = packagesPath
	}
	a, err := v.call.do(v.ctx(), http.MethodGet, path+"/"+digest, nil, asJSON, nil)
	if err != nil {
		return err
	}
	defer v.call.turn.work()()
	var out bytes.Buffer
	if err := json.Indent(&out, a.body.Bytes(), "", "  "); err != nil {
		return fmt.Errorf("the answer at %s cannot be read: %w", path, err)
	}
	shown := printable.Text(out.String())
	if len(shown) > maxPage {
		return errLargePage
	}
	v.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	send(v.w, v.r, http.StatusOK, []byte(shown))
	return nil
}
