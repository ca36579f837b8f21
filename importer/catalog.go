package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/importer/listing"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/oci"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const (
	catalogPageSize       = 1000
	maxCatalogPages       = 1000 // Harbor answers with 100 at a time
	maxRepositoriesListed = 100_000
)

// Repositories lists the repositories of a registry, sorted, by the distribution project's catalog
// API (GET /v2/_catalog), which the OCI specification does not have and public registries refuse.
// Names that cannot be repositories are left out, with a warning. It reads at most 1,000 pages with
// 100,000 repositories in all; more are an error with reason TooLarge. Mirrors are not asked.
//
// Errors are an *[pull.Error] with the Host set.
func (im *Importer) Repositories(ctx context.Context, host string) (repositories []reference.Reference, warnings []string, err error) {
	return im.ListRepositories(ctx, host, listing.Catalog, nil)
}

// ListRepositories is Repositories by a kind of list. patterns are those of the paths that the
// caller wants, in the form of [reference.MatchPath]: they decide which lists are read, and the
// result may have further repositories. All lists together have the bounds of Repositories.
func (im *Importer) ListRepositories(ctx context.Context, host string, kind listing.Kind, patterns []string) (repositories []reference.Reference, warnings []string, err error) {
	var names []string
	var cut string
	if kind == listing.Catalog {
		names, cut, err = im.catalog(ctx, host)
		if cut != "" {
			warnings = append(warnings, mayBeCut(host, "repositories", len(names), cut))
		}
	} else {
		names, warnings, err = im.ownLists(ctx, host, kind, patterns)
	}
	if err != nil {
		e := pull.Describe(reference.Reference{Host: host}, err)
		e.Reference = ""
		switch e.Reason {
		case pull.NotFound, pull.Unauthorized, pull.Denied, pull.Unexpected:
			if kind != listing.Catalog {
				e.Message += fmt.Sprintf("; this is the list of %s, which sweep.entries may name for a registry of that kind alone", kind)
				break
			}
			e.Message += "; if the registry has no catalog (Docker Hub, quay.io and ghcr.io have none) or does not show it to these credentials, name the repositories one by one: import has --all-tags and -f, and sweep.repositories takes names. A sweep can also read the registry's own list: sweep.entries has listing: " + strings.Join(listing.Kinds()[1:], ", ")
		}
		return nil, nil, e
	}
	slices.Sort(names)
	refused := 0
	invalid := ""
	for _, n := range slices.Compact(names) {
		repository, err := reference.ParseRepository(host + "/" + n)
		if err != nil || repository.Repository != n {
			refused++
			invalid = n
			continue
		}
		repositories = append(repositories, repository)
	}
	if refused > 0 {
		warnings = append(warnings, fmt.Sprintf("%s lists %d invalid repository names, %q last", host, refused, pull.Clean(invalid)))
	}
	return repositories, warnings, nil
}

// ownLists reads the lists that a registry's own API has.
func (im *Importer) ownLists(ctx context.Context, host string, kind listing.Kind, patterns []string) (names, warnings []string, err error) {
	lists, err := kind.Lists(patterns)
	if err != nil {
		return nil, nil, &pull.Error{Reason: pull.Misconfigured, Message: err.Error()}
	}
	pages := 0
	for _, list := range lists {
		api, err := im.API(ctx, host, list.Owner(), logins[kind])
		if err != nil {
			return nil, nil, err
		}
		if api.Anonymous != "" {
			warnings = append(warnings, fmt.Sprintf("the %s of %s is read without credentials, and shows public repositories alone: %s", list.Name, host, api.Anonymous))
		}
		ctx := pull.WithBudget(ctx, manifest.MaxManifestSize, api.Limits.Request, nil)
		read := 0
		for list.Path() != "" {
			if pages++; pages > maxCatalogPages {
				return nil, nil, &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the %s has more than %d pages", list.Name, maxCatalogPages)}
			}
			raw, header, err := api.Client.Read(ctx, list.Path(), "application/json", manifest.MaxManifestSize)
			if err != nil {
				if pull.Describe(reference.Reference{Host: host}, err).Reason == pull.NotFound && list.Absent() {
					continue
				}
				return nil, nil, err
			}
			some, err := list.Read(raw, header)
			if err != nil {
				return nil, nil, pull.CausedBy(pull.Unexpected, fmt.Sprintf("the %s cannot be read: %s", list.Name, pull.Clean(err.Error())), err)
			}
			read += len(some)
			if names = append(names, some...); len(names) > maxRepositoriesListed {
				return nil, nil, &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the %s has more than %d repositories", list.Name, maxRepositoriesListed)}
			}
		}
		if list.Cut() != "" {
			warnings = append(warnings, mayBeCut("the "+list.Name+" of "+host, "repositories", read, list.Cut()))
		}
	}
	return names, warnings, nil
}

// maxArtifactPages bounds the pages of one repository's own list.
const maxArtifactPages = 100

// OwnList is what a registry's own list says of a repository.
type OwnList struct {
	At   time.Time         // before it was read
	Tags map[string]string // where each tag leads
	Sum  [32]byte          // of all that the list says: it is the same as long as nothing changes
}

// ListRepository reads what a registry's own list says of a whole repository. It returns nil if the
// kind of registry has no list with digests, and if the repository is a cache, which lists what it
// has fetched or has mirrors. isCache keeps which projects are caches; one sweep may share it.
func (im *Importer) ListRepository(ctx context.Context, repository reference.Reference, kind listing.Kind, isCache map[string]bool) (*OwnList, error) {
	project, ok := listing.ProjectOf(repository.Repository)
	if kind != listing.Harbor || !ok {
		return nil, nil
	}
	if sources, err := im.PullSources(repository); err != nil || len(sources) != 1 || sources[0].Reference != repository {
		return nil, nil // a mirror has tags of its own
	}
	at := im.Now()
	list, err := im.artifacts(ctx, repository, project, isCache)
	if list == nil || err != nil {
		return nil, err
	}
	return &OwnList{At: at, Tags: list.Tags(), Sum: list.Sum()}, nil
}

func (im *Importer) artifacts(ctx context.Context, repository reference.Reference, project string, isCache map[string]bool) (*listing.Artifacts, error) {
	list := listing.ArtifactsOf(repository.Repository)
	api, err := im.API(ctx, repository.Host, repository.Repository, logins[listing.Harbor])
	if err != nil {
		return nil, pull.Describe(repository, err)
	}
	ctx = pull.WithBudget(ctx, manifest.MaxManifestSize, api.Limits.Request, nil)
	cache, known := isCache[project]
	if !known {
		raw, _, err := api.Client.Read(ctx, project, "application/json", manifest.MaxManifestSize)
		if err == nil {
			cache, err = listing.IsCache(raw)
		}
		isCache[project] = cache || err != nil // it is not asked again for each repository
		if err != nil {
			return nil, pull.Describe(repository, err)
		}
	}
	for pages := 0; list.Path() != "" && !cache; pages++ {
		if pages == maxArtifactPages {
			return nil, nil
		}
		raw, header, err := api.Client.Read(ctx, list.Path(), "application/json", manifest.MaxManifestSize)
		if err == nil {
			err = list.Read(raw, header)
		}
		if err != nil {
			return nil, pull.Describe(repository, err)
		}
	}
	if cache {
		return nil, nil
	}
	return list, nil
}

// ConfirmListed records that the registry's own list confirmed where all known tags of a repository
// lead. If one of them leads elsewhere by that list, it records nothing and returns false.
func (im *Importer) ConfirmListed(ctx context.Context, images Tagged, repository reference.Reference, listed *OwnList) (bool, error) {
	var checks []tags.Check
	isSame := true
	err := EachUnlisted(ctx, images, repository, func(reference.Reference) bool { return false }, func(tag reference.Reference, digest string) error {
		isSame = isSame && listed.Tags[tag.Tag] == digest
		checks = append(checks, tags.Check{Reference: tag.String(), Digest: digest, At: listed.At})
		return nil
	})
	if err != nil || !isSame {
		return false, err
	}
	if c, ok := images.(Confirmer); ok {
		for some := range slices.Chunk(checks, tags.MaxChecks) {
			_ = c.ConfirmTags(ctx, some) // if that fails, what is known is only older
		}
	}
	return true, nil
}

// logins are how the APIs of registries take credentials.
var logins = map[listing.Kind]pull.Login{
	// src/server/middleware/security/basic_auth.go of goharbor/harbor
	listing.Harbor: pull.LoginBasic,
	listing.Gitea:  pull.LoginBasic,
	// GitLab is where its registry sends clients for tokens.
	listing.GitLab: pull.LoginPrivateToken,
	// auth/decorators.py of quay/quay, process_oauth: robots cannot call the API.
	listing.Quay: pull.LoginOAuthToken,
	listing.Zot:  pull.LoginRegistry,
}

func (im *Importer) catalog(ctx context.Context, host string) (all []string, cut string, err error) {
	config, options, err := im.Rules(host, false)
	if err != nil {
		return nil, "", err
	}
	registry, err := name.NewRegistry(host, options...)
	if err != nil {
		return nil, "", err
	}
	s, err := im.Connect(ctx, registry, registry, "", config, registry.Scope(transport.CatalogScope))
	if err != nil {
		return nil, "", err
	}
	ctx = pull.WithBudget(ctx, manifest.MaxManifestSize, s.Limits.Request, nil)
	path := fmt.Sprintf("/v2/_catalog?n=%d", catalogPageSize)
	all, cut, err = readList(ctx, s, s.Registry.List(path, catalogPageSize), "catalog", "repositories", maxCatalogPages, maxRepositoriesListed, func(raw []byte) ([]string, error) {
		var page struct {
			Repositories []string `json:"repositories"`
		}
		err := json.Unmarshal(raw, &page)
		return page.Repositories, err
	})
	return all, cut, err
}

// readList reads all pages of a list; names decodes one page. In errors, the list is called what,
// and its entries of. More than maxPages pages or maxEntries entries are an error. cut is why the
// registry may have more names than it shows, or "".
func readList(ctx context.Context, s *pull.Session, list *oci.Pages, what, of string, maxPages, maxEntries int, names func(raw []byte) ([]string, error)) (all []string, cut string, err error) {
	for range maxPages {
		raw, header, err := s.Registry.Read(ctx, list.Path(), "application/json", manifest.MaxManifestSize)
		if list.IsGuess() && isDenied(err) {
			list.End()
			return all, list.Cut(), nil
		}
		if err != nil {
			return nil, "", err
		}
		page, err := names(raw)
		if err != nil {
			return nil, "", pull.CausedBy(pull.Unexpected, fmt.Sprintf("the %s is not JSON: %s", what, pull.Clean(err.Error())), err)
		}
		isNew, elsewhere := list.Read(header, page)
		if isNew {
			all = append(all, page...)
		}
		switch {
		case elsewhere:
			return nil, "", &pull.Error{Reason: pull.Unexpected, Message: fmt.Sprintf("the next page of the %s is not on the registry", what)}
		case len(all) > maxEntries:
			return nil, "", &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the %s has more than %d %s", what, maxEntries, of)}
		case list.Path() == "":
			return all, list.Cut(), nil
		}
	}
	return nil, "", &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the %s has more than %d pages", what, maxPages)}
}

// mayBeCut is the warning for a list that may lack names.
func mayBeCut(of, what string, n int, why string) string {
	return fmt.Sprintf("%s lists %d %s, and there may be more: %s", of, n, what, why)
}
