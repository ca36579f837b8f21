package versions_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/packages/versions"
)

func TestRanges(t *testing.T) {
	t.Parallel()
	const yes, no, unknown = "yes", "no", "unknown"
	for _, tc := range []struct{ typ, version, in, want string }{
		{"deb", "3.0.11-1~deb12u2", "<3.0.11-1", yes}, // a tilde comes before nothing
		{"deb", "1:1.0", ">9.0", unknown},             // the bound has no epoch
		{"deb", "1:1.0", ">0:9.0", yes},
		{"deb", "1:1.0", "<1:1.1", yes},
		{"deb", "0:1.0", "<1.1", yes},
		{"deb", "1:1.0", ">1:2.0,<9.0", no},
		{"rpm", "1:3.0.1-41.el9", "<3.0.7", unknown},
		{"rpm", "1:3.0.1-41.el9", "!=3.0.1-41.el9", unknown},
		{"rpm", "1:3.0.1-41.el9", "<1:3.0.7", yes},
		{"deb", "3.0.11-1", ">=3.0,<3.1", yes},
		{"deb", "3.1.0-1", ">=3.0,<3.1", no},
		{"rpm", "1:3.0.7-1.el9", ">3.0.8", unknown},
		{"rpm", "1:3.0.7-1.el9", ">0:3.0.8", yes},
		{"rpm", "3.0.7-1.el9", "<3.0.8", yes},
		{"apk", "1.2.4-r1", "<1.2.4-r2", yes},
		{"apk", "1.10.0-r0", ">1.9.0-r0", yes},
		{"npm", "4.17.20", "<4.17.21", yes},
		{"npm", "4.17.21-rc.1", "<4.17.21", yes},
		{"npm", "4.17.21", "<4.17.21", no},
		{"pypi", "1.0rc1", "<1.0", yes},
		{"pypi", "1.0.post1", ">1.0", yes},
		{"maven", "2.14.1", ">=2.0,<2.15.0", yes},
		{"maven", "2.15.0-rc1", "<2.15.0", yes},
		{"golang", "v1.2.3", "<v1.10.0", yes},
		{"golang", "1.21.0", "<1.21.4", yes}, // the standard library's
		{"cargo", "0.9.0", "!=0.9.0", no},
		{"nuget", "13.0.1", "<13.0.2", yes},
		{"gem", "6.0.0.pre", "<6.0.0", yes},
		{"composer", "1.0.0", "=1.0.0", yes},
		{"npm", "4.17.20", "4.17.20", yes},
		{"generic", "1.0", "<2.0", unknown},
		{"generic", "1.0", "1.0", yes}, // equal texts are equal versions
		{"generic", "1.0", "2.0", no},  // they differ in every ecosystem
		{"generic", "1.0", "!=2.0", yes},
		{"generic", "1.0", "1.0.0", unknown},
		{"generic", "1.0-a", "2.0", unknown},
		{"generic", "v1.0", "2.0", unknown},
		{"", "1.0", "<2.0", unknown},
		{"npm", "latest", "<2.0", unknown},
		{"npm", "", "<2.0", unknown},
		{"deb", "not a version", "<2.0", unknown},
	} {
		r, err := versions.Parse(tc.in)
		if err != nil {
			t.Errorf("%s: %v", tc.in, err)
			continue
		}
		got := no
		if has, err := r.Has(tc.typ, tc.version); err != nil {
			got = unknown
		} else if has {
			got = yes
		}
		if got != tc.want {
			t.Errorf("%s %s in %s: %s, want %s", tc.typ, tc.version, tc.in, got, tc.want)
		}
	}
	for _, text := range []string{"", "<", ">=1,", "^1.2", "~1.2", "1.2 || 2.0", "1.*", ">=1.2 <3"} {
		if r, err := versions.Parse(text); err == nil {
			t.Errorf("%q is taken for the range %v", text, r)
		}
	}
}

// In each line, every version comes before the next one, or equals it if there is a = between.
func TestOrders(t *testing.T) {
	t.Parallel()
	for typ, lines := range map[string][]string{
		"composer": {
			"1.0-dev 1.0-alpha1 1.0.0a2 1.0-beta1 1.0-beta.2=1.0b2 1.0-beta10 1.0-RC1=v1.0.0-rc.1 1.0-RC10-dev 1.0-RC10 1.0=1.0.0.0=1.0-stable=V1.0+build 1.0-p1=1.0-patch1=1.0pl1 1.0-p10 1.0.1 1.9 1.10",
			"2.4.3-beta9 2.4.3-RC1 2.4.3 2.4.3-p1 2.4.3-p2 2.4.4-p1 2.4.4-p10",
			"1.0.99999999999999999999 1.0.100000000000000000000",
		},
		"gem":     {"3.0.0.alpha.5.0.3 3.0.0.alpha.5.0.4 3.0.0.alpha.5.0.5 3.0.0.alpha.5.0.5.1 3.0.0.beta 3.0.0-1=3.0.0.pre.1 3.0.0.rc1 3.0.0=3=3.0.0.0 3.0.0.1 3.0.1 3.10"},
		"cran":    {"0.1 0.1-0=0.1.0 0.1-1 0.1-4 0.1.5 0.2 0.10 1.0 1.0.0"},
		"hackage": {"0.11.3.0 1 1.0 1.0.0 1.0.1.0 1.2 1.10"},
		"pub":     {"0.13.0-dev.1 0.13.0-dev.1+1 0.13.0 0.13.0+1 0.13.0+2 0.13.0+10 0.13.1 1.0.0=v1.0.0"},
		"hex":     {"1.1.0-rc.1 1.1.0=v1.1.0 1.2.0 1.10.0"},
		"swift":   {"1.1.0-rc.1 1.1.0=v1.1.0 1.2.0 1.10.0"},
		"apk":     {"1.0_alpha1-r0 1.0_rc1 1.0 1.0-r1 1.0-r10 1.0_p1-r0 1.0a 1.0.1 1.10"},
		"rpm":     {"1.0~rc1-1.el9 1.0-1.el9 1.0-1.el9_2.1 1.0-27.el9 1.0.1-1.el9 1:0.5-1.el9"},
	} {
		for _, line := range lines {
			steps := strings.Fields(line)
			for i, step := range steps {
				for j, other := range steps {
					for a := range strings.SplitSeq(step, "=") {
						for b := range strings.SplitSeq(other, "=") {
							if order, err := versions.Compare(typ, a, b); err != nil || cmp.Compare(order, 0) != cmp.Compare(i, j) {
								t.Errorf("%s: %s and %s are ordered %d, %v", typ, a, b, order, err)
							}
						}
					}
				}
			}
		}
	}
	for typ, wrong := range map[string]string{
		"composer": "dev-main 1.x-dev 1.0-test1 4.3-2 1.0..1", "gem": "1beta a.1 1..0", "cran": "1.a . -", "hackage": "1.0-beta v1.0",
		"apk": "1.0bc 1.0A latest", "rpm": "a:1.0 :1.0 1: 1.0-", "hex": "1.0.0.0.0", "pub": "latest",
	} {
		for version := range strings.FieldsSeq(wrong) {
			if order, err := versions.Compare(typ, version, "1.0"); err == nil {
				t.Errorf("%s: %s and 1.0 are ordered %d", typ, version, order)
			}
		}
	}
}

// Two ranges contain all versions: each version is in one of them, or that is unknown. If the order
// of two versions is known, it is the same in both directions.
func FuzzVersions(f *testing.F) {
	for _, typ := range []string{"deb", "rpm", "apk", "npm", "pypi", "maven", "golang", "cargo", "nuget", "gem", "composer", "cran", "hackage", "pub", "hex", "generic"} {
		f.Add(typ, "1.2.3-1", "1:2.0~rc1")
		f.Add(typ, "v1.0.0+a", "99999999999999999999.1")
	}
	f.Add("maven", "", ".") // the library orders them in only one direction
	f.Fuzz(func(t *testing.T, typ, a, b string) {
		below, err := versions.Parse("<" + b)
		other, errOther := versions.Parse(">=" + b)
		if err == nil && errOther == nil && !strings.Contains(b, ",") {
			// otherwise it is several comparisons
			isBelow, err := below.Has(typ, a)
			isOther, errOther := other.Has(typ, a)
			if (err == nil) != (errOther == nil) || err == nil && isBelow == isOther {
				t.Errorf("%s %q: below %q %v, %v, and not below it %v, %v", typ, a, b, isBelow, err, isOther, errOther)
			}
		}
		order, err := versions.Compare(typ, a, b)
		back, errBack := versions.Compare(typ, b, a)
		if (err == nil) != (errBack == nil) {
			t.Errorf("%s: %q and %q: %v, and backward %v", typ, a, b, err, errBack)
		}
		if err == nil && (order < 0) != (back > 0) {
			t.Errorf("%s: %q and %q are ordered %d, and backward %d", typ, a, b, order, back)
		}
	})
}
