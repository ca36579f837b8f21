package console

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// impactPath is where the API answers what an act, a package or an advisory touches.
const impactPath = "/apis/tidewaiter.dev/v1/impactreviews"

// maxAdvisory bounds the packed advisory in the address of a page, in bytes, so that every browser
// and proxy takes the address.
const maxAdvisory = 6 << 10

type impactSpec struct {
	Delete     string `json:"delete,omitempty"`
	Package    string `json:"package,omitempty"`
	Advisories []byte `json:"advisories,omitempty"`
	Continue   string `json:"continue,omitempty"`
	MaxRows    int    `json:"maxRows"`
}

type impactReview struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Spec       impactSpec `json:"spec"`
	Status     struct {
		AsOf    time.Time `json:"asOf"`
		Summary struct {
			Examined     int  `json:"examined"`
			Unlisted     int  `json:"unlisted"`
			Unchecked    int  `json:"unchecked"`
			NotAffected  int  `json:"notAffected"`
			Images       int  `json:"images"`
			References   int  `json:"references"`
			Pods         int  `json:"pods"`
			PodsComplete bool `json:"podsComplete"`
			Undecided    int  `json:"undecided"`
			Workloads    int  `json:"workloads"`
		} `json:"summary"`
		Rows     []impactRow   `json:"rows"`
		Omitted  int           `json:"omittedRows"`
		Unknowns []unknownPart `json:"unknowns"`
		Continue string        `json:"continue"`
	} `json:"status,omitzero"`
}

type impactRow struct {
	Image     text     `json:"image"`
	Reference text     `json:"reference"`
	Namespace text     `json:"namespace"`
	Effect    text     `json:"effect"`
	Running   *running `json:"running"`
	NeededBy  []text   `json:"neededBy"`

	Packages   []impactPackage   `json:"packages"`
	Statements []impactStatement `json:"statements"`
	Advisories []impactAdvisory  `json:"advisories"`
	Omitted    int               `json:"omittedAdvisories"`
	LastTag    bool              `json:"lastTag"`
}

type impactPackage struct {
	Name      text `json:"name"`
	Version   text `json:"version"`
	Vouched   text `json:"vouched"`
	VouchedBy text `json:"vouchedBy"`
	Unknown   text `json:"unknown"`
}

type impactStatement struct {
	Vulnerability text `json:"vulnerability"`
	Status        text `json:"status"`
	Author        text `json:"author"`
}

type impactAdvisory struct {
	ID        text             `json:"id"`
	Aliases   []text           `json:"aliases"`
	Package   impactPackage    `json:"package"`
	Fixed     text             `json:"fixed"`
	FixedBy   text             `json:"fixedBy"`
	Statement *impactStatement `json:"statement"`
}

// impactView has the data of the page with what a package, an advisory or a deletion touches.
type impactView struct {
	Delete  string // the tag or digest that is perhaps to be deleted
	Package string
	Names   text // of the advisory
	Asked   bool
	Wrong   string // why what was asked is no question
	Answer  *impactReview
	Next    string
	Refused *notice
}

// impact shows what has a package, what an advisory touches, or what is lost if a tag or an image
// is deleted. The advisory is in the page's address, so that the answer can be linked.
func (v *visit) impact() error {
	query := v.r.URL.Query()
	data := &impactView{Package: strings.TrimSpace(printable.Line(query.Get("package"), 1024)), Delete: strings.TrimSpace(printable.Line(query.Get("delete"), 1024))}
	p := &page{Name: "impact", Title: "Advisories", Nav: "images", Data: data}
	ask := impactSpec{Package: data.Package, Continue: query.Get("continue"), MaxRows: pageRows}
	switch packed := query.Get("advisory"); {
	case data.Delete != "":
		data.Package = ""
		ask.Package, ask.Delete = "", data.Delete
		p.Title, p.Commands = "May I delete it?", []string{"tidewaiter impact --delete " + quoted(data.Delete)}
	case packed != "":
		ask.Package, data.Package = "", ""
		document, err := unpack(packed)
		if err != nil {
			data.Wrong = "This address does not have a whole advisory: copy it again."
			return v.show(p)
		}
		ask.Advisories, data.Names = document, namesOf(document)
		p.Commands = []string{"tidewaiter impact --advisory FILE"}
	case data.Package != "":
		p.Commands = []string{"tidewaiter impact --package " + quoted(data.Package)}
	default:
		return v.show(p)
	}
	data.Asked, data.Answer = true, &impactReview{}
	switch err := v.call.post(v.ctx(), impactPath, nil, &impactReview{APIVersion: "tidewaiter.dev/v1", Kind: "ImpactReview", Spec: ask}, data.Answer); {
	case isCode(err, http.StatusUnauthorized):
		return err
	case err != nil:
		data.Refused, data.Answer = noticeOf("ask what this touches", err), nil
		return v.show(p)
	}
	p.AsOf = data.Answer.Status.AsOf
	if more := data.Answer.Status.Continue; more != "" {
		query.Set("continue", more)
		data.Next = Root + "impact?" + query.Encode()
	}
	return v.show(p)
}

// askImpact sends the browser to the page of an advisory's answer.
func (v *visit) askImpact() error {
	tooLong := &apiError{Code: http.StatusRequestEntityTooLarge, Message: "the advisory is too long for an address: ask with tidewaiter impact --advisory FILE"}
	if err := v.r.ParseForm(); err != nil {
		return tooLong
	}
	document := strings.TrimSpace(v.r.PostFormValue("document"))
	if !json.Valid([]byte(document)) {
		return &apiError{Code: http.StatusBadRequest, Message: "that is not a document in the OSV format, which is JSON"}
	}
	var compact, out bytes.Buffer
	if err := json.Compact(&compact, []byte(document)); err != nil {
		return err
	}
	zip, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // a level that exists
	_, _ = zip.Write(compact.Bytes())                         // a buffer takes everything
	_ = zip.Close()
	if out.Len() > maxAdvisory {
		return tooLong
	}
	v.goTo(Root + "impact?" + url.Values{"advisory": {base64.RawURLEncoding.EncodeToString(out.Bytes())}}.Encode())
	return nil
}

// unpack reads a packed advisory from an address. The API unpacks it.
func unpack(packed string) ([]byte, error) {
	if len(packed) > maxAdvisory*4/3+4 {
		return nil, base64.CorruptInputError(0)
	}
	return base64.RawURLEncoding.DecodeString(packed)
}

// namesOf returns the names of a packed advisory; empty if it cannot be read, which the API says.
func namesOf(packed []byte) text {
	var named struct {
		ID      text   `json:"id"`
		Aliases []text `json:"aliases"`
	}
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil || json.NewDecoder(io.LimitReader(zip, maxForm)).Decode(&named) != nil {
		return ""
	}
	return text(joined(append([]text{named.ID}, named.Aliases[:min(len(named.Aliases), 5)]...), ", "))
}
