// Package listing reads which repositories a registry has from the registry's own API, for
// registries whose catalog is closed or that have none. It says which paths to ask for and reads
// the answers; the caller sends the requests, and checks the names.
//
// A page is asked for by its number or by the token of the page before. No URL of an answer is ever
// followed, so a registry cannot send the caller elsewhere.
package listing

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/oci"
)

// Kind is how a registry lists its repositories.
type Kind string

// The kinds of lists.
const (
	// Catalog is GET /v2/_catalog of the distribution project, for which package importer asks.
	Catalog Kind = "catalog"
	// Harbor is GET /api/v2.0/repositories
	// (https://github.com/goharbor/harbor/blob/main/api/v2.0/swagger.yaml, listAllRepositories).
	Harbor Kind = "harbor"
	// GitLab is GET /api/v4/groups/ID/registry/repositories, or that of a project, at GitLab itself
	// (https://docs.gitlab.com/api/container_registry/#list-registry-repositories).
	GitLab Kind = "gitlab"
	// Gitea is GET /api/v1/packages/OWNER of Gitea and Forgejo
	// (https://github.com/go-gitea/gitea/blob/main/routers/api/v1/packages/package.go).
	Gitea Kind = "gitea"
	// Quay is GET /api/v1/repository
	// (https://github.com/quay/quay/blob/master/endpoints/api/repository.py).
	Quay Kind = "quay"
	// Zot is the query RepoListWithNewestImage of zot's extension search
	// (https://github.com/project-zot/zot/blob/main/pkg/extensions/search/schema.graphql).
	Zot Kind = "zot"
)

// Kinds are all kinds, as they are written.
func Kinds() []string {
	return []string{string(Catalog), string(Harbor), string(GitLab), string(Gitea), string(Quay), string(Zot)}
}

// Parse reads a kind as it is written; "" is Catalog.
func Parse(text string) (Kind, error) {
	if text == "" {
		return Catalog, nil
	}
	if !slices.Contains(Kinds(), text) {
		meant := ""
		if near := nearest.Likely(text, Kinds()); near != "" {
			meant = fmt.Sprintf("; did you mean %s?", near)
		}
		return "", fmt.Errorf("%.64q is no kind of list: it is one of %s%s", text, strings.Join(Kinds(), ", "), meant)
	}
	return Kind(text), nil
}

// Lists returns the lists that together have every repository that patterns of paths can match;
// see [reference.MatchPath]. Harbor and zot have one list. Gitea and Quay have one for each owner,
// and GitLab one for each group or project, so a pattern must begin with one.
func (k Kind) Lists(patterns []string) (all []*List, err error) {
	switch k {
	case Harbor:
		return []*List{{kind: k, Name: "list of repositories", entries: harborEntries}}, nil
	case Zot:
		return []*List{{kind: k, Name: "list of repositories", entries: zotEntries}}, nil
	case Gitea, Quay, GitLab:
	default:
		return nil, fmt.Errorf("%s is no list of this package", k)
	}
	seen := map[string]bool{}
	for _, pattern := range patterns {
		owner := literal(pattern)
		if k != GitLab {
			owner, _, _ = strings.Cut(owner, "/")
		}
		if owner == "" {
			return nil, fmt.Errorf("%.128q does not begin with %s: %s lists the repositories of one at a time", pattern, map[Kind]string{
				Gitea: "an owner", Quay: "an organization or a user", GitLab: "a group",
			}[k], k)
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		l := &List{kind: k, Name: "list of " + owner, owner: owner, group: true}
		l.entries = map[Kind]func(l *List, raw []byte) (page, error){Gitea: giteaEntries, Quay: quayEntries, GitLab: gitlabEntries}[k]
		all = append(all, l)
	}
	return all, nil
}

// literal returns the segments of a pattern before the first one with a wildcard.
func literal(pattern string) string {
	all := strings.Split(pattern, "/")
	if i := slices.IndexFunc(all, func(segment string) bool { return strings.ContainsAny(segment, "*?[") }); i >= 0 {
		all = all[:i]
	}
	return strings.Join(all, "/")
}

// Page sizes: the most that each API gives.
const (
	harborPage = 100
	gitlabPage = 100
	giteaPage  = 50 // [api] MAX_RESPONSE_ITEMS by default
	zotPage    = 500
)

// List is one list: ask for Path, give the answer to Read, until Path is "". How many pages are
// read is the caller's to bound. It keeps 8 bytes of each page.
type List struct {
	// Name names the list in messages.
	Name string

	kind    Kind
	entries func(l *List, raw []byte) (page, error)
	owner   string
	group   bool // owner is a group of GitLab's, and not a project
	done    bool
	number  int    // of pages that were read
	read    int    // entries
	token   string // of the next page
	pages   map[uint64]bool
	seed    maphash.Seed
	cut     string
}

// page is what an answer has.
type page struct {
	names []string
	keys  []string // what identifies an entry; names if nil
	size  int      // of a full page; 0 if the answer itself says whether there is a next one
	total int      // of all entries; -1 if the answer does not say
	token string   // of the next page
}

// Path is where to ask for the next page; "" if there is none.
func (l *List) Path() string {
	if l.done {
		return ""
	}
	next := strconv.Itoa(l.number + 1)
	switch l.kind {
	case Harbor:
		// A list that is sorted by name is not sorted anew while it is read, as one by time is.
		return fmt.Sprintf("/api/v2.0/repositories?page=%s&page_size=%d&sort=name", next, harborPage)
	case GitLab:
		of := "projects"
		if l.group {
			of = "groups"
		}
		return fmt.Sprintf("/api/v4/%s/%s/registry/repositories?page=%s&per_page=%d", of, url.PathEscape(l.owner), next, gitlabPage)
	case Gitea:
		return fmt.Sprintf("/api/v1/packages/%s?limit=%d&page=%s&type=container", url.PathEscape(l.owner), giteaPage, next)
	case Quay:
		query := url.Values{"namespace": {l.owner}, "public": {"true"}}
		if l.token != "" {
			query.Set("next_page", l.token)
		}
		return "/api/v1/repository?" + query.Encode()
	default:
		ask := fmt.Sprintf("{RepoListWithNewestImage(requestedPage:{limit:%d,offset:%d,sortBy:ALPHABETIC_ASC}){Page{TotalCount ItemCount} Results{Name}}}", zotPage, l.read)
		return "/v2/_zot/ext/search?" + url.Values{"query": {ask}}.Encode()
	}
}

// Absent takes the answer that there is nothing at Path, and reports whether there is another
// place: GitLab lists by group or by project, and a path may be either, or go on below a project.
func (l *List) Absent() (again bool) {
	if l.kind != GitLab || l.number > 0 {
		return false
	}
	if l.group {
		l.group = false
		return true
	}
	above := strings.LastIndexByte(l.owner, '/')
	if above < 0 {
		return false
	}
	l.owner, l.group = l.owner[:above], true
	return true
}

// Owner is the first part of the repositories that the list has: an owner, a group or a project; ""
// for a list of the whole registry.
func (l *List) Owner() string { return l.owner }

// Cut says why the registry may have more repositories than the list has shown; "" if the list
// ended as lists end.
func (l *List) Cut() string { return l.cut }

// Read reads the answer at Path. The names are as the registry has them; some may come again.
func (l *List) Read(raw []byte, header http.Header) (names []string, err error) {
	p, err := l.entries(l, raw)
	if err != nil {
		l.done = true
		return nil, err
	}
	if p.keys == nil {
		p.keys = p.names
	}
	l.number++
	if len(p.keys) > 0 && !l.isNew(p.keys) {
		l.done, l.cut = true, "a page is the same as one before"
		return nil, nil
	}
	l.read += len(p.keys)
	if p.token != "" {
		if p.token == l.token {
			l.done, l.cut = true, "a page leads back to itself"
		}
		l.token = p.token
		return p.names, nil
	}
	if p.size == 0 {
		l.done = true
		return p.names, nil
	}
	if p.total < 0 {
		p.total = total(header)
	}
	switch {
	case len(p.keys) == 0:
		if l.done = true; p.total > l.read {
			l.cut = fmt.Sprintf("there are %d entries by its own count, and it shows %d", p.total, l.read)
		}
	case p.total >= 0:
		l.done = l.read >= p.total && !oci.LinksNext(header)
	default:
		l.done = len(p.keys) < p.size && !oci.LinksNext(header)
	}
	return p.names, nil
}

// isNew reports whether no page before had the same entries.
func (l *List) isNew(keys []string) bool {
	if l.pages == nil {
		l.pages, l.seed = map[uint64]bool{}, maphash.MakeSeed()
	}
	var h maphash.Hash
	h.SetSeed(l.seed)
	for _, key := range keys {
		_, _ = h.WriteString(key)
		_ = h.WriteByte(0)
	}
	sum := h.Sum64()
	was := l.pages[sum]
	l.pages[sum] = true
	return !was
}

// total is how many entries a list has by the header of an answer; -1 if it does not say. GitLab
// leaves it out for more than 10,000.
func total(header http.Header) int {
	for _, name := range []string{"X-Total-Count", "X-Total"} {
		if n, err := strconv.Atoi(header.Get(name)); err == nil && n >= 0 {
			return n
		}
	}
	return -1
}

func harborEntries(_ *List, raw []byte) (page, error) {
	var all []struct {
		Name string `json:"name"`
	}
	p := page{size: harborPage, total: -1}
	err := json.Unmarshal(raw, &all)
	for _, one := range all {
		p.names = append(p.names, one.Name)
	}
	return p, err
}

func gitlabEntries(_ *List, raw []byte) (page, error) {
	var all []struct {
		Path string `json:"path"`
	}
	p := page{size: gitlabPage, total: -1}
	err := json.Unmarshal(raw, &all)
	for _, one := range all {
		p.names = append(p.names, one.Path)
	}
	return p, err
}

// giteaEntries reads packages, of which each version is an entry: a tag, or an image without one.
func giteaEntries(l *List, raw []byte) (page, error) {
	var all []struct {
		Type, Name, Version string
		Owner               *struct{ Login string }
	}
	p := page{size: giteaPage, total: -1}
	err := json.Unmarshal(raw, &all)
	for _, one := range all {
		p.keys = append(p.keys, one.Type+"\x00"+one.Name+"\x00"+one.Version)
		owner := l.owner
		if one.Owner != nil && one.Owner.Login != "" {
			owner = one.Owner.Login
		}
		if name := strings.ToLower(owner + "/" + one.Name); one.Type == "container" && !slices.Contains(p.names, name) {
			p.names = append(p.names, name)
		}
	}
	return p, err
}

func quayEntries(_ *List, raw []byte) (page, error) {
	var all struct {
		Repositories []struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"repositories"`
		NextPage string `json:"next_page"`
	}
	err := json.Unmarshal(raw, &all)
	p := page{token: all.NextPage}
	for _, one := range all.Repositories {
		p.names = append(p.names, one.Namespace+"/"+one.Name)
	}
	return p, err
}

func zotEntries(_ *List, raw []byte) (page, error) {
	var all struct {
		Data *struct {
			RepoListWithNewestImage *struct {
				Page    *struct{ TotalCount, ItemCount int }
				Results []struct{ Name string }
			}
		} `json:"data"`
		Errors []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return page{}, err
	}
	if len(all.Errors) > 0 {
		return page{}, errors.New(all.Errors[0].Message)
	}
	if all.Data == nil || all.Data.RepoListWithNewestImage == nil {
		return page{}, errors.New("it has no data")
	}
	list := all.Data.RepoListWithNewestImage
	p := page{size: zotPage, total: -1}
	if list.Page != nil {
		p.total = list.Page.TotalCount
	}
	for _, one := range list.Results {
		p.names = append(p.names, one.Name)
	}
	return p, nil
}
