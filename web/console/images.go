package console

import (
	"cmp"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Paths of the API.
const (
	imagesPath   = "/apis/image.openshift.io/v1/images"
	tagsPath     = "/apis/image.openshift.io/v1/imagetags"
	packagesPath = "/apis/tidewaiter.dev/v1/imagepackages"
	reviewsPath  = "/apis/tidewaiter.dev/v1/referencereviews"
)

const (
	// pageRows is how many rows of a list a page reads and shows.
	pageRows = 100
	// maxSorted is how many images a page reads to sort them itself, if the server has no order for
	// them.
	maxSorted = 500
)

// The orders that the page of images has beside those of the table's columns.
const (
	byNeed   = "need" // unless another one is asked for
	byDigest = "digest"
)

// imageRow is a line of the table of images.
type imageRow struct {
	Digest, Repository, Verdict, Size, Platform, Signers, Pods, Outdated text
	Tags                                                                 []text
	// Created is as in the table
	Created string
	Known   time.Time
	// Platforms are the images of an index that are folded into its row.
	Platforms []imageRow
}

// imageFilter is a field of the page's filters.
type imageFilter struct {
	Name, Field, Label, Value string
	More                      bool        // it is folded away until it is used
	Choices                   [][2]string // value and word
}

// imageList has the data of the page of images.
type imageList struct {
	Query string
	Found *referenceAnswer // what the query means, if the page is the result of a search
	// IsImage is true if the query means an image, and is a part of other names, too.
	IsImage bool
	// Elsewhere lists what else has the query in its name, such as tags and workloads.
	Elsewhere []*finding
	Filters   []imageFilter
	Filtered  bool
	More      bool // a filter that is folded away is in use
	Rows      []imageRow
	Total     int64 // -1 if it is not known
	Folded    int   // images that are in the rows of their indexes
	Sort      string
	Sorted    bool // all that match are on the page, in the order asked for
	// FirstOf is when the server computed the order in which the page shows images; zero if it has
	// none.
	FirstOf time.Time
	// From and To are the places of the page's images in the order of all that match; 0 if unknown
	From, To int
	NoOrder  *notice // why they are unknown
	OwnOrder bool    // only the images on this page are sorted, not all that match
	Next     string
	First    string // the address of the first page, on a later one
	ByDigest string // the address of the list in the order of digests
	Refused  *notice
	Warnings []text // of the API
	MayAsk   bool   // the person may import an image that is not stored
	Done     string // confirms the import that was just requested
}

// savedFilter is a link to a filter that people often want.
type savedFilter struct {
	Name, Link string
	Here       bool // the page shows it
}

// savedFilters are the filters that have links on the page of images, by their queries.
var savedFilters = [][2]string{
	{"All", ""}, {"Runs", "used=true"}, {"Runs, not verified", "used=true&verdict=False"}, {"Runs, unsigned", "used=true&verdict=Unsigned"}, {"Not verified", "verdict=False"},
	{"Unsigned", "verdict=Unsigned"}, {"Newest", "sort=date"}, {"Does not run", "used=false&sort=size"},
}

// Saved are the links to the filters that people often want.
func (data *imageList) Saved() (all []savedFilter) {
	here := url.Values{}
	for _, f := range data.Filters {
		if f.Value != "" {
			here.Set(f.Name, f.Value)
		}
	}
	if data.Sort != "" {
		here.Set("sort", data.Sort)
	}
	for _, one := range savedFilters {
		query, _ := url.ParseQuery(one[1]) // it is well formed
		s := savedFilter{Name: one[0], Link: Root + "images", Here: query.Encode() == here.Encode()}
		if one[1] != "" {
			s.Link += "?" + one[1]
		}
		all = append(all, s)
	}
	return all
}

// Hits reports whether a search found anything that is not an image, such as a tag or a workload.
func (data *imageList) Hits() bool {
	return slices.ContainsFunc(data.Elsewhere, func(f *finding) bool { return f.Count > 0 })
}

// Named reports whether a search names a registry, so that its result is no guess, or is ambiguous,
// so that its result names no image.
func (data *imageList) Named() bool {
	return namesRegistry(data.Query) || data.Found != nil && data.Found.State == "Ambiguous"
}

// filters returns the filters of the page with their values in a query, and their field selector.
func filters(query url.Values) (all []imageFilter, selector string) {
	all = []imageFilter{
		{Name: "verdict", Field: "signatures.verified", Label: "Verdict", Choices: verdictChoices()},
		{Name: "used", Field: "used", Label: "Pods", Choices: [][2]string{{"true", "Runs"}, {"false", "Does not run"}, {"unknown", "Unknown"}}},
		{Name: "architecture", More: true, Field: "dockerImageMetadata.Architecture", Label: "Architecture", Choices: [][2]string{{"amd64", "amd64"}, {"arm64", "arm64"}}},
		{Name: "artifact", More: true, Field: "artifact", Label: "Kind", Choices: [][2]string{{"true", "Artifacts"}, {"any", "Images and artifacts"}}},
		{Name: "repository", More: true, Field: "references", Label: "Repository"},
		{Name: "signer", More: true, Field: "signatures.signer", Label: "Signer"},
		{Name: "cluster", More: true, Field: "used-by", Label: "Cluster"},
		{Name: "layer", More: true, Field: "layer", Label: "Layer"},
		{Name: "package", More: true, Field: "package", Label: "Package"},
	}
	if query.Has("gone") { // the first page links here with it
		all = append(all, imageFilter{Name: "gone", More: true, Field: "gone", Label: "Registry", Choices: [][2]string{{"true", "No longer has it"}}})
	}
	var terms []string
	for i := range all {
		f := &all[i]
		f.Value = strings.TrimSpace(printable.Line(query.Get(f.Name), 1024))
		if f.Value != "" {
			terms = append(terms, f.Field+"="+escapeTerm(f.Value))
		}
	}
	return all, strings.Join(terms, ",")
}

// escapeTerm writes a value of a field selector.
func escapeTerm(value string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `=`, `\=`).Replace(value)
}

// runningInstead returns the address of the page Running if a query selects images that run by
// their verdict, because the verdict depends on the name that a pod uses; "" otherwise. It also
// returns "" for a query with filters that Running lacks: the API refuses it with the reason.
func runningInstead(query url.Values) string {
	verdict, by := query.Get("verdict"), query.Get("cluster")
	if verdict == "" || query.Get("used") != "true" && by == "" {
		return ""
	}
	for name := range query {
		if !slices.Contains([]string{"verdict", "cluster", "repository", "sort", "used"}, name) && strings.TrimSpace(query.Get(name)) != "" {
			return ""
		}
	}
	if used := query.Get("used"); used != "" && used != "true" {
		return ""
	}
	to := url.Values{"verified": {verdict}}
	if cluster, namespace, ok := strings.Cut(by, "/"); ok {
		to.Set("cluster", cluster)
		to.Set("namespace", namespace)
	} else if by != "" {
		to.Set("cluster", by)
	}
	if repository := query.Get("repository"); repository != "" {
		to.Set("image", repository)
	}
	return Root + "running?" + to.Encode()
}

// images shows the table of images, or the result of a search.
func (v *visit) images() error {
	query := v.r.URL.Query()
	if to := runningInstead(query); to != "" {
		v.goTo(to)
		return nil
	}
	data := &imageList{Query: strings.TrimSpace(printable.Line(query.Get("q"), 1024)), Total: -1, Sort: query.Get("sort")}
	if data.Query != "" {
		found, err := v.find(data)
		if err != nil || found {
			return err
		}
	}
	filters, selector := filters(query)
	data.Filters, data.Filtered = filters, selector != ""
	data.More = slices.ContainsFunc(filters, func(f imageFilter) bool { return f.More && f.Value != "" })
	p := &page{Name: "images", Title: "Images", Nav: "images", Search: data.Query, Data: data}
	command := "kubectl get images"
	if selector != "" {
		command += " --field-selector " + quoted(selector)
	}
	p.Commands = []string{command + " -o wide"}
	if data.Found != nil {
		data.Done, data.MayAsk = v.askedFor(), data.Found.State == "Absent" && namesRegistry(data.Query) && data.Found.Meaning.Reference != "" && v.may("post", importsPath)
		p.Commands = []string{"tidewaiter describe " + quoted(data.Query)}
		return v.show(p)
	}
	ordered, err := false, error(nil)
	if among, known := amongFiltered(filters); known && data.Sort != byDigest && !query.Has("continue") {
		among.Set("first", cmp.Or(data.Sort, byNeed))
		ordered, err = v.readFirst(data, selector, among, query)
		if !data.FirstOf.IsZero() {
			p.Commands = append(p.Commands, "kubectl get --raw "+quoted(summaryPath+"?"+among.Encode()))
		}
	}
	if err == nil && !ordered {
		err = v.readImages(data, selector, query)
	}
	if err != nil {
		if isCode(err, http.StatusUnauthorized) {
			return err
		}
		data.Refused = noticeOf("list images", err)
	}
	return v.show(p)
}

func (v *visit) readImages(data *imageList, selector string, query url.Values) error {
	ask := url.Values{"limit": {"100"}, "includeObject": {"Metadata"}}
	if selector != "" {
		ask.Set("fieldSelector", selector)
	}
	if after := query.Get("continue"); after != "" {
		ask.Set("continue", after)
		query.Del("continue")
		data.First = Root + "images?" + query.Encode()
	}
	t, err := v.call.table(v.ctx(), imagesPath, ask)
	if isCode(err, http.StatusGone) { // the continue token is too old
		ask.Del("continue")
		data.First = ""
		t, err = v.call.table(v.ctx(), imagesPath, ask)
	}
	if err == nil && data.Sort != "" && data.First == "" && t.Metadata.Continue != "" && data.Total <= maxSorted {
		// or unknown
		err = v.readToSort(t, ask)
	}
	if err != nil {
		return err
	}
	for i := range t.Rows {
		data.Rows = append(data.Rows, rowOf(t, &t.Rows[i]))
	}
	data.Warnings = t.Warnings
	if data.First == "" {
		switch {
		case t.Metadata.Remaining != nil:
			data.Total = int64(len(data.Rows)) + *t.Metadata.Remaining
		case t.Metadata.Continue == "":
			data.Total = int64(len(data.Rows))
		}
	}
	if t.Metadata.Continue != "" {
		query.Set("continue", t.Metadata.Continue)
		data.Next = Root + "images?" + query.Encode()
	}
	if data.Sorted = data.First == "" && data.Next == ""; data.Sorted {
		data.NoOrder = nil
	}
	if data.Rows, err = v.folded(data.Rows); err != nil {
		return err
	}
	data.Folded = len(t.Rows) - len(data.Rows)
	data.OwnOrder = !data.Sorted && data.Sort != "" && data.NoOrder == nil
	if data.Sort == byDigest {
		data.OwnOrder = false // the API lists them so
	} else if data.Sorted || data.OwnOrder {
		sortImages(data.Rows, data.Sort)
	}
	if n := len(data.Rows); n > pageRows {
		data.Sorted = false
		data.place(query, n)
		data.Rows = data.Rows[data.From-1 : data.To]
	}
	return nil
}

// readToSort reads the rest of the list if all rows together are at most maxSorted.
func (v *visit) readToSort(t *table, ask url.Values) error {
	ask.Set("limit", strconv.Itoa(maxSorted-pageRows))
	ask.Set("continue", t.Metadata.Continue)
	rest, err := v.call.table(v.ctx(), imagesPath, ask)
	if err == nil && rest.Metadata.Continue == "" {
		t.Rows, t.Metadata = append(t.Rows, rest.Rows...), rest.Metadata
	}
	return err
}

// place sets the page's place among n images in the order of the query, and the links to its
// neighbours.
func (data *imageList) place(query url.Values, n int) {
	from, _ := strconv.Atoi(query.Get("from")) // anything but a number is the beginning
	from = min(max(from, 0), n-1)
	data.From, data.To = from+1, min(from+pageRows, n)
	query.Del("from")
	if from > 0 {
		data.First = Root + "images?" + query.Encode()
	}
	if data.To < n {
		query.Set("from", strconv.Itoa(data.To))
		data.Next = Root + "images?" + query.Encode()
		query.Del("from")
	}
}

// amongFiltered returns the query by which the summary returns the first images with these filters;
// known is false if it cannot.
func amongFiltered(filters []imageFilter) (among url.Values, known bool) {
	among = url.Values{}
	for _, f := range filters {
		switch {
		case f.Value == "":
		case f.Name == "verdict":
			among.Set("verified", f.Value)
		case f.Name == "used" && f.Value == "true":
			among.Set("used", "true")
		default:
			return nil, false
		}
	}
	return among, true
}

// readFirst reads a page of matching images in the order of the query, which the server's last
// sweep has computed. It does nothing if the images are few enough to be read and sorted now, or if
// the order is not known.
func (v *visit) readFirst(data *imageList, selector string, among, query url.Values) (done bool, err error) {
	if selector == "" {
		if data.Total, err = v.allImages(); err != nil || data.Total >= 0 && data.Total <= maxSorted {
			return false, err
		}
	}
	var s summary
	switch err := v.call.get(v.ctx(), summaryPath, among, &s); {
	case err != nil:
		data.NoOrder = noticeOf("see which images come first", err)
		return false, nil
	case selector != "" && !s.ImagesAsOf.IsZero() && matching(&s, among) <= maxSorted:
		return false, nil // unless more match since the count, all are sorted as they are now
	case len(s.First) == 0:
		data.NoOrder = &notice{Title: "The order is not known", Message: "The images have not been counted yet, or none has what they are sorted by."}
		return false, nil
	}
	data.place(query, len(s.First))
	digests := s.First[data.From-1 : data.To]
	chosen := "digest=" + joined(digests, "|")
	if selector != "" {
		chosen += "," + selector // leaves out images that no longer match
	}
	t, err := v.call.table(v.ctx(), imagesPath, url.Values{"includeObject": {"Metadata"}, "fieldSelector": {chosen}})
	if err != nil {
		return true, err
	}
	for i := range t.Rows {
		data.Rows = append(data.Rows, rowOf(t, &t.Rows[i]))
	}
	slices.SortStableFunc(data.Rows, func(a, b imageRow) int {
		return cmp.Compare(slices.Index(digests, a.Digest), slices.Index(digests, b.Digest))
	})
	data.Warnings, data.FirstOf = t.Warnings, s.ImagesAsOf
	if data.Rows, err = v.folded(data.Rows); err != nil {
		return true, err
	}
	query.Set("sort", byDigest)
	data.ByDigest = Root + "images?" + query.Encode()
	return true, nil
}

// matching returns how many images matched at the summary's last count; for images that pods use,
// how many the summary lists.
func matching(s *summary, among url.Values) int64 {
	if among.Has("used") {
		return int64(len(s.First))
	}
	return s.Verified[among.Get("verified")]
}

// allImages returns how many images there are; -1 if the API does not return it.
func (v *visit) allImages() (int64, error) {
	var l list[struct{}]
	err := v.call.getAs(v.ctx(), asNames, imagesPath, url.Values{"limit": {"1"}}, &l)
	switch {
	case err != nil:
		return -1, err
	case l.Metadata.Remaining != nil:
		return int64(len(l.Items)) + *l.Metadata.Remaining, nil
	case l.Metadata.Continue != "":
		return -1, nil
	}
	return int64(len(l.Items)), nil
}

// sortImages sorts rows; by default in the order of need, and then the newest are first.
func sortImages(rows []imageRow, by string) {
	slices.SortStableFunc(rows, func(a, b imageRow) int {
		switch by {
		case "name":
			return cmp.Or(cmp.Compare(a.Repository, b.Repository), slices.Compare(a.Tags, b.Tags))
		case "size":
			return cmp.Compare(inBytes(b.Size), inBytes(a.Size))
		case "pods":
			return cmp.Compare(leading(b.Pods), leading(a.Pods))
		case "date":
			return b.Known.Compare(a.Known)
		}
		return cmp.Or(cmp.Compare(a.need(), b.need()), b.Known.Compare(a.Known))
	})
}

// leading returns the number at the beginning of a cell; -1 if there is none.
func leading(cell text) float64 {
	digits := string(cell)
	if end := strings.IndexFunc(digits, func(r rune) bool { return r != '.' && (r < '0' || r > '9') }); end >= 0 {
		digits = digits[:end]
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return -1
	}
	return n
}

// inBytes returns about how many bytes a size in a table is; negative if it is unknown.
func inBytes(cell text) float64 {
	n := leading(cell)
	for i, unit := range []string{"kB", "MB", "GB", "TB", "PB", "EB"} {
		if strings.HasSuffix(string(cell), unit) {
			return n * math.Pow(1000, float64(i+1))
		}
	}
	return n
}

// wholeName returns the full name of a repository that the table has shortened, if the image's
// verdicts (<verdict>@<repository>,...) have it.
func wholeName(cell, verdicts text) text {
	end, isCut := strings.CutPrefix(string(cell), "…")
	end, more, several := strings.Cut(end, ",+")
	if !isCut {
		return cell
	}
	for one := range strings.SplitSeq(string(verdicts), ",") {
		if _, place, ok := strings.Cut(one, "@"); ok && strings.HasSuffix(place, end) {
			if several {
				place += ",+" + more
			}
			return text(place)
		}
	}
	return cell
}

// rowOf reads a row of the API's table.
func rowOf(t *table, row *tableRow) imageRow {
	r := imageRow{
		Digest: t.cell(row, "Name"), Repository: t.cell(row, "Repository"), Verdict: t.cell(row, "Verdict"), Size: t.cell(row, "Size"), Platform: t.cell(row, "Platform"),
		Signers: t.cell(row, "Signer"), Pods: t.cell(row, "Pods"), Outdated: t.cell(row, "Outdated"), Known: row.Object.Metadata.Created, Created: string(t.cell(row, "Created")),
	}
	if tags := t.cell(row, "Tags"); tags != "<none>" {
		for tag := range strings.SplitSeq(string(tags), ",") {
			r.Tags = append(r.Tags, text(tag))
		}
	}
	r.Repository = wholeName(r.Repository, t.cell(row, "Verdicts"))
	for _, cell := range []*text{&r.Signers, &r.Repository, &r.Platform, &r.Size} {
		if *cell == "<none>" {
			*cell = ""
		}
	}
	return r
}
