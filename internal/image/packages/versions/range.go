// Package versions compares versions of packages by the rules of their ecosystems, and checks
// whether one is in a range.
//
// A range is a list of comparisons, separated by commas, which must all be true: >=1.2,<1.4. The
// operators are <, <=, >, >=, = and !=; without one, = is meant. Each ecosystem has its own order
// of versions, so libraries compare them:
//
//   - Go, npm, PyPI, Maven, crates.io and NuGet, and the SemVer of Hex, Pub and Swift:
//     deps.dev/util/semver, of Google's deps.dev.
//   - Debian and Ubuntu, RPM, Alpine: knqyf263/go-deb-version, go-rpm-version and go-apk-version,
//     which scanners use.
//   - Composer, RubyGems, CRAN and Hackage: segments.go, which has a few lines for each.
//
// For any other type of package, and for a version that its library cannot read, it is unknown
// whether it is in the range. Only = and != are known if the texts are the same, or if both are
// numbers with dots and their first numbers differ.
package versions

import (
	"errors"
	"fmt"
	"strings"

	"deps.dev/util/semver"
	apk "github.com/knqyf263/go-apk-version"
	deb "github.com/knqyf263/go-deb-version"
	rpm "github.com/knqyf263/go-rpm-version"
)

const (
	maxRange       = 256 // bytes of a range
	maxComparisons = 8
	maxVersion     = 128 // bytes of a version that is compared
)

// Range is a range of versions. The zero value contains all versions.
type Range struct{ all []comparison }

type comparison struct{ operator, version string }

// operators has longer operators before their prefixes.
var operators = []string{"<=", ">=", "!=", "==", "<", ">", "="}

// Parse reads a range. An invalid version in it is found only when versions are compared.
func Parse(text string) (r Range, err error) {
	if len(text) > maxRange {
		return r, fmt.Errorf("a range has at most %d bytes", maxRange)
	}
	for part := range strings.SplitSeq(text, ",") {
		c := comparison{"=", strings.TrimSpace(part)}
		for _, operator := range operators {
			if version, ok := strings.CutPrefix(c.version, operator); ok {
				c = comparison{operator, strings.TrimSpace(version)}
				break
			}
		}
		if c.operator == "==" {
			c.operator = "="
		}
		if c.version == "" || strings.ContainsAny(c.version, "<>=|*, \t") || strings.ContainsAny(c.version[:1], "~^!") {
			return Range{}, fmt.Errorf("%q is not a range of versions: write comparisons with commas between, such as >=1.2,<1.4", text)
		}
		if r.all = append(r.all, c); len(r.all) > maxComparisons {
			return Range{}, fmt.Errorf("a range has at most %d comparisons", maxComparisons)
		}
	}
	return r, nil
}

// Has reports whether a version of a type of package, as package URLs name it, is in the range. An
// error means that this is unknown.
func (r Range) Has(typ, version string) (bool, error) {
	if len(r.all) == 0 {
		return true, nil
	}
	if version == "" {
		return false, errors.New("the version is not known")
	}
	var unknown error
	for _, c := range r.all {
		order, err := Compare(typ, version, c.version)
		if err == nil {
			err = epochLacks(typ, version, c.version)
		}
		if err != nil {
			if c.operator == "=" && version == c.version { // in every ecosystem
				continue
			}
			if differ(version, c.version) { // in every ecosystem, too
				switch c.operator {
				case "=":
					return false, nil
				case "!=":
					continue
				}
			}
			unknown = err
			continue
		}
		var holds bool
		switch c.operator {
		case "<":
			holds = order < 0
		case "<=":
			holds = order <= 0
		case ">":
			holds = order > 0
		case ">=":
			holds = order >= 0
		case "=":
			holds = order == 0
		case "!=":
			holds = order != 0
		}
		if !holds {
			return false, nil
		}
	}
	return unknown == nil, unknown
}

// differ reports whether two versions surely differ in every ecosystem: both are numbers with dots,
// and their first numbers differ. Later numbers do not show that: 1.10 may equal 1.1.
func differ(a, b string) bool {
	first := func(version string) string {
		number, _, _ := strings.Cut(version, ".")
		return strings.TrimLeft(number, "0")
	}
	isPlain := func(version string) bool { return version[0] != '.' && strings.Trim(version, "0123456789.") == "" }
	return isPlain(a) && isPlain(b) && first(a) != first(b)
}

// epochLacks returns an error if a version has an epoch and a bound has none. By the rules such a
// bound has the epoch 0, which is hardly what its author meant.
func epochLacks(typ, version, bound string) error {
	epoch, _, ok := strings.Cut(version, ":")
	if typ != "deb" && typ != "rpm" || !ok || strings.Contains(bound, ":") || strings.Trim(epoch, "0") == "" {
		return nil
	}
	return fmt.Errorf("version %s has the epoch %s and the range has none: write %[2]s:%s", version, epoch, bound)
}

// systems are the ecosystems of deps.dev/util/semver by the type of a package URL.
var systems = map[string]semver.System{
	"cargo": semver.Cargo, "golang": semver.Go, "maven": semver.Maven, "npm": semver.NPM, "nuget": semver.NuGet, "pypi": semver.PyPI,
	SemVer: semver.DefaultSystem, "hex": semver.DefaultSystem, "pub": semver.DefaultSystem, "swift": semver.DefaultSystem,
}

// SemVer is a type for versions of https://semver.org, whatever their package is.
const SemVer = "semver"

// Orders reports whether versions of a type of package can be compared.
func Orders(typ string) bool {
	_, ok := systems[typ]
	return ok || segmented[typ] != nil || typ == "deb" || typ == "rpm" || typ == "apk"
}

// Compare orders two versions of a type of package: negative if a comes before b. An error means
// that the order is unknown.
func Compare(typ, a, b string) (order int, err error) {
	defer func() {
		if r := recover(); r != nil {
			// the libraries expect valid versions, and may panic on others
			order, err = 0, fmt.Errorf("versions %q and %q of type %q cannot be compared", a, b, typ)
		}
	}()
	if len(a) > maxVersion || len(b) > maxVersion {
		return 0, fmt.Errorf("a version of more than %d bytes is not compared", maxVersion)
	}
	system, ok := systems[typ]
	switch {
	case typ == "pub":
		order, err := compareIn(system, a, b)
		if order == 0 && err == nil {
			return compareBuilds(a, b)
		}
		return order, err
	case ok:
		return compareIn(system, a, b)
	case segmented[typ] != nil:
		return compareSegments(segmented[typ], a, b)
	case typ == "deb":
		x, err := deb.NewVersion(a)
		if err != nil {
			return 0, fmt.Errorf("version %q: %w", a, err)
		}
		y, err := deb.NewVersion(b)
		if err != nil {
			return 0, fmt.Errorf("version %q: %w", b, err)
		}
		return x.Compare(y), nil
	case typ == "rpm":
		for _, version := range []string{a, b} {
			epoch, _, hasEpoch := strings.Cut(version, ":")
			if hasEpoch && (epoch == "" || strings.Trim(epoch, "0123456789") != "") || strings.HasSuffix(version, ":") || strings.HasSuffix(version, "-") {
				return 0, fmt.Errorf("version %q is not one of RPM, [EPOCH:]VERSION[-RELEASE]", version)
			}
		}
		return rpm.NewVersion(a).Compare(rpm.NewVersion(b)), nil
	case typ == "apk":
		return compareApk(a, b)
	case typ == "":
		return 0, errors.New("the package has no package URL, so the order of its versions is unknown")
	}
	return 0, fmt.Errorf("the order of versions of type %q is unknown", typ)
}

// compareApk orders two versions of Alpine. The library puts 1.0_rc1 after 1.0 if one of them has
// no revision, so compareApk compares revisions last.
func compareApk(a, b string) (int, error) {
	order := func(a, b string) (int, error) {
		x, err := apk.NewVersion(a)
		if err != nil {
			return 0, fmt.Errorf("version %q: %w", a, err)
		}
		y, err := apk.NewVersion(b)
		if err != nil {
			return 0, fmt.Errorf("version %q: %w", b, err)
		}
		return x.Compare(y), nil
	}
	const revision = "-r"
	first, _, isRevised := strings.Cut(a, revision)
	second, _, isOther := strings.Cut(b, revision)
	if !isRevised || !isOther {
		if n, err := order(first+"-r0", second+"-r0"); err != nil || n != 0 {
			return n, err
		}
	}
	return order(a, b)
}

// compareBuilds orders two versions of Pub that differ only in their builds: 1.0.0+1 comes after
// 1.0.0.
func compareBuilds(a, b string) (int, error) {
	_, x, isBuild := strings.Cut(a, "+")
	_, y, isOther := strings.Cut(b, "+")
	switch {
	case isBuild && isOther:
		return compareIn(semver.DefaultSystem, "0.0.0-"+x, "0.0.0-"+y)
	case isBuild:
		return 1, nil
	case isOther:
		return -1, nil
	}
	return 0, nil
}

func compareIn(system semver.System, a, b string) (int, error) {
	parse := func(text string) (*semver.Version, error) {
		if system == semver.Go && text != "" && '0' <= text[0] && text[0] <= '9' {
			// versions of the standard library, as people write them
			text = "v" + text
		} else if system == semver.DefaultSystem {
			// a tag is a version with a v
			text = strings.TrimPrefix(text, "v")
		}
		v, err := system.Parse(text)
		if err == nil && v.IsWildcard() {
			err = errors.New("it is not one version")
		}
		if err != nil {
			return nil, fmt.Errorf("version %q: %w", text, err)
		}
		return v, nil
	}
	x, err := parse(a)
	if err != nil {
		return 0, err
	}
	y, err := parse(b)
	if err != nil {
		return 0, err
	}
	order := x.Compare(y)
	if order != -y.Compare(x) { // as for the versions "" and "." of Maven
		return 0, fmt.Errorf("the order of the versions %q and %q is unknown", a, b)
	}
	return order, nil
}
