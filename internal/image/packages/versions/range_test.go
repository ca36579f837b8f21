package versions_test

import (
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/packages/versions"
)

func TestRanges(t *testing.T) {
	t.Parallel()
	const yes, no, unknown = "yes", "no", "unknown"
	for _, tc := range []struct{ typ, version, in, want string }{
		{"deb", "3.0.11-1~deb12u2", "<3.0.11-1", yes}, // a tilde comes before nothing
		{"deb", "1:1.0", ">9.0", unknown},             // nobody thinks of epochs
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
		{"generic", "1.0", "2.0", no},  // no ecosystem takes these for one
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

// A version is in one of two ranges that leave nothing out, or it is unknown. Where the order of
// two versions is known, it is the same in both directions.
func FuzzVersions(f *testing.F) {
	for _, typ := range []string{"deb", "rpm", "apk", "npm", "pypi", "maven", "golang", "cargo", "nuget", "gem", "composer", "generic"} {
		f.Add(typ, "1.2.3-1", "1:2.0~rc1")
		f.Add(typ, "v1.0.0+a", "99999999999999999999.1")
	}
	f.Add("maven", "", ".") // which its library orders in one direction alone
	f.Fuzz(func(t *testing.T, typ, a, b string) {
		below, err := versions.Parse("<" + b)
		other, errOther := versions.Parse(">=" + b)
		if err == nil && errOther == nil && !strings.Contains(b, ",") {
			// else they are several comparisons
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
