package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// repositoryTags is how many tags the page of all repositories, or of one repository, reads.
const repositoryTags = 500

// Bounds of the tags of which the page of all repositories shows verdict and pods.
const (
	shownTags  = 8   // of a repository: those that moved last
	judgedTags = 200 // of all on the page
)

type repositoryRow struct {
	Name    text
	Tags    []text    // what moved last is first
	Moved   time.Time // when a tag last moved
	Failing int
	Worst   text // of the verdicts of the first Judged tags; empty if Judged is 0
	Judged  int
	Pods    counted // that run what these tags lead to

	moved map[text]time.Time // when each tag last moved
}

// repositoriesView has the data of the page of repositories.
type repositoriesView struct {
	Query   string
	Rows    []repositoryRow
	Read    int
	Next    string
	Refused *notice
	Unasked *notice // why there are no verdicts
}

// tagsOf reads tags.
func (v *visit) tagsOf(selector, after string) (*list[imageTag], error) {
	ask := url.Values{"limit": {fmt.Sprint(repositoryTags)}}
	if selector != "" {
		ask.Set("fieldSelector", selector)
	}
	if after != "" {
		ask.Set("continue", after)
	}
	all := &list[imageTag]{}
	err := v.call.get(v.ctx(), tagsPath, ask, all)
	if after != "" && isCode(err, http.StatusGone) {
		return v.tagsOf(selector, "")
	}
	return all, err
}

// tagScans is how many pages of tags are read for those that match.
const tagScans = 4

// tagsWith reads tags with a part in their names from a place in their list on, and keeps those
// that match. It stops at the end, after tagScans pages, or as soon as it has enough for a page.
func (v *visit) tagsWith(after, part string, match func(repository, tag text) bool) (all *list[imageTag], read int, err error) {
	all = &list[imageTag]{}
	named := ""
	if part != "" {
		named = "named=" + escapeTerm(part)
	}
	for range tagScans {
		some, err := v.tagsOf(named, after)
		if err != nil {
			return all, read, err
		}
		for i := range some.Items {
			if repository, tag, ok := some.Items[i].follows(); ok && match(repository, tag) {
				all.Items = append(all.Items, some.Items[i])
			}
		}
		read, all.Metadata = read+len(some.Items), some.Metadata
		if after = some.Metadata.Continue; after == "" || len(all.Items) >= pageRows {
			break
		}
	}
	return all, read, nil
}

// follows returns repository and tag of the reference that a tag follows; ok is false for a tag of
// a stream that follows none.
func (t *imageTag) follows() (repository, tag text, ok bool) {
	if t.Spec.From == nil || t.Spec.From.Kind != "DockerImage" {
		return "", "", false
	}
	whole := string(t.Spec.From.Name)
	i := strings.LastIndexByte(whole, ':')
	if i < 0 || strings.Contains(whole[i:], "/") {
		return text(whole), "", true
	}
	return text(whole[:i]), text(whole[i+1:]), true
}

// repositories shows the repositories that have tags.
func (v *visit) repositories() error {
	query := v.r.URL.Query()
	p := &page{Name: "repositories", Title: "Repositories", Nav: "repositories"}
	if err := v.begin(p); err != nil {
		return err
	}
	data := &repositoriesView{Query: strings.TrimSpace(printable.Line(query.Get("q"), 256))}
	tags, read, err := v.tagsWith(query.Get("continue"), data.Query, func(repository, _ text) bool { return contains(repository, data.Query) })
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused = noticeOf("list tags", err)
	data.Read, data.Rows = read, rowsOf(tags, data.Query)
	if tags.Metadata.Continue != "" {
		query.Set("continue", tags.Metadata.Continue)
		data.Next = Root + "repositories?" + query.Encode()
	}
	if err := v.judge(data); err != nil {
		return err
	}
	p.Data, p.Commands = data, []string{"kubectl get imagetags -A -o wide"}
	return v.show(p)
}

// judge adds to the rows of repositories the worst verdict of the tags that moved last, and the
// pods that run what these lead to.
func (v *visit) judge(data *repositoriesView) error {
	if len(data.Rows) == 0 {
		return nil
	}
	each := min(max(judgedTags/len(data.Rows), 1), shownTags)
	var references []string
	for i := range data.Rows {
		r := &data.Rows[i]
		if n := min(each, len(r.Tags)); len(references)+n <= judgedTags {
			r.Judged = n
		}
		for _, tag := range r.Tags[:r.Judged] {
			references = append(references, string(r.Name)+":"+string(tag))
		}
	}
	status, err := v.review(false, references...)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	if data.Unasked = noticeOf("ask about references", err); err != nil {
		for i := range data.Rows {
			data.Rows[i].Judged = 0
		}
		return nil
	}
	at := 0
	for i := range data.Rows {
		r := &data.Rows[i]
		r.answered(status.References[at : at+r.Judged])
		at += r.Judged
	}
	return nil
}

// answered adds what the API answered about the first tags of a repository.
func (r *repositoryRow) answered(all []referenceAnswer) {
	counted := map[text]bool{} // two tags may lead to one image
	r.Pods.More = len(all) < len(r.Tags)
	for i := range all {
		a := &all[i]
		if a.Verdict != nil || a.State != "Gone" { // of what is gone, there is nothing to judge
			verified := text("Unknown")
			if a.Verdict != nil {
				verified = a.Verdict.Verified
			}
			if r.Worst == "" || verdictPlace(verified) < verdictPlace(r.Worst) {
				r.Worst = verified
			}
		}
		switch digest := a.Meaning.Digest; {
		case a.Running == nil:
			r.Pods.More = true
		case digest == "" || !counted[digest]:
			counted[digest] = true
			r.Pods.Count += a.Running.Pods
			r.Pods.More = r.Pods.More || !a.Running.Complete
		}
	}
}

// rowsOf returns a row for each repository of tags whose name contains part.
func rowsOf(tags *list[imageTag], part string) (rows []repositoryRow) {
	places := map[text]int{}
	for i := range tags.Items {
		t := &tags.Items[i]
		repository, tag, ok := t.follows()
		if !ok || !contains(repository, part) {
			continue
		}
		at, known := places[repository]
		if !known {
			at, rows = len(rows), append(rows, repositoryRow{Name: repository, moved: map[text]time.Time{}})
			places[repository] = at
		}
		row := &rows[at]
		row.Tags = append(row.Tags, tag)
		if len(t.Status.Items) > 0 {
			row.moved[tag] = t.Status.Items[0].Created
			if row.moved[tag].After(row.Moved) {
				row.Moved = row.moved[tag]
			}
		}
		if find(t.Status.Conditions, "ImportSuccess").Status == "False" {
			row.Failing++
		}
	}
	for i := range rows {
		r := &rows[i]
		slices.SortStableFunc(r.Tags, func(a, b text) int { return r.moved[b].Compare(r.moved[a]) })
	}
	return rows
}

// move is a step in the history of a tag.
type move struct {
	Digest, Before, By text
	Since              time.Time
}

// tagLine is a tag with its history, the newest entry first.
type tagLine struct {
	Tag, Reference text
	Moves          []move
	Failing        condition
}

// repositoryView has the data of the page of a repository.
type repositoryView struct {
	Name    string
	Tags    []tagLine
	More    bool
	Refused *notice
}

// repository shows the histories of a repository's tags.
func (v *visit) repository() error {
	data := &repositoryView{Name: strings.TrimSpace(printable.Line(v.r.URL.Query().Get("name"), 1024))}
	if data.Name == "" {
		v.goTo(Root + "repositories")
		return nil
	}
	tags, err := v.tagsOf("repository="+escapeTerm(data.Name), "")
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused, data.More = noticeOf("list tags", err), tags.Metadata.Continue != ""
	for i := range tags.Items {
		t := &tags.Items[i]
		line := tagLine{Tag: t.Spec.Name, Reference: text(data.Name) + ":" + t.Spec.Name, Failing: find(t.Status.Conditions, "ImportSuccess")}
		var by []text
		// without it the history names no user
		_ = json.Unmarshal([]byte(t.Metadata.Annotations["tidewaiter.dev/by"]), &by)
		for j, item := range t.Status.Items {
			m := move{Digest: item.Image, Since: item.Created}
			if j+1 < len(t.Status.Items) {
				m.Before = t.Status.Items[j+1].Image
			}
			if j < len(by) {
				m.By = by[j]
			}
			line.Moves = append(line.Moves, m)
		}
		data.Tags = append(data.Tags, line)
	}
	slices.SortStableFunc(data.Tags, func(a, b tagLine) int { return b.moved().Compare(a.moved()) })
	return v.show(&page{Name: "repository", Title: data.Name, Nav: "repositories", Data: data, Commands: []string{
		"kubectl get imagetags -A -o wide --field-selector " + quoted("repository="+data.Name), "tidewaiter history " + quoted(data.Name+":TAG"),
	}})
}

// moved is when the tag last moved.
func (l *tagLine) moved() time.Time {
	if len(l.Moves) == 0 {
		return time.Time{}
	}
	return l.Moves[0].Since
}
