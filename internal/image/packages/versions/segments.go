package versions

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The orders of ecosystems whose versions are numbers and words, and for which no library is right:
// deps.dev/util/semver treats a patch of Composer (2.4.4-p1) as a prerelease, puts RC before beta,
// and treats two prereleases of RubyGems as equal that differ only near their end.
var segmented = map[string]func(version string) ([]segment, error){
	"composer": composer, "gem": gem, "cran": numbers, "hackage": numbers,
}

// segment is a number, or a word with a rank: words with a rank below 0 come before all numbers,
// the others after them.
type segment struct {
	rank   int
	number string // without leading zeros
	word   string
}

// end stands for the missing segments of the shorter of two versions.
var end = segment{}

func (s segment) compare(other segment) int {
	return cmp.Or(cmp.Compare(s.rank, other.rank), cmp.Compare(len(s.number), len(other.number)), cmp.Compare(s.number, other.number), cmp.Compare(s.word, other.word))
}

func compareSegments(parse func(string) ([]segment, error), a, b string) (int, error) {
	x, err := parse(a)
	if err != nil {
		return 0, err
	}
	y, err := parse(b)
	if err != nil {
		return 0, err
	}
	for len(x) < len(y) {
		x = append(x, end)
	}
	for len(y) < len(x) {
		y = append(y, end)
	}
	return slices.CompareFunc(x, y, segment.compare), nil
}

// The ranks of the words in a version of Composer, in the order of PHP's version_compare.
const (
	dev = iota - 4
	alpha
	beta
	candidate
	ended
	aNumber
	patch
)

var (
	stabilities = map[string]int{"": ended, "stable": ended, "alpha": alpha, "a": alpha, "beta": beta, "b": beta, "rc": candidate, "patch": patch, "pl": patch, "p": patch}

	composerVersion = regexp.MustCompile(`^v?(\d+)(?:\.(\d+))?(?:\.(\d+))?(?:\.(\d+))?[._-]?(?:(stable|beta|b|rc|alpha|a|patch|pl|p)((?:[.-]?\d+)*))?([.-]?dev)?(?:\+.*)?$`)
)

// composer reads a version as https://github.com/composer/semver does. A branch is not a version.
func composer(version string) ([]segment, error) {
	parts := composerVersion.FindStringSubmatch(strings.ToLower(version))
	if parts == nil {
		return nil, fmt.Errorf("version %q is not one of Composer", version)
	}
	var all []segment
	for _, number := range parts[1:5] {
		all = append(all, numbered(number))
	}
	if rank := stabilities[parts[5]]; rank != ended {
		all = append(all, segment{rank: rank})
		for _, number := range number.FindAllString(parts[6], -1) {
			all = append(all, numbered(number))
		}
	}
	if parts[7] != "" {
		all = append(all, segment{rank: dev})
	}
	return all, nil
}

var number = regexp.MustCompile(`\d+`)

func numbered(number string) segment {
	return segment{rank: aNumber, number: strings.TrimLeft(number, "0")}
}

var (
	gemVersion = regexp.MustCompile(`^\d+(\.[0-9A-Za-z]+)*(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
	gemPart    = regexp.MustCompile(`\d+|[A-Za-z]+`)
)

// gem reads a version as https://docs.ruby-lang.org/en/3.4/Gem/Version.html says. A word comes
// before every number. Zeros at the end of the numbers, and at the end of the version, do not
// count.
func gem(version string) ([]segment, error) {
	if !gemVersion.MatchString(version) {
		return nil, fmt.Errorf("version %q is not one of RubyGems", version)
	}
	var all []segment
	words := false
	for _, part := range gemPart.FindAllString(strings.ReplaceAll(version, "-", ".pre."), -1) {
		if part[0] > '9' {
			if !words {
				all, words = withoutZeros(all), true
			}
			all = append(all, segment{rank: dev, word: part})
			continue
		}
		all = append(all, segment{number: strings.TrimLeft(part, "0")})
	}
	return withoutZeros(all), nil
}

func withoutZeros(all []segment) []segment {
	for len(all) > 0 && all[len(all)-1] == end {
		all = all[:len(all)-1]
	}
	return all
}

// numbers reads a version of CRAN or Hackage. If one version is the beginning of another, the
// longer one comes later.
func numbers(version string) ([]segment, error) {
	var all []segment
	for number := range strings.FieldsFuncSeq(version, func(r rune) bool { return r == '.' || r == '-' }) {
		if strings.Trim(number, "0123456789") != "" {
			return nil, fmt.Errorf("version %q is not numbers with dots between", version)
		}
		all = append(all, numbered(number))
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("version %q is not numbers with dots between", version)
	}
	return all, nil
}
