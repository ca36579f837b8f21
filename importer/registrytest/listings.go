package registrytest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Lists is a registry's own API that lists its repositories, as that registry's source has it.
type Lists struct {
	// Names are all repositories, sorted. Those of public may be seen by everybody. Every owner exists
	// but nobody.
	Names func() []string
	// Public lets everybody see all.
	Public bool
	// Username and Password are the right ones; those of Quay and GitLab have no user name.
	Username, Password string
	// Versions is how many versions a package of Gitea has; 0 is 1.
	Versions int
	// Caches are projects of Harbor that cache another registry. Closed hides its projects, as from a
	// robot that may only pull.
	Caches []string
	Closed bool
}

func (l Lists) visible(known bool) []string {
	return slices.DeleteFunc(slices.Clone(l.Names()), func(name string) bool { return !known && !l.Public && !strings.HasPrefix(name, "public/") })
}

// ServeHarbor serves GET /api/v2.0/repositories: listAllRepositories of
// https://github.com/goharbor/harbor/blob/main/src/server/v2.0/handler/repository.go. Clients
// without credentials see public projects. It also serves getProject, and listArtifacts of what has
// a tag, with the signatures beside it.
func (r *Registry) ServeHarbor(l Lists) {
	r.serveAPI("GET /api/v2.0/projects/", func(w http.ResponseWriter, req *http.Request) {
		parts := strings.Split(strings.TrimPrefix(req.URL.EscapedPath(), "/api/v2.0/projects/"), "/")
		switch {
		case l.Closed:
			writeJSON(w, http.StatusForbidden, map[string]any{"errors": []map[string]string{{"code": "FORBIDDEN", "message": "forbidden"}}})
		case len(parts) == 1:
			project := map[string]any{"project_id": 1, "name": parts[0]}
			if slices.Contains(l.Caches, parts[0]) {
				project["registry_id"] = 7
			}
			writeJSON(w, http.StatusOK, project)
		case len(parts) == 4 && parts[1] == "repositories" && parts[3] == "artifacts":
			once, _ := url.PathUnescape(parts[2])
			name, _ := url.PathUnescape(once)
			writeJSON(w, http.StatusOK, pageOf(w, req, r.artifacts(parts[0]+"/"+name), numberOf(req, "page", 1), numberOf(req, "page_size", 10), "X-Total-Count"))
		default:
			writeJSON(w, http.StatusNotFound, map[string]any{"errors": []map[string]string{{"code": "NOT_FOUND", "message": "not found"}}})
		}
	})
	r.serveAPI("GET /api/v2.0/repositories", func(w http.ResponseWriter, req *http.Request) {
		user, password, basic := req.BasicAuth()
		if basic && (user != l.Username || password != l.Password) {
			writeJSON(w, http.StatusUnauthorized, map[string]any{"errors": []map[string]string{{"code": "UNAUTHORIZED", "message": "unauthorized"}}})
			return
		}
		size, page := numberOf(req, "page_size", 10), numberOf(req, "page", 1)
		if size > 100 {
			writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"errors": []map[string]string{{"code": "UNPROCESSABLE", "message": "page_size"}}})
			return
		}
		all := l.visible(basic)
		var some []map[string]any
		for _, name := range pageOf(w, req, all, page, size, "X-Total-Count") {
			some = append(some, map[string]any{"id": len(name), "project_id": 1, "name": name, "artifact_count": 1})
		}
		writeJSON(w, http.StatusOK, some) // null if there are none
	})
}

// artifacts are those of a repository that have a tag, in Harbor's form. A tag sha256-….sig is an
// accessory of the image that it signs.
func (r *Registry) artifacts(repository string) []map[string]any {
	tags, accessories := map[string][]map[string]string{}, map[string][]map[string]string{}
	for tag, digest := range r.storedIn(r.reference(repository + ":x").Context()) {
		if subject, is := strings.CutSuffix(tag, ".sig"); is {
			subject = strings.Replace(subject, "-", ":", 1)
			accessories[subject] = append(accessories[subject], map[string]string{"digest": digest, "type": "signature.cosign"})
		} else {
			tags[digest] = append(tags[digest], map[string]string{"name": tag})
		}
	}
	var all []map[string]any
	for _, digest := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, map[string]any{"digest": digest, "tags": tags[digest], "accessories": accessories[digest]})
	}
	return all
}

// ServeGitLab serves GET /api/v4/groups/ID/registry/repositories and that of projects
// (https://docs.gitlab.com/api/container_registry/). A project is a path of two elements; the group
// above it is one.
func (r *Registry) ServeGitLab(l Lists) {
	r.serveAPI("GET /api/v4/", func(w http.ResponseWriter, req *http.Request) {
		of, id, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(req.URL.EscapedPath(), "/api/v4/"), "/registry/repositories"), "/")
		path, err := url.PathUnescape(id)
		if err != nil || strings.Contains(id, "/") {
			writeJSON(w, http.StatusNotFound, map[string]string{"error": "404 Not Found"})
			return
		}
		known := req.Header.Get("Private-Token") == l.Password
		if req.Header.Get("Private-Token") != "" && !known {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"message": "401 Unauthorized"})
			return
		}
		var all []string
		for _, name := range l.visible(known) {
			if strings.HasPrefix(name+"/", path+"/") {
				all = append(all, name)
			}
		}
		if is := map[int]string{0: "groups", 1: "projects"}[strings.Count(path, "/")]; is != of || path == "nobody" {
			writeJSON(w, http.StatusNotFound, map[string]string{"message": "404 Not Found"})
			return
		}
		some := []map[string]any{}
		for _, name := range pageOf(w, req, all, numberOf(req, "page", 1), min(numberOf(req, "per_page", 20), 100), "X-Total") {
			some = append(some, map[string]any{"id": len(name), "name": "", "path": name, "project_id": 9, "location": "registry.gitlab.example.com/" + name, "status": nil})
		}
		writeJSON(w, http.StatusOK, some)
	})
}

// ServeGitea serves GET /api/v1/packages/OWNER: ListPackages of
// https://github.com/go-gitea/gitea/blob/main/routers/api/v1/packages/package.go. Each version of a
// package is an entry, and a page has at most 50.
func (r *Registry) ServeGitea(l Lists) {
	r.serveAPI("GET /api/v1/packages/", func(w http.ResponseWriter, req *http.Request) {
		owner := strings.TrimPrefix(req.URL.Path, "/api/v1/packages/")
		user, password, basic := req.BasicAuth()
		if basic && (user != l.Username || password != l.Password) {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"message": "invalid username, password or token"})
			return
		}
		entries := []map[string]any{}
		for _, name := range l.visible(basic) {
			of, name, _ := strings.Cut(name, "/")
			for n := range max(1, l.Versions) {
				if of == owner && req.FormValue("type") == "container" {
					entries = append(entries, map[string]any{"id": len(entries), "type": "container", "name": name, "version": fmt.Sprint("v", n), "owner": map[string]any{"login": strings.ToUpper(owner[:1]) + owner[1:]}})
				}
			}
		}
		if owner == "nobody" {
			writeJSON(w, http.StatusNotFound, map[string]string{"message": "user redirect does not exist"})
			return
		}
		writeJSON(w, http.StatusOK, pageOf(w, req, entries, numberOf(req, "page", 1), min(numberOf(req, "limit", 30), 50), "X-Total-Count"))
	})
}

// ServeQuay serves GET /api/v1/repository: RepositoryList of
// https://github.com/quay/quay/blob/master/endpoints/api/repository.py, 100 a page. A page that is
// not the first has a token, which nobody can guess.
func (r *Registry) ServeQuay(l Lists) {
	r.serveAPI("GET /api/v1/repository$", func(w http.ResponseWriter, req *http.Request) {
		token, bearer := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
		if bearer && token != l.Password {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error_type": "invalid_token"})
			return
		}
		namespace := req.FormValue("namespace")
		if namespace == "" {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error_message": "namespace, starred or public are required for this API call"})
			return
		}
		some, next := []map[string]any{}, ""
		after := strings.TrimPrefix(req.FormValue("next_page"), "gAAAA+/=")
		for _, name := range l.visible(bearer) {
			of, short, _ := strings.Cut(name, "/")
			if of != namespace || name <= after {
				continue
			}
			if len(some) == 100 {
				next = "gAAAA+/=" + of + "/" + some[99]["name"].(string)
				break
			}
			some = append(some, map[string]any{"namespace": of, "name": short, "kind": "image", "state": "NORMAL"})
		}
		answer := map[string]any{"repositories": some}
		if next != "" {
			answer["next_page"] = next
		}
		writeJSON(w, http.StatusOK, answer)
	})
}

// requestedPage is the input of zot's query.
var requestedPage = regexp.MustCompile(`^\{RepoListWithNewestImage\(requestedPage:\{limit:(\d+),offset:(\d+),sortBy:ALPHABETIC_ASC\}\)\{Page\{TotalCount ItemCount\} Results\{Name\}\}\}$`)

// ServeZot serves zot's /v2/_zot/ext/search: RepoListWithNewestImage of
// https://github.com/project-zot/zot/blob/main/pkg/extensions/search/schema.graphql.
func (r *Registry) ServeZot(l Lists) {
	r.serveAPI("GET /v2/_zot/ext/search", func(w http.ResponseWriter, req *http.Request) {
		asked := requestedPage.FindStringSubmatch(req.FormValue("query"))
		if asked == nil {
			writeJSON(w, http.StatusUnprocessableEntity, map[string]any{"errors": []map[string]string{{"message": "Expected Name"}}, "data": nil})
			return
		}
		all, results := l.visible(true), []map[string]string{}
		limit, _ := strconv.Atoi(asked[1])
		offset, _ := strconv.Atoi(asked[2])
		for _, name := range all[min(offset, len(all)):min(offset+limit, len(all))] {
			results = append(results, map[string]string{"Name": name})
		}
		writeJSON(w, http.StatusOK, map[string]any{"data": map[string]any{"RepoListWithNewestImage": map[string]any{
			"Page": map[string]int{"TotalCount": len(all), "ItemCount": len(results)}, "Results": results,
		}}})
	})
}

// serveAPI serves requests beside those of the distribution API.
func (r *Registry) serveAPI(match string, serve http.HandlerFunc) {
	r.Inject(match, 0, func(http.Handler) http.Handler { return serve })
}

// pageOf returns a page of all, and writes the headers that link to the next one.
func pageOf[T any](w http.ResponseWriter, req *http.Request, all []T, page, size int, total string) []T {
	w.Header().Set(total, strconv.Itoa(len(all)))
	if page*size < len(all) {
		query := req.URL.Query()
		query.Set("page", strconv.Itoa(page+1))
		w.Header().Set("Link", fmt.Sprintf(`<%s?%s>; rel="next"`, req.URL.EscapedPath(), query.Encode()))
	}
	return all[min((page-1)*size, len(all)):min(page*size, len(all))]
}

func numberOf(req *http.Request, key string, otherwise int) int {
	if n, err := strconv.Atoi(req.FormValue(key)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
