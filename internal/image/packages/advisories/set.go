package advisories

import (
	"errors"
	"fmt"
	"strings"

	"github.com/package-url/packageurl-go"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
)

const (
	maxRemembered = 100_000 // packages for which a Set remembers the advisories about them
	maxElements   = 500_000 // packages, versions, ranges and events of the advisories of a Set
)

// Set has advisories by the packages that they are about. It is not safe for concurrent use.
type Set struct {
	names    map[string][]*about // by the names in package URLs
	bare     map[string][]*about // by the names that packages without a package URL may have
	bySource map[string][]*about // those that name source packages, by the type of package URLs
	// images share most packages
	remembered map[packages.Package]matches
	elements   int
}

// about is an advisory about a package.
type about struct {
	*Advisory
	*Affected
	ecosystem
	release string
}

// NewSet returns a Set without advisories.
func NewSet() *Set {
	return &Set{map[string][]*about{}, map[string][]*about{}, map[string][]*about{}, map[packages.Package]matches{}, 0}
}

var errFull = fmt.Errorf("the advisories have more than %d packages, versions and events", maxElements)

var errStreams = errors.New("it is only about streams of updates, such as Ubuntu:Pro, and SBOMs do not show whether an image has them")

// Add adds an advisory, unless it is withdrawn. An error gives the reason why it is unknown, for
// all images or for some, whether they are affected.
func (s *Set) Add(a *Advisory) error {
	if a.Withdrawn != "" {
		return nil
	}
	n := a.elements()
	if s.elements+n > maxElements {
		return errFull
	}
	s.elements += n
	var unknown, commits, streams error
	added := false
	for i := range a.Affected {
		affected := &a.Affected[i]
		e, release, other, err := ecosystemOf(affected.Package.Ecosystem)
		usable := affected.unusable()
		switch {
		case usable == errCommits:
			commits = usable
		case other:
			streams = errStreams
		case err != nil || usable != nil || affected.Package.Name == "":
			unknown = firstError(unknown, err, usable, errNothing)
		default:
			added = true
			item := &about{a, affected, e, release}
			name := e.same(affected.Package.Name)
			s.names[name] = append(s.names[name], item)
			name = affected.Package.Name
			s.bare[name] = append(s.bare[name], item)
			if _, artifact, ok := strings.Cut(name, ":"); ok && e.typ == "maven" {
				s.bare[artifact] = append(s.bare[artifact], item)
			}
			if e.bySource {
				s.bySource[e.typ] = append(s.bySource[e.typ], item)
			}
		}
	}
	clear(s.remembered)
	if added {
		return unknown
	}
	return firstError(unknown, commits, streams, errNothing)
}

// elements counts the parts of an advisory that take memory.
func (a *Advisory) elements() int {
	n := 1 + len(a.Aliases) + len(a.Upstream)
	for i := range a.Affected {
		n += 1 + len(a.Affected[i].Versions)
		for _, r := range a.Affected[i].Ranges {
			n += 1 + len(r.Events)
		}
	}
	return n
}

// Names returns up to most names of the packages that the advisories are about, in the form of
// [packages.Names]. ok is false if there are more, or if an advisory may affect packages with other
// names, because it names source packages, or names with several spellings.
func (s *Set) Names(most int) (all []string, ok bool) {
	if len(s.names) > most {
		return nil, false
	}
	for name, abouts := range s.names {
		for _, about := range abouts {
			switch {
			case about.namespaces != nil, about.typ == "nuget", about.typ == "composer", about.typ == "pypi" && strings.Contains(name, "-"):
				return nil, false
			case about.typ == "maven": // documents may name only the artifact
				_, artifact, _ := strings.Cut(name, ":")
				all = append(all, artifact)
			}
		}
		all = append(all, name)
	}
	return all, true
}

// Finding is a package of an image that an advisory is about.
type Finding struct {
	*Advisory
	packages.Found
	// Version is the compared version, and Fixed the first fixed version, if it is known.
	Version, Fixed string
	// Unknown is the reason if it is unknown whether the package is affected; it is "" if the package
	// is affected.
	Unknown string
}

// match is a Finding without the document.
type match struct {
	about          *about
	version, fixed string
	unknown        string
}

// matches are the remembered results for a package.
type matches struct {
	all     []match
	purl    *packageurl.PackageURL // of a distribution's package
	sourced bool                   // the URL names its source package
}

// Find returns the packages of a list that the advisories are about, and the packages for which
// this is unknown. A list that cannot be read is an error.
func (s *Set) Find(list *packages.ImagePackages) (found []Finding, err error) {
	for i := range list.Sources {
		source := &list.Sources[i]
		all, err := source.All()
		if err != nil {
			return nil, fmt.Errorf("the packages of %s: %w", list.Name, err)
		}
		if len(s.remembered)+len(all) > maxRemembered {
			clear(s.remembered)
		}
		seen := map[[3]string]int{} // the index in found
		direct := map[*about]bool{}
		unsourced := map[string]*packages.Package{} // the first of each type
		sourced := map[string]bool{}
		for j := range all {
			p := &all[j]
			known, ok := s.remembered[*p]
			if !ok {
				known = s.match(p)
				s.remembered[*p] = known
			}
			if known.purl != nil {
				sourced[known.purl.Type] = sourced[known.purl.Type] || known.sourced
				if unsourced[known.purl.Type] == nil {
					unsourced[known.purl.Type] = p
				}
			}
			for _, m := range known.all {
				direct[m.about] = true
				finding := Finding{m.about.Advisory, packages.Found{Package: *p, Source: source}, m.version, m.fixed, m.unknown}
				key := [3]string{m.about.ID, m.about.Affected.Package.Name, m.version}
				if at, ok := seen[key]; !ok {
					seen[key] = len(found)
					found = append(found, finding)
				} else if found[at].Unknown != "" && m.unknown == "" {
					found[at] = finding
				}
			}
		}
		for typ, p := range unsourced {
			if sourced[typ] {
				continue
			}
			purl := s.remembered[*p].purl
			for _, about := range s.bySource[typ] {
				if is, _ := about.is(purl, about.release); is && !direct[about] {
					found = append(found, Finding{about.Advisory, packages.Found{Package: *p, Source: source}, p.Version, "",
						fmt.Sprintf("its SBOM does not say from which source packages those of %s are built, and advisories name %s", purl.Namespace, about.Affected.Package.Name)})
					break
				}
			}
		}
	}
	return found, nil
}

// match finds the advisories that are about a package.
func (s *Set) match(p *packages.Package) (found matches) {
	typ, version := p.Comparable()
	if typ == "" {
		for _, about := range s.bare[p.Name] {
			found.add(about, version, "it has no package URL, so its ecosystem is unknown")
		}
		return found
	}
	purl, err := packageurl.FromString(p.PURL)
	if err != nil { // Comparable has read it
		return found
	}
	name := packages.PURLName(&purl)
	source, sourceVersion := packages.Upstream(&purl)
	if len(s.bySource[typ]) > 0 {
		found.purl, found.sourced = &purl, source != ""
	}
	names := map[string]string{name: version}
	if source != "" {
		if typ != "rpm" { // advisories for rpm may name either
			clear(names)
		}
		if names[source] = version; sourceVersion != "" {
			names[source] = sourceVersion
		}
	}
	for name, version := range names {
		for _, about := range s.names[ecosystem{typ: typ}.same(name)] {
			if is, unknown := about.is(&purl, about.release); is {
				found.add(about, version, unknown)
			}
		}
	}
	return found
}

// add adds an advisory, unless it is not about the version.
func (m *matches) add(a *about, version, unknown string) {
	is, fixed, err := a.has(a.typ, version)
	switch {
	case err != nil && unknown == "":
		unknown = err.Error()
	case err == nil && !is:
		return
	}
	m.all = append(m.all, match{a, version, fixed, unknown})
}

// firstError returns the first error.
func firstError(all ...error) error {
	for _, err := range all {
		if err != nil {
			return err
		}
	}
	return nil
}
