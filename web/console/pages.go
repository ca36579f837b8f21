package console

import (
	"cmp"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

//go:embed templates
var templates embed.FS

// Root is the path of the console.
const Root = "/console/"

// page is the layout around a page's own content.
type page struct {
	Name       string // of the template
	Title      string
	Nav        string // the entry of the navigation that the page belongs to
	Search     string // what the search box holds
	User       text
	HasSession bool
	Theme      string
	Address    string    // the path and query of the page
	Now        time.Time // when the page was made
	AsOf       time.Time // the time of its answers
	Commands   []string  // commands with the same answers
	Feed       string    // the page as a feed
	Fragment   bool      // only the page's own content, which a script puts into another page
	GoOn       string    // the page to which the browser is sent at once
	Data       any
}

// When formats a time for the page.
func (p *page) When(t time.Time) moment { return when(t, p.Now) }

// dated is a part of a message: text, or a time.
type dated struct {
	Text text
	When *moment
}

// timesIn are times within a message of the API.
var timesIn = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)

// Dated splits a message at its times, so that the page can show them as it shows all other times.
func (p *page) Dated(message text) (parts []dated) {
	rest := string(brief(message))
	for _, at := range timesIn.FindAllString(rest, -1) {
		t, err := time.Parse(time.RFC3339, at)
		if err != nil {
			continue
		}
		before, after, _ := strings.Cut(rest, at)
		m := p.When(t)
		parts, rest = append(parts, dated{Text: text(before)}, dated{When: &m}), after
	}
	return append(parts, dated{Text: text(rest)})
}

// pages are the templates, each with the layout.
type pages struct{ byName map[string]*template.Template }

// newPages reads the templates. file gives the address of a static file.
func newPages(file func(name string) string) *pages {
	functions := template.FuncMap{
		"file": file, "short": short, "size": size, "spaced": spaced, "quantity": tablecells.Quantity[int], "clause": tablecells.Clause[int], "icon": iconOf, "verdict": verdictOf,
		"link": link, "join": joined, "pair": withData, "split": entryOf, "commas": thousands, "name": nameOf, "brief": brief, "list": listed, "podName": podNameOf,
	}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templates, "templates/layout.html", "templates/parts.html"))
	p := &pages{map[string]*template.Template{}}
	names, err := fs.Glob(templates, "templates/*.html")
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		p.byName[strings.TrimSuffix(path.Base(name), ".html")] = template.Must(template.Must(layout.Clone()).ParseFS(templates, name))
	}
	return p
}

// write writes a page, or the rest of one that begins with a head.
func (p *pages) write(w http.ResponseWriter, r *http.Request, code int, page *page, begun *head) {
	page.Theme = themeOf(r)
	var out pageText
	whole := "layout.html"
	switch {
	case page.Fragment:
		whole = "main"
	case begun != nil:
		whole = "rest"
	}
	err := p.byName[page.Name].ExecuteTemplate(&out, whole, page)
	if errors.Is(err, errLargePage) {
		code, out = errLargePage.Code, pageText{}
		page.Name, page.Data = "notice", &notice{Title: "There is too much to show", Message: string(errLargePage.Message)}
		err = p.byName[page.Name].ExecuteTemplate(&out, whole, page)
	}
	if err != nil {
		slog.Error("A page of the console cannot be made", "page", page.Name, "err", err)
		http.Error(w, "the page cannot be made; the server has logged why", http.StatusInternalServerError)
		return
	}
	if begun != nil {
		_, _ = begun.Write(out.Bytes()) // an error means that the browser is gone
		_ = begun.Close()
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	send(w, r, code, out.Bytes())
}

// head is the part of a page before its content, which a browser has while the content is read.
type head struct {
	io.WriteCloser
	flush func() error
}

// begin writes the head of a page.
func (p *pages) begin(w http.ResponseWriter, r *http.Request, page *page) (*head, error) {
	page.Theme = themeOf(r)
	h := &head{plain{w}, func() error { return nil }}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Add("Vary", "Accept-Encoding")
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // a level that exists
		h = &head{zip, zip.Flush}
	}
	w.WriteHeader(http.StatusOK)
	if err := p.byName[page.Name].ExecuteTemplate(h, "top", page); err != nil {
		return h, err
	}
	return h, h.flush()
}

// plain is a page that is not compressed.
type plain struct{ io.Writer }

// Close implements io.Closer.
func (plain) Close() error { return nil }

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// send sends a body, compressed if the browser accepts that. No body has both a secret and text
// that an attacker chose, so the compressed length reveals nothing.
func send(w http.ResponseWriter, r *http.Request, code int, body []byte) {
	w.Header().Add("Vary", "Accept-Encoding")
	if len(body) > 1024 && acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(code)
		zip, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // a level that exists
		_, _ = zip.Write(body)                           // an error means that the browser is gone
		_ = zip.Close()
		return
	}
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// link returns a path of the console with a query. pairs are keys and values in turn; empty values
// are left out.
func link(to string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			query.Set(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(query) == 0 {
		return Root + to
	}
	return Root + to + "?" + query.Encode()
}

// name is a reference or a repository for a page: the registry apart, the digest shortened, and
// with places where a line may break.
type name struct {
	Host  string
	Parts []string
}

func nameOf(of any) name {
	whole := fmt.Sprint(of)
	if tagged, digest, ok := strings.Cut(whole, "@"); ok {
		whole = tagged + "@" + short(text(digest))
	}
	host, path, ok := strings.Cut(whole, "/")
	if !ok {
		return name{"", []string{whole}}
	}
	return name{host, strings.SplitAfter(path, "/")}
}

type podName struct{ Cluster, Namespace, Name string }

// podNameOf parses a pod's name from an answer: cluster/namespace/name.
func podNameOf(whole text) podName {
	parts := strings.SplitN(string(whole), "/", 3)
	if len(parts) < 3 {
		return podName{Name: string(whole)}
	}
	return podName{parts[0], parts[1], parts[2]}
}

// listed puts a space after each comma of a cell.
func listed(cell text) string { return strings.ReplaceAll(string(cell), ",", ", ") }

// joined joins texts.
func joined(all []text, by string) string {
	words := make([]string, len(all))
	for i, t := range all {
		words[i] = string(t)
	}
	return strings.Join(words, by)
}

// pair is the argument of a template that needs the page, too.
type pair struct {
	Page *page
	Data any
}

func withData(p *page, data any) pair { return pair{p, data} }

type entry struct{ Name, Label, Path, Icon string }

func entryOf(data any) entry {
	parts := strings.Split(data.(string), "|")
	return entry{parts[0], parts[1], parts[2], parts[3]}
}

// look is how a page shows a verdict: by icon, word and colour, each of which is sufficient, and by
// the value that selectors have for it.
type look struct{ Value, Icon, Word, Tone, About string }

// looks are the looks of all verdicts of the API, the worst first. Every page takes its words from
// here.
var looks = []look{
	{"False", "cross", "Not verified", "bad", "there are signatures, and none is trusted for this image"},
	{"Unsigned", "open", "Unsigned", "bad", "a policy demands a signature and there is none"},
	{"Unknown", "question", "Unknown", "unsure", "the signatures could not be judged"},
	{"Excepted", "clock", "Excepted", "unsure", "it does not meet the policy, and an exception lets it through"},
	{"NoPolicy", "dash", "No policy", "plain", "no policy covers the image, whether it is signed or not"},
	{"ByIndex", "tick", "Verified by index", "good", "an index that lists the image is verified"},
	{"True", "check", "Verified", "good", "a signature that the policies trust is for this image"},
}

// notJudged is the look of artifacts, which have no verdict.
var notJudged = look{"", "none", "Not judged", "plain", "this is an artifact and not an image"}

// verdictPlace returns the place of a verdict among looks; another text comes after the last.
func verdictPlace(verified text) int {
	first, _, _ := strings.Cut(string(verified), " ")
	first, _, _ = strings.Cut(first, ":")
	if at := slices.IndexFunc(looks, func(l look) bool { return l.Value == cmp.Or(first, "Unknown") }); at >= 0 {
		return at
	}
	return len(looks)
}

// verdictOf returns the look of a verdict of the API, which may be followed by text in brackets.
func verdictOf(verified any) look {
	word := fmt.Sprint(verified)
	first, rest, _ := strings.Cut(word, " ")
	if day, ok := strings.CutPrefix(first, "Excepted:"); ok {
		first, rest = "Excepted", "until "+day
	}
	at := verdictPlace(text(first))
	switch {
	case first == "<none>":
		return notJudged
	case at == len(looks):
		return look{"", "question", word, "unsure", ""}
	}
	l := looks[at]
	if l.About = l.Value + ": " + l.About; rest != "" {
		l.Word += " " + rest
	}
	return l
}

// thousands puts a space between the thousands of a whole number.
func thousands(n any) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	return s
}

// iconOf is the address of an icon within the page.
func iconOf(name string) string { return "#i-" + name }

// themeCookie keeps the theme, light or dark, that a person chose. Without it the system's is used.
const themeCookie = "tidewaiter-theme"

// themeOf returns the theme that was chosen; empty for the system's.
func themeOf(r *http.Request) string {
	if cookie, err := r.Cookie(themeCookie); err == nil && (cookie.Value == "light" || cookie.Value == "dark") {
		return cookie.Value
	}
	return ""
}
