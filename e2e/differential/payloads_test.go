//go:build containers_image_openpgp

package differential

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// object is JSON of which anything may be wrong: members repeat, names and values are as they are
// written.
type object struct{ members []member }

type member struct {
	name  string // with its quotes
	value any    // *object, or JSON as a string
}

func (o *object) String() string {
	var members []string
	for _, m := range o.members {
		members = append(members, fmt.Sprint(m.name, ":", m.value))
	}
	return "{" + strings.Join(members, ",") + "}"
}

// all are o and the objects in it.
func (o *object) all() []*object {
	all := []*object{o}
	for _, m := range o.members {
		if inner, ok := m.value.(*object); ok {
			all = append(all, inner.all()...)
		}
	}
	return all
}

func quoted(s string) string { return `"` + s + `"` }

// document is what a signer signs.
func document(typ, name, digest string) *object {
	return &object{[]member{
		{`"critical"`, &object{[]member{
			{`"identity"`, &object{[]member{{`"docker-reference"`, quoted(name)}}}},
			{`"image"`, &object{[]member{{`"docker-manifest-digest"`, quoted(digest)}}}},
			{`"type"`, quoted(typ)},
		}}},
		{`"optional"`, &object{[]member{{`"creator"`, `"tests"`}, {`"timestamp"`, "1458239713"}}}},
	}}
}

// values are what may stand in the place of any other.
var values = []string{
	"null", "true", "0", "-0", "1.5", "1e3", "1e400", "1458239713.0", "9223372036854775807", "4611686018427387904", "-1", `""`, `"x"`, `"\u0000"`, `"\ud800"`, "\"\xff\"", "{}", "[]", `[{"a":1,"a":2}]`,
	`{"a":{"b":null}}`, `{"a":1,"a":2}`, `{"docker-reference":"registry.example.com/demo/app:v1"}`, "nul", "01", "'x'",
}

// mutate makes one change, or a few, as an attacker or a careless tool could before it is signed.
func mutate(r *rand.Rand, doc *object, names, digests []string) string {
	pick := func(from []string) string { return from[r.IntN(len(from))] }
	for range 1 + r.IntN(2)*r.IntN(2) {
		all := doc.all()
		o := all[r.IntN(len(all))]
		if len(o.members) == 0 {
			continue
		}
		i := r.IntN(len(o.members))
		m := &o.members[i]
		switch r.IntN(14) {
		case 0:
			o.members = slices.Delete(slices.Clone(o.members), i, i+1)
		case 1: // twice, the same or another
			twin := *m
			if r.IntN(2) == 0 {
				twin.value = pick(values)
			}
			o.members = slices.Insert(slices.Clone(o.members), r.IntN(len(o.members)+1), twin)
		case 2: // another name, which may be the same in JSON, or nearly
			name := cmp.Or(strings.Trim(m.name, `"`), "critical")
			m.name = quoted(pick([]string{
				strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:], fmt.Sprintf(`\u%04x`, name[0]) + name[1:], strings.ReplaceAll(name, "k", "\u212a"), strings.ReplaceAll(name, "s", "\u017f"), name + " ", name + `\u0000`, "other", "",
			}))
		case 3, 4:
			m.value = pick(values)
		case 5: // one more
			o.members = append(slices.Clone(o.members), member{quoted(pick([]string{"extra", "Critical", "type", "creator", "timestamp", "a.b", ""})), pick(values)})
		case 6:
			r.Shuffle(len(o.members), func(i, j int) { o.members[i], o.members[j] = o.members[j], o.members[i] })
		case 7, 8, 9, 10:
			for _, o := range all {
				for i := range o.members {
					if o.members[i].name == `"docker-reference"` {
						o.members[i].value = quoted(pick(names[:[]int{len(names), 10}[r.IntN(2)]]))
					}
				}
			}
		case 11, 12:
			for _, o := range all {
				for i := range o.members {
					if o.members[i].name == `"docker-manifest-digest"` {
						o.members[i].value = quoted(pick(digests[:[]int{len(digests), 2}[r.IntN(2)]]))
					}
				}
			}
		case 13:
			m.value = pick([]string{"1458239713.5", "1e18", "1e19", "-1e19", "12345678901234567890", strconv.Itoa(r.Int()), `"1458239713"`, `"a string"`})
		}
	}
	text := doc.String()
	switch r.IntN(20) {
	case 0:
		return text + pick([]string{" ", "\n", "x", text, "\x00", "}", "//", ","})
	case 1:
		return pick([]string{" \t\r\n", "\ufeff", "x", "\x00", "[", "/**/"}) + text
	case 2: // any one byte
		b := []byte(text)
		b[r.IntN(len(b))] = byte(r.IntN(256))
		return string(b)
	case 3:
		return text[:r.IntN(len(text))]
	case 4:
		return strings.ReplaceAll(text, ",", pick([]string{" , ", ",\n\t", ",,"}))
	}
	return text
}

// namesLike are names that are, or look like, those of an image.
func namesLike(intended string) []string {
	name, _, _ := strings.Cut(intended, "@")
	tag := ""
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name, tag = name[:i], name[i:]
	}
	host, path, _ := strings.Cut(name, "/")
	last := path[strings.LastIndexByte(path, '/')+1:]
	zero := "@sha256:" + strings.Repeat("0", 64)
	return []string{
		intended, name, name + ":v1", name + ":v2", name + ":latest", name + tag + zero, name + ":v1" + zero, name + ":v2" + zero, name + zero, name + "@sha256:" + strings.Repeat("0", 63), name + "@sha512:" + strings.Repeat("0", 128), name + "@sha384:" + strings.Repeat("0", 96),
		name + "@md5:" + strings.Repeat("0", 32), strings.ToUpper(host) + "/" + path + ":v1", strings.ToUpper(host[:1]) + host[1:] + "/" + path + ":v1", host + "/" + strings.ToUpper(path) + ":v1", host + ":443/" + path + ":v1", host + ":5000/" + path + ":v1", host + "./" + path + ":v1",
		"docker://" + name + ":v1", "https://" + name, "//" + name, name + "/", name + "/:v1", name + ":", name + "@", name + ":V1", name + ":v1 ", " " + name + ":v1", name + "x:v1", name + "/x:v1", host + "/x/../" + path + ":v1", host + "//" + path + ":v1",
		path + ":v1", path, last, last + ":v1", "library/" + last + ":v1", "docker.io/" + last + ":v1", "index.docker.io/" + path + ":v1", "Docker.io/" + path + ":v1", "registry-1.docker.io/" + path + ":v1", "docker.io/library/" + last + ":v1", "docker.io:443/" + path,
		"vendor.example.com/" + path + ":v1", "vendor.example.com/" + last + ":v1", "vendor.example.com/" + last, "localhost/" + path + ":v1", "localhost:5000/" + path + ":v1", "LOCALHOST/" + path, "[::1]:5000/" + path + ":v1", "[0:0::1]:5000/" + path + ":v1", "127.0.0.1/" + path, "UPPER", "", ":", "@", "/",
		strings.Repeat("0", 64), host, strings.Repeat("a/", 130) + "b:v1", name + ":" + strings.Repeat("t", 128), name + ":" + strings.Repeat("t", 129), name + `\u0000`, name + `\/x:v1`, strings.Replace(name, "/", `\/`, 1) + ":v1", `\u0072egistry.example.com/` + path + ":v1", "é.example.com/" + path,
	}
}
