package reference_test

import (
	_ "crypto/sha512" // else go-digest, and so distribution's parser, knows sha256 only
	"errors"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	distribution "github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var seeds = []string{
	"", "busybox", "team/app", "docker.io/app", "docker.io/library/busybox:1", "docker.io/library/library/x", "index.docker.io/x", "index.docker.io/team/app", "registry-1.docker.io/app", "docker.io:443/app", "INDEX.docker.io/app",
	"quay.io/acme/web:v1", "quay.io/", "quay.io//app", "quay.io/app/", "Quay.io/app", "quay.io/App", "Quay.io/Acme/Web:V1", "UPPER/x", "LOCALHOST/x",
	"localhost", "localhost/app", "localhost:5000", "localhost:5000/a/b:c", "localhost:/app", "localhost:a/app", "10.0.0.1:5000/a/b/c", "host:99999/x", "host:/x", "host:0/x", "host:080/x", "a:1:2/x",
	"[::1]:5000/web", "[::1]/web:x", "[::1]", "[0:0::1]/x", "[FE80::1]/x", "[::ffff:1.2.3.4]/x", "[::0.0.0.0]/0", "[::ffff:102:304]/x", "[fe80::1%25eth0]/x", "[:]/x", "[1.2.3.4]/x", "[::1]x/y", "[[::1]]/x",
	"a-b.c/d_e/f__g/h--i/j.k", "a--b.c/d", "a..b/c", "-a.b/c", "a.b-/c", "a.b/-c", "a.b/c-", "a.b/c.", "a.b/c___d", "a.b/c:tag", "a.b/c:", "a_b.c/d", "a.b/c/d:5/e", "é.b/c", "a.b/é", "a.b/c:é", "xn--e1afmkfd.com/x:y", "a.b./c",
	"a.b/" + strings.Repeat("c", 255), "a.b/" + strings.Repeat("c", 256), strings.Repeat("c", 248), strings.Repeat("0", 64), "a.b/c:" + strings.Repeat("t", 128), "a.b/c:" + strings.Repeat("t", 129),
	"https://quay.io/acme/web", "a//b", "x:", "x@", "@", ":", "/", "x/../y", " x ", "x y", "x\n", "\xff/\xfe", "a.b/c:\xff",
	sha256, sha512, "sha256:abc", "a.b/c@" + sha256, "a.b/c@" + sha512, "a.b/c:d@" + sha256, "a.b/c@" + sha256 + "@" + sha256, "a.b/c@sha256:abc", "a.b/c@sha384:" + strings.Repeat("a", 96),
	"a.b/c@sha256:" + strings.Repeat("A", 64), "a.b/c@sha256:" + strings.Repeat("a", 63), "a.b/c@md5:" + strings.Repeat("a", 32), "a.b/c@" + sha256 + ":x", "a.b/c:@" + sha256,
}

// What is accepted is a fixed point: it reads back to itself, and it goes into the
// path of a URL as it is. What is refused is told why, and a suggestion is valid.
func FuzzParse(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := reference.Parse(s)
		if err != nil {
			var e *reference.Error
			if !errors.As(err, &e) || e.Problem == "" {
				t.Fatalf("%q: %v is no Error", s, err)
			}
			if ref != (reference.Reference{}) {
				t.Fatalf("%q: an error comes with %+v", s, ref)
			}
			if e.Suggestion != "" {
				if _, err := reference.Parse(e.Suggestion); err != nil {
					t.Fatalf("%q: the suggestion is no better: %v", s, err)
				}
			}
			return
		}
		for _, r := range []reference.Reference{ref, ref.Pulled(), ref.Bare(), ref.WithTag("x"), ref.WithDigest(sha512)} {
			if again, err := reference.Parse(r.String()); err != nil || again != r {
				t.Fatalf("%q is %q, which reads as %q, %v", s, r, again, err)
			}
		}
		if again, err := reference.ParseRepository(ref.Name()); err != nil || again != ref.Bare() {
			t.Fatalf("%q: its repository: %v, %v", s, again, err)
		}
		if host, err := reference.ParseHost(ref.Host); err != nil || host != ref.Host {
			t.Fatalf("%q: its host: %v, %v", s, host, err)
		}
		if strings.Contains("/"+ref.Repository+"/", "/../") || strings.ContainsAny(ref.Repository+ref.Tag, "?#%\\ ") || ref.Host == "" || ref.Repository == "" || strings.ToLower(ref.Host) != ref.Host {
			t.Fatalf("%q has unfit parts: %+v", s, ref)
		}
	})
}

// FuzzAgainstDistribution compares with github.com/distribution/reference, which
// Docker, containerd and Kubernetes use. Where it refuses, so do we. Where it
// accepts, we read the same, or differ for one of the reasons that differs lists.
func FuzzAgainstDistribution(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := reference.Parse(s)
		named, theirErr := distribution.ParseNormalizedNamed(s)
		if theirErr != nil {
			// Its host is in upper case and the path of no host that it knows
			// in lower case: it takes library/ off what it does not know.
			if err == nil && !hasUpperHost(s) {
				t.Fatalf("%q is read as %q, distribution says: %v", s, ref, theirErr)
			}
			return
		}
		host, path := distribution.Domain(named), distribution.Path(named)
		tag, digest := "", ""
		if tagged, ok := named.(distribution.Tagged); ok {
			tag = tagged.Tag()
		}
		if digested, ok := named.(distribution.Digested); ok {
			digest = digested.Digest().String()
		}
		if err != nil {
			if why := refused(s, host, path, tag, digest); why == "" {
				t.Fatalf("%q is refused (%v), distribution reads %s", s, err, named)
			}
			return
		}
		want := reference.Reference{Host: canonicalHost(host), Repository: path, Tag: tag, Digest: digest}
		if want.Host == reference.DockerHub && !strings.Contains(path, "/") {
			// Index.Docker.io/x, which distribution takes for another host
			want.Repository = "library/" + path
		}
		if ref != want {
			t.Fatalf("%q: %+v, distribution reads %+v", s, ref, want)
		}
	})
}

func hasUpperHost(s string) bool {
	host, _, ok := strings.Cut(s, "/")
	return ok && strings.ToLower(host) != host
}

func hasOtherName(s string) bool {
	host, _, _ := strings.Cut(s, "/")
	return strings.HasSuffix(host, ":443") || host == "registry-1.docker.io"
}

// refused is why we refuse what distribution accepts, "" for no good reason.
func refused(s, host, path, tag, digest string) string {
	inner, isIPv6 := strings.CutPrefix(host, "[")
	inner, _, _ = strings.Cut(inner, "]")
	port := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		port = host[i+1:]
	}
	number, err := strconv.ParseUint(port, 10, 16)
	address, notIPv6 := netip.ParseAddr(inner)
	switch {
	case len(s) > 1024:
		return "it is longer than any that can be meant"
	case !strings.ContainsAny(host, ".:") && !strings.EqualFold(host, "localhost"):
		return "its host, in upper case and without a dot, would be a path on Docker Hub in lower case"
	case port != "" && (err != nil || number == 0 || port[0] == '0'):
		return "there is no such port, or it has zeros before it, so that two forms are one"
	case isIPv6 && (notIPv6 != nil || address.Is4In6()):
		return "there is no such IPv6 address, or it is an IPv4 address in disguise"
	case strings.HasPrefix(digest, "sha384:"):
		return "sha384 is no registered algorithm of the OCI image specification"
	case host == reference.DockerHub && path == "library/sha256" && len(tag) == 64 && strings.Trim(tag, "0123456789abcdefABCDEF") == "":
		return "it is a digest whose repository is missing, and no tag of docker.io/library/sha256"
	case host == reference.DockerHub && path == "library/sha512" && len(tag) == 128 && strings.Trim(tag, "0123456789abcdef") == "":
		return "it is a digest whose repository is missing, and no tag of docker.io/library/sha512"
	case canonicalHost(host) == reference.DockerHub && len("library/"+path) > 255:
		return "its path is too long with library/ in front of it"
	}
	return ""
}

// canonicalHost is how we write a host that distribution keeps as it was written.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	if rest, ok := strings.CutSuffix(host, ":443"); ok && strings.ContainsAny(rest, ".:") || rest == "localhost" {
		host = rest
	}
	if host == "index.docker.io" || host == "registry-1.docker.io" {
		return reference.DockerHub
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, port, _ := strings.Cut(inner, "]")
		if address, err := netip.ParseAddr(inner); err == nil {
			return "[" + address.String() + "]" + port
		}
	}
	return host
}

// FuzzAgainstGoContainerRegistry compares with the parser of the client that the
// importer uses: it understands everything that we accept, and means the same by
// it. Its grammar is looser (a/../b, a_b.c/d, any port) and is not ours.
func FuzzAgainstGoContainerRegistry(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := reference.Parse(s)
		if err != nil {
			return
		}
		// As written it may have a host in upper case, which it keeps or takes for
		// a path; what it is given is the canonical form.
		theirs, err := name.ParseReference(ref.Pulled().String())
		if err != nil {
			t.Fatalf("%q is %q, go-containerregistry says: %v", s, ref, err)
		}
		host := theirs.Context().RegistryStr()
		if host == name.DefaultRegistry {
			host = reference.DockerHub // what it calls index.docker.io
		}
		if host != ref.Host || theirs.Context().RepositoryStr() != ref.Repository || theirs.Identifier() != ref.Pulled().Identifier() {
			t.Fatalf("%q: %+v, go-containerregistry reads %s of %s in %s", s, ref, theirs.Identifier(), theirs.Context().RepositoryStr(), host)
		}
		// What people write means the same to it, if it can be read at all. It keeps port 443, and
		// the host of Docker Hub's API.
		if asWritten, err := name.ParseReference(s); err == nil && !hasUpperHost(s) && !strings.Contains(s, "[") && !hasOtherName(s) {
			if asWritten.Name() != theirs.Name() {
				t.Fatalf("%q: we ask for %s, go-containerregistry for %s", s, theirs.Name(), asWritten.Name())
			}
		}
	})
}

// FuzzOneForm writes the host of a reference in every way that means the same host, and expects one
// form; and in ways that mean another host, and expects another form. Reading a form gives that
// form again.
func FuzzOneForm(f *testing.F) {
	for _, seed := range seeds {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ref, err := reference.Parse(s)
		if err != nil || len(s) > 900 { // other forms may be longer, and too long
			return
		}
		rest := strings.TrimPrefix(ref.String(), ref.Host+"/")
		hosts := append([]string{ref.Host}, reference.OtherNames(ref.Host)...)
		if ref.Host == reference.DockerHub {
			if short, ok := strings.CutPrefix(rest, "library/"); ok && !strings.Contains(short, "/") {
				for _, host := range hosts {
					if again, err := reference.Parse(host + "/" + short); err != nil || again != ref {
						t.Fatalf("%s/%s is %q, %v; want %q", host, short, again, err, ref)
					}
				}
			}
		}
		hasPort := strings.LastIndexByte(ref.Host, ':') > strings.LastIndexByte(ref.Host, ']')
		for _, host := range hosts {
			ways := []string{host, strings.ToUpper(host), strings.ToUpper(host[:1]) + host[1:]}
			if inner, ok := strings.CutPrefix(host, "["); ok {
				address, port, _ := strings.Cut(inner, "]")
				ways = append(ways, "["+netip.MustParseAddr(address).StringExpanded()+"]"+port)
			}
			for _, way := range ways {
				all := []string{way}
				if !hasPort && !strings.HasSuffix(way, ":443") {
					all = append(all, way+":443")
				}
				for _, way := range all {
					if again, err := reference.Parse(way + "/" + rest); err != nil || again != ref {
						t.Fatalf("%s/%s is %q, %v; want %q", way, rest, again, err, ref)
					}
					if again, err := reference.ParseHost(way); err != nil || again != ref.Host {
						t.Fatalf("%s is %q, %v; want %q", way, again, err, ref.Host)
					}
				}
			}
		}
		if !hasPort {
			for _, port := range []string{":80", ":4430", ":44", ":5000"} {
				if other, err := reference.Parse(ref.Host + port + "/" + rest); err != nil || other.Host != ref.Host+port {
					t.Fatalf("%s%s is %q, %v", ref.Host, port, other, err)
				}
			}
		}
		if name, _, ok := strings.Cut(ref.Host, ":443"); ok && name+":443" == ref.Host && strings.ContainsAny(name, ".]") {
			t.Fatalf("%q is %q, which has the default port", s, ref)
		}
	})
}
