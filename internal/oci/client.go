// Package oci reads from one repository of one registry, by the OCI distribution
// specification (https://github.com/opencontainers/distribution-spec). It bounds what it
// reads; the caller must check it. The transport decides who may be asked, how often and
// with which credentials.
//
// go-containerregistry's package remote is not used for reading: it reads the first
// page of referrers only, takes any unusual Content-Type for a missing API, and reads
// up to 100 MiB.
//
// The package is a leaf: importing images and finding their signatures both use it.
package oci

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// Client reads from one repository. It is safe for concurrent use.
type Client struct {
	base       *url.URL // scheme and host
	repository string
	http       *http.Client
}

// New makes a Client of a repository. transport does the authentication.
func New(scheme, host, repository string, transport http.RoundTripper) *Client {
	return &Client{base: &url.URL{Scheme: scheme, Host: host}, repository: repository, http: &http.Client{Transport: transport}}
}

// Path returns the path of something in the repository, such as manifests/latest, for Do
// and Read.
func (c *Client) Path(elem string) string { return "/v2/" + c.repository + "/" + elem }

// Do sends a request for a path on the registry, which may have a query, and returns an
// answer with status 200. Any other status is a *transport.Error. No error holds a query:
// in the target of a redirect it may be a secret.
func (c *Client) Do(ctx context.Context, method, path, accept string) (*http.Response, error) {
	resp, err := c.send(ctx, method, path, accept)
	if err != nil && resp != nil {
		resp.Body.Close()
		resp = nil
	}
	return resp, err
}

// url returns the URL of a path on the registry. A path may begin with two slashes, which
// in a relative reference (RFC 3986 §4.2) would name another host.
func (c *Client) url(path string) (*url.URL, error) {
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, err
	}
	u.Scheme, u.User, u.Host = c.base.Scheme, nil, c.base.Host
	return u, nil
}

func (c *Client) send(ctx context.Context, method, path, accept string) (*http.Response, error) {
	u, err := c.url(path)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := c.http.Do(req)
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, u.Path, err)
	}
	if err := transport.CheckError(resp, http.StatusOK); err != nil {
		return resp, fmt.Errorf("%s %s: %w", method, u.Path, err)
	}
	return resp, nil
}

// TooLargeError says that an answer has more bytes than the caller reads.
type TooLargeError struct {
	// Size is what the answer declares; 0 if it declares none.
	Size, Limit int64
	cause       error
}

func (e *TooLargeError) Error() string {
	if e.Size > 0 {
		return fmt.Sprintf("%d bytes, at most %d are read", e.Size, e.Limit)
	}
	return fmt.Sprintf("more than %d bytes", e.Limit)
}

// Unwrap returns the error of a transport that has the same bound, or nil.
func (e *TooLargeError) Unwrap() error { return e.cause }

// Read is Do with GET for an answer of at most limit bytes: a longer one is a
// *TooLargeError. It returns the header of every answer, also with an error.
func (c *Client) Read(ctx context.Context, path, accept string, limit int64) ([]byte, http.Header, error) {
	resp, err := c.send(ctx, http.MethodGet, path, accept)
	if resp == nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if err != nil {
		return nil, resp.Header, err
	}
	if resp.ContentLength > limit {
		return nil, resp.Header, &TooLargeError{Size: resp.ContentLength, Limit: limit}
	}
	body, err := ReadBody(resp, limit+1)
	if n := int64(len(body)); n > limit || err != nil && n == limit {
		return nil, resp.Header, &TooLargeError{Limit: limit, cause: err}
	}
	return body, resp.Header, err
}

// maxAhead bounds the memory for a body before it is read, in bytes.
const maxAhead = 64 << 10

// ReadBody reads an answer's body to its end, or limit bytes of it. It makes room for as many bytes
// as the answer declares, so that a small body takes one read.
func ReadBody(resp *http.Response, limit int64) ([]byte, error) {
	var body bytes.Buffer
	body.Grow(int(min(max(resp.ContentLength, 0), limit, maxAhead)) + bytes.MinRead)
	_, err := body.ReadFrom(io.LimitReader(resp.Body, limit))
	return body.Bytes(), err
}

// Next returns the path of the page after the one at path, by the Link header of its
// answer (RFC 8288), or "". elsewhere is set when that page is not on the registry.
//
// If the link has a query and is on the registry's host, Next takes only the query: a next page is
// at the URL that was asked. Artifactory leaves out the part of the path that names its own
// repository, Nexus adds one (https://github.com/renovatebot/renovate/issues/15030,
// https://github.com/sonatype/nexus-public/issues/1011), and what stands behind a proxy links to
// http or to a port of its own.
func (c *Client) Next(header http.Header, path string) (next string, elsewhere bool) {
	target, ok := nextTarget(header)
	if !ok {
		return "", false
	}
	from, err := c.url(path)
	if err != nil {
		return "", true
	}
	to, err := from.Parse(target)
	if err == nil && to.RawQuery != "" && to.Hostname() == from.Hostname() {
		from.RawQuery = to.RawQuery
		return from.RequestURI(), false
	}
	if err != nil || to.Host != c.base.Host || to.Scheme != c.base.Scheme {
		return "", true
	}
	return to.RequestURI(), false
}

// LinksNext reports whether an answer links to a next page, wherever that is.
func LinksNext(header http.Header) bool {
	_, links := nextTarget(header)
	return links
}

// nextTarget returns the target of the link to the next page.
func nextTarget(header http.Header) (target string, ok bool) {
	for _, value := range links(header) {
		target, params, closed := strings.Cut(value, ">")
		target, opened := strings.CutPrefix(strings.TrimSpace(target), "<")
		rel := strings.ReplaceAll(strings.ToLower(strings.ReplaceAll(params, " ", "")), `"`, "")
		// Some registries leave rel out.
		if closed && opened && (!strings.Contains(rel, ";rel=") || strings.Contains(rel+";", ";rel=next;")) {
			return target, true
		}
	}
	return "", false
}

// betweenLinks is between two links of one header, and not within one.
var betweenLinks = regexp.MustCompile(`,\s*<`)

// links returns the links of an answer. A header may have several: the page before, and the next.
func links(header http.Header) (all []string) {
	for _, value := range header.Values("Link") {
		for _, at := range slices.Backward(betweenLinks.FindAllStringIndex(value, maxLinks)) {
			all = append(all, value[at[1]-1:])
			value = value[:at[0]]
		}
		all = append(all, value)
	}
	return all
}

// maxLinks bounds the links that are read of a header.
const maxLinks = 16

// Pages finds the pages of a list. Make one with [Client.List], read the page at Path, and pass it
// to Read, until Path is empty. How many pages are read is the caller's to bound.
//
// Pages are linked. Some registries do not link them, as older specifications did not say it: their
// clients go on with last=, the last name that they have met. Pages does so where a list without
// links may be cut.
type Pages struct {
	base   *Client // for its URL
	path   string
	asked  int // names on a page; 0 if that is the registry's to say
	linked bool
	guess  bool
	// the names of the page before, as sorted hashes, if this one is a guess
	before []uint64
	// hashes of the paths of all pages that were read, and of their names
	readPaths, readNames map[uint64]bool
	seed                 maphash.Seed
	cut                  string
}

// List begins to read a list at a path, which may have a query. asked is how many names the query
// asks for; 0 if it does not say.
func (c *Client) List(path string, asked int) *Pages {
	return &Pages{
		base: &Client{base: c.base}, path: path, asked: asked,
		readPaths: map[uint64]bool{}, readNames: map[uint64]bool{}, seed: maphash.MakeSeed(),
	}
}

// Path is where the next page is; "" if there is none.
func (p *Pages) Path() string { return p.path }

// IsGuess reports whether the registry has not said that there is a page at Path. If it cannot be
// read, call End.
func (p *Pages) IsGuess() bool { return p.guess }

// Cut says why there may be more names than the list has shown: it ended with as many as were asked
// for, and the registry did not go on when it was asked to, or it led back to a page that was read.
// It is "" for a list that ended as lists end.
func (p *Pages) Cut() string { return p.cut }

// End ends the list before a guess.
func (p *Pages) End() {
	if p.path = ""; p.guess && len(p.before) == p.asked {
		p.cut = fmt.Sprintf("a page has exactly as many names as were asked for (%d), links to no more, and the list does not go on after the last", p.asked)
	}
}

// Read takes the names of the page at Path, in their order, with the header of its answer. isNew
// says that they are to be taken, and not a page that was read once more. elsewhere is set when the
// next page is not on the registry; then the list ends. It ends, too, where a page repeats: a link
// may lead back, or to the same names for ever.
func (p *Pages) Read(header http.Header, names []string) (isNew, elsewhere bool) {
	if p.guess && len(names) > 0 && !slices.ContainsFunc(names, p.isAfter) {
		p.End() // it does not know what it was asked
		return false, false
	}
	here := p.path
	p.readPaths[p.hash(here)] = true
	if len(names) > 0 {
		page := p.hash(names...)
		if p.readNames[page] {
			p.leadBack()
			return false, false
		}
		p.readNames[page] = true
	}
	p.path, elsewhere = p.base.Next(header, here)
	p.linked, p.guess, p.before = p.linked || p.path != "" || elsewhere, false, nil
	// One page with more names than were asked for is from a registry that knows no pages.
	if n := len(names); !p.linked && n > 0 && (n == p.asked || isPageSize(n)) && (p.asked == 0 || n <= p.asked) {
		p.guess, p.path = true, withLast(here, names[n-1])
		for _, name := range names {
			p.before = append(p.before, p.hash(name))
		}
		slices.Sort(p.before)
	}
	if p.readPaths[p.hash(p.path)] {
		p.leadBack()
	}
	return true, elsewhere
}

// leadBack ends the list where a page repeats.
func (p *Pages) leadBack() { p.path, p.cut = "", "a page leads back to one that was read" }

func (p *Pages) hash(texts ...string) uint64 {
	var h maphash.Hash
	h.SetSeed(p.seed)
	for _, text := range texts {
		_, _ = h.WriteString(text)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// isAfter reports whether a name was not on the page before.
func (p *Pages) isAfter(name string) bool {
	_, was := slices.BinarySearch(p.before, p.hash(name))
	return !was
}

// isPageSize reports whether n names may be a page of several, of a size that the registry chose: a
// multiple of 50, or a power of two from 64. Smaller pages are not expected, as asking for another
// one costs each small repository a request.
func isPageSize(n int) bool { return n%50 == 0 || n >= 64 && n&(n-1) == 0 }

// withLast is the path of the page after a name.
func withLast(path, name string) string {
	path, query, _ := strings.Cut(path, "?")
	values, _ := url.ParseQuery(query) // ours, or none
	values.Set("last", name)
	return path + "?" + values.Encode()
}
