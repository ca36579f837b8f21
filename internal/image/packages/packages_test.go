package packages_test

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var debian = packages.Package{Name: "openssl", Version: "3.0.11-1", PURL: "pkg:deb/debian/openssl@3.0.11-1?arch=amd64&distro=debian-12", License: "Apache-2.0"}

func TestQueries(t *testing.T) {
	t.Parallel()
	babel := packages.Package{Name: "@babel/core", Version: "7.1.0", PURL: "pkg:npm/%40babel/core@7.1.0"}
	log4j := packages.Package{Name: "log4j-core", Version: "2.14.1", PURL: "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1"}
	net := packages.Package{Name: "golang.org/x/net", Version: "v0.1.0", PURL: "pkg:golang/golang.org/x/net@v0.1.0"}
	django := packages.Package{Name: "Django", Version: "4", PURL: "pkg:PyPI/Django@4"}
	bare := packages.Package{Name: "libstdc++6"}
	for _, tc := range []struct {
		query string
		in    packages.Package
		want  bool
	}{
		{"openssl", debian, true},
		{"OpenSSL", debian, false},
		{"openssl-libs", debian, false},
		{"debian/openssl", debian, false},
		{"pkg:deb/debian/openssl", debian, true},
		{"pkg:deb/debian/openssl@3.0.11-1", debian, true},
		{"pkg:deb/debian/openssl@3.0.11-2", debian, false},
		{"pkg:deb/debian/openssl?arch=amd64", debian, true},
		{"pkg:deb/debian/openssl?arch=arm64", debian, false},
		{"pkg:deb/ubuntu/openssl", debian, false},
		{"pkg:apk/debian/openssl", debian, false},
		{"@babel/core", babel, true},
		{"core", babel, false},
		{"pkg:npm/%40babel/core", babel, true},
		{"log4j-core", log4j, true},
		{"org.apache.logging.log4j:log4j-core", log4j, true},
		{"golang.org/x/net", net, true},
		{"net", net, false},
		{"django", django, true},
		{"Django", django, true},
		{"pkg:pypi/django", django, true},
		{"pkg:pypi/Django@4", django, true},
		{"djang", django, false},
		{"libstdc++6", bare, true},
		{"pkg:deb/debian/libstdc%2B%2B6", bare, false},
	} {
		q, err := packages.ParseQuery(tc.query)
		if err != nil {
			t.Fatal(tc.query, err)
		}
		if q.String() != tc.query {
			t.Errorf("%s is written as %s", tc.query, q)
		}
		if got := q.Matches(&tc.in); got != tc.want {
			t.Errorf("%s in %v: %v", tc.query, tc.in, got)
		}
		names, err := packages.Names(&packages.ImagePackages{Sources: []packages.Source{{Packages: []packages.Package{tc.in}}}})
		if err != nil {
			t.Fatal(err)
		}
		if tc.want && !slices.Contains(names, q.Key()) { // the index would not find it
			t.Errorf("%s: the key %q is not among %q", tc.query, q.Key(), names)
		}
	}
	for _, text := range []string{"", "pkg:", "pkg:deb", "pkg:deb/debian/", strings.Repeat("a", 600)} {
		if _, err := packages.ParseQuery(text); err == nil {
			t.Errorf("%.20q is taken for a package", text)
		}
	}
}

// A query keeps its text, which may be shorter than the URL in canonical form.
func TestQueryKeepsItsText(t *testing.T) {
	t.Parallel()
	text := "pkg:npm/" + strings.Repeat("(", packages.MaxPURL/2)
	q, err := packages.ParseQuery(text)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := packages.ParseQuery(q.String()); err != nil || again.Key() != q.Key() {
		t.Error(again, err)
	}
}

// The packages of an image are known if an SBOM was read and no document was left out.
func TestKnown(t *testing.T) {
	t.Parallel()
	read, vex, unread, part := packages.Source{Format: packages.FormatSPDX}, packages.Source{Format: packages.FormatOpenVEX}, packages.Source{Problem: "damaged"}, packages.Source{Format: packages.FormatCycloneDX, Problem: "too long"}
	for name, tc := range map[string]struct {
		sources []packages.Source
		want    bool
	}{
		"nothing": {nil, false}, "an SBOM": {[]packages.Source{vex, read}, true}, "VEX alone": {[]packages.Source{vex}, false},
		"unread": {[]packages.Source{read, unread}, false}, "a part": {[]packages.Source{part, read}, false},
	} {
		if list := (&packages.ImagePackages{Sources: tc.sources}); list.Known() != tc.want {
			t.Errorf("%s: known is %t", name, list.Known())
		}
	}
	for _, tc := range []struct {
		images, lists int64
		partly        bool
		want          []string
	}{
		{9, 9, false, nil},
		{9, 7, false, []string{"no SBOM was read for 2 of 9 images"}},
		{9, 7, true, []string{"no SBOM was read for 2 of 9 images", "of others only a part"}},
		{7, 7, true, []string{"of some images only a part", "see problem in imagepackages"}},
	} {
		text := packages.Unread(tc.images, tc.lists, tc.partly)
		if (text == "") != (tc.want == nil) {
			t.Errorf("%v: %q", tc, text)
		}
		for _, part := range tc.want {
			if !strings.Contains(text, part) {
				t.Errorf("%q lacks %q", text, part)
			}
		}
	}
}

func TestEpochs(t *testing.T) {
	t.Parallel()
	p := packages.Package{Name: "bash", Version: "5.1.8-9.el9", PURL: "pkg:rpm/redhat/bash@5.1.8-9.el9?epoch=1"}
	if typ, version := p.Comparable(); typ != "rpm" || version != "1:5.1.8-9.el9" {
		t.Error(typ, version)
	}
}

func TestPacked(t *testing.T) {
	t.Parallel()
	all := []packages.Package{debian, {Name: "bash"}}
	packed, err := packages.Pack(all)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := packages.Unpack(packed); err != nil || !slices.Equal(again, all) {
		t.Error(again, err)
	}
	if _, err := packages.Pack([]packages.Package{{Name: "a\tb"}}); err == nil {
		t.Error("a tab is packed")
	}
	if packed, err := packages.Pack(nil); packed != nil || err != nil {
		t.Error(packed, err)
	}
}

// A list that unpacks to gigabytes is refused, and so is one of a million packages.
func TestAttackPackedBomb(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"a long line":        strings.Repeat("a", 17<<20),
		"a million packages": strings.Repeat("a\t\t\t\n", 1_000_000),
	} {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if all, err := packages.Unpack(b.Bytes()); err == nil || all != nil {
			t.Errorf("%s: %d packages", name, len(all))
		}
	}
}

// Unpacked packages can be packed and unpacked again without change. With an error, there are no
// packages.
func FuzzUnpack(f *testing.F) {
	for _, all := range [][]packages.Package{{debian}, {{Name: "a"}, {Name: "b", Version: "1"}}} {
		packed, err := packages.Pack(all)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(packed)
	}
	f.Add([]byte("no gzip"))
	f.Fuzz(func(t *testing.T, packed []byte) {
		all, err := packages.Unpack(packed)
		if err != nil {
			if all != nil {
				t.Error("packages beside an error")
			}
			return
		}
		again, err := packages.Pack(all)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := packages.Unpack(again); err != nil || !slices.Equal(back, all) {
			t.Error(back, all, err)
		}
	})
}

// If a query matches a package, the index has the package under the query's key.
func FuzzQuery(f *testing.F) {
	f.Add("openssl", "openssl", "pkg:deb/debian/openssl@1?arch=a")
	f.Add("pkg:npm/%40babel/core", "@babel/core", "pkg:npm/%40babel/core@7")
	f.Add("org:a", "a", "pkg:maven/org/a@1")
	f.Fuzz(func(t *testing.T, query, name, purl string) {
		q, err := packages.ParseQuery(query)
		if err != nil {
			return
		}
		p := packages.Package{Name: name, PURL: purl}.Bounded()
		if p != p.Bounded() {
			t.Errorf("%q is not bounded", p)
		}
		names, err := packages.Names(&packages.ImagePackages{Sources: []packages.Source{{Packages: []packages.Package{p}}}})
		if err != nil {
			t.Fatal(err)
		}
		if q.Matches(&p) && !slices.Contains(names, q.Key()) {
			t.Errorf("%q matches %q, and its key %q is not among %q", query, p, q.Key(), names)
		}
		if q.Key() == name && query == name && name != "" && p.Name == name && !q.Matches(&p) {
			t.Errorf("%q does not match %q", query, p)
		}
	})
}

func TestVouched(t *testing.T) {
	t.Parallel()
	const digest, index = "sha256:1111111111111111111111111111111111111111111111111111111111111111", "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	const statement = "sha256:5555555555555555555555555555555555555555555555555555555555555555"
	// signed returns an image whose verdicts name the signers of the statement in each repository.
	signed := func(trusted, forImage corev1.ConditionStatus, vouched string) *imagev1.Image {
		return &imagev1.Image{
			ObjectMeta: metav1.ObjectMeta{Name: digest, Annotations: map[string]string{"tidewaiter.dev/verdicts": vouched}},
			Signatures: []imagev1.ImageSignature{{
				ObjectMeta: metav1.ObjectMeta{Name: digest + "@s"},
				IssuedTo:   &imagev1.SignatureSubject{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "ann@example.com"}},
				Conditions: []imagev1.SignatureCondition{{Type: "Trusted", Status: trusted, Reason: "Why"}, {Type: "ForImage", Status: forImage, Reason: "Other"}},
			}},
		}
	}
	judged := func(verdict string) *imagev1.Image {
		return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: index, Annotations: map[string]string{
			"tidewaiter.dev/verdicts": fmt.Sprintf(`{"example.com/app":{"verified":%q,"signers":["bob"]},"example.com/other":{"verified":"False"}}`, verdict),
		}}}
	}
	const (
		here      = `{"example.com/app":{"verified":"True","vouches":{"` + statement + `":"ann@example.com"}},"example.com/other":{"verified":"True"}}`
		elsewhere = `{"example.com/app":{"verified":"True"},"example.com/other":{"verified":"True","vouches":{"` + statement + `":"ann@example.com"}}}`
		nobody    = `{"example.com/app":{"verified":"True"}}`
		ofTag     = `{"example.com/app":{"verified":"True"},"example.com/app:v1":{"verified":"True","vouches":{"` + statement + `":"tagger"}}}`
	)
	document := packages.Source{Repository: "example.com/app", Signed: true, Signature: "s", DerivedFrom: statement}
	listed := packages.Source{Repository: "example.com/app", Index: index, Blob: statement, DerivedFrom: statement}
	other := document
	other.DerivedFrom = index // not the bytes that were judged
	unread, written := document, listed
	unread.DerivedFrom, written.DerivedFrom = "", ""
	lost := document
	lost.Signature = "t"
	const away = "signed in another repository, and not in example.com/app by a signer whom its policies trust"
	const notRead = "the server has not read it itself: import the image again with the server"
	for name, tc := range map[string]struct {
		source packages.Source
		image  *imagev1.Image
		index  *imagev1.Image
		asked  string
		want   packages.Voucher
	}{
		"trusted":               {document, signed("True", "True", here), nil, "", packages.Voucher{Verified: "True", By: "ann@example.com"}},
		"trusted here alone":    {document, signed("False", "True", here), nil, "", packages.Voucher{Verified: "True", By: "ann@example.com"}},
		"trusted elsewhere":     {document, signed("True", "True", elsewhere), nil, "", packages.Voucher{Verified: "False", By: "ann@example.com", Reason: away}},
		"trusted for a tag":     {document, signed("True", "True", ofTag), nil, "example.com/app:v1", packages.Voucher{Verified: "True", By: "tagger"}},
		"and not for another":   {document, signed("True", "True", ofTag), nil, "example.com/app:v2", packages.Voucher{Verified: "False", By: "ann@example.com", Reason: away}},
		"no policy":             {document, signed("True", "True", `{}`), nil, "example.com/app:v2", packages.Voucher{Verified: "Unknown", Reason: "no policy covers example.com/app:v2"}},
		"no place for verdicts": {document, signed("Unknown", "Unknown", `{"*":{"verified":"Unknown","reason":"NotJudged"}}`), nil, "", packages.Voucher{Verified: "Unknown", By: "ann@example.com", Reason: "Why"}},
		"not trusted":           {document, signed("False", "True", nobody), nil, "", packages.Voucher{Verified: "False", By: "ann@example.com", Reason: "Why"}},
		"other image":           {document, signed("True", "False", nobody), nil, "", packages.Voucher{Verified: "False", By: "ann@example.com", Reason: "Other"}},
		"not judged":            {document, signed("Unknown", "Unknown", nobody), nil, "", packages.Voucher{Verified: "Unknown", By: "ann@example.com", Reason: "Why"}},
		"of which image":        {document, signed("True", "Unknown", nobody), nil, "", packages.Voucher{Verified: "Unknown", By: "ann@example.com", Reason: "Other"}},
		"other bytes":           {other, signed("True", "True", here), nil, "", packages.Voucher{Verified: "False", By: "ann@example.com", Reason: away}},
		"the writer's word":     {unread, signed("True", "True", here), nil, "", packages.Voucher{Verified: "Unknown", Reason: notRead}},
		"not kept":              {lost, signed("True", "True", here), nil, "", packages.Voucher{Verified: "Unknown", Reason: "its signature is not kept, so nobody judged it"}},
		"too large":             {packages.Source{Signed: true}, signed("True", "True", here), nil, "", packages.Voucher{Verified: "Unknown", Reason: "it is signed, and too large or one of too many to be judged"}},
		"unsigned":              {packages.Source{}, signed("True", "True", here), nil, "", packages.Voucher{Verified: "Unsigned", Reason: "nobody signed it"}},
		"index":                 {listed, signed("True", "True", here), judged("True"), "", packages.Voucher{Verified: "True", By: "bob"}},
		"index elsewhere":       {listed, signed("True", "True", here), judged("True"), "example.com/other:v1", packages.Voucher{Verified: "False", Reason: "the index " + index + ", which lists it, is False"}},
		"index, uncovered":      {listed, signed("True", "True", here), judged("True"), "example.com/third:v1", packages.Voucher{Verified: "Unsigned", Reason: "no policy demands a signature of the index " + index + ", which lists it"}},
		"index, writer's word":  {written, signed("True", "True", here), judged("True"), "", packages.Voucher{Verified: "Unknown", Reason: notRead}},
		"index is false":        {listed, signed("True", "True", here), judged("False"), "", packages.Voucher{Verified: "False", By: "bob", Reason: "the index " + index + ", which lists it, is False"}},
		"index is away":         {listed, signed("True", "True", here), nil, "", packages.Voucher{Verified: "Unknown", Reason: "the index " + index + ", which lists it, cannot be read"}},
	} {
		asked, err := reference.Parse(cmp.Or(tc.asked, "example.com/app@"+digest))
		if err != nil {
			t.Fatal(err)
		}
		vouched := func() packages.Voucher {
			return tc.source.Vouched(tc.image, asked, func(string) (*imagev1.Image, error) { return tc.index, nil })
		}
		if got := vouched(); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
		for i := range tc.image.Signatures { // any client may write conditions, in any order
			slices.Reverse(tc.image.Signatures[i].Conditions)
		}
		if got := vouched(); got != tc.want {
			t.Errorf("%s with its conditions in another order: %+v, want %+v", name, got, tc.want)
		}
	}
}
