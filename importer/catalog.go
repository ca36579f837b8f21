package importer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/pull"
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
	names, err := im.catalog(ctx, host)
	if err != nil {
		e := pull.Describe(reference.Reference{Host: host}, err)
		e.Reference = ""
		switch e.Reason {
		case pull.NotFound, pull.Unauthorized, pull.Denied, pull.Unexpected:
			e.Message += "; if the registry has no catalog (Docker Hub, quay.io and ghcr.io have none) or does not show it to these credentials, name repositories with --all-tags, or list references with -f"
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
	return repositories, warnings, nil
}

func (im *Importer) catalog(ctx context.Context, host string) ([]string, error) {
	config, options, err := im.Rules(host, false)
	if err != nil {
		return nil, err
	}
	registry, err := name.NewRegistry(host, options...)
	if err != nil {
		return nil, err
	}
	s, err := im.Connect(ctx, registry, registry, "", config, registry.Scope(transport.CatalogScope))
	if err != nil {
		return nil, err
	}
	ctx = pull.WithBudget(ctx, manifest.MaxManifestSize, s.Limits.Request, nil)
	var all []string
	path := fmt.Sprintf("/v2/_catalog?n=%d", catalogPageSize)
	err = eachPage(ctx, s, path, "catalog", maxCatalogPages, func(page struct {
		Repositories []string `json:"repositories"`
	}) error {
		if all = append(all, page.Repositories...); len(all) > maxRepositoriesListed {
			return &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the registry lists more than %d repositories", maxRepositoriesListed)}
		}
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// eachPage calls visit with each page of a list. what names the list in errors. More than limit
// pages are an error.
func eachPage[Page any](ctx context.Context, s *pull.Session, path, what string, limit int, visit func(Page) error) error {
	for range limit {
		raw, header, err := s.Registry.Read(ctx, path, "application/json", manifest.MaxManifestSize)
		if err != nil {
			return err
		}
		var page Page
		if err := json.Unmarshal(raw, &page); err != nil {
			return pull.CausedBy(pull.Unexpected, fmt.Sprintf("the %s is not JSON: %s", what, pull.Clean(err.Error())), err)
		}
		if err := visit(page); err != nil {
			return err
		}
		next, elsewhere := s.Registry.Next(header, path)
		if elsewhere {
			return &pull.Error{Reason: pull.Unexpected, Message: fmt.Sprintf("the next page of the %s is not on the registry", what)}
		}
		if next == "" {
			return nil
		}
		path = next
	}
	return &pull.Error{Reason: pull.TooLarge, Message: fmt.Sprintf("the %s has more than %d pages", what, limit)}
}
