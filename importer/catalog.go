package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
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
	names, cut, err := im.catalog(ctx, host)
	if err != nil {
		e := pull.Describe(reference.Reference{Host: host}, err)
		e.Reference = ""
		switch e.Reason {
		case pull.NotFound, pull.Unauthorized, pull.Denied, pull.Unexpected:
			e.Message += "; if the registry has no catalog (Docker Hub, quay.io and ghcr.io have none) or does not show it to these credentials, name the repositories one by one: import has --all-tags and -f, and sweep.repositories takes names"
		}
		return nil, nil, e
	}
	refused := 0
	for _, n := range names {
		repository, err := reference.ParseRepository(host + "/" + n)
		if err != nil || repository.Repository != n {
			if refused++; refused == 1 {
				warnings = append(warnings, "")
			}
			warnings[0] = fmt.Sprintf("%s lists %d invalid repository names, %q last", host, refused, pull.Clean(n))
			continue
		}
		repositories = append(repositories, repository)
	}
	if cut != "" {
		warnings = append(warnings, mayBeCut(host, "repositories", len(names), cut))
	}
	return repositories, warnings, nil
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
	slices.Sort(all)
	return slices.Compact(all), cut, err
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
