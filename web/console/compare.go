package console

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// side is one of two images that are compared.
type side struct {
	Asked  string
	Answer *referenceAnswer
	Image  *image
	Why    *notice
}

// difference is a setting that differs; an empty side lacks it.
type difference struct {
	What, Key, A, B text
}

// layerPair is a layer of either image, or of both.
type layerPair struct {
	Digest   text
	Size     int64
	InA, InB bool
}

// comparison has the data of the page that compares two images.
type comparison struct {
	A, B        side
	Whole       bool // both are known
	Same        bool
	Differences []difference
	// LeftOut says that the API does not hold the config of an image.
	LeftOut bool
	Layers  []layerPair
	SizeA   int64
	SizeB   int64
}

// compare shows what differs between two images.
func (v *visit) compare() error {
	query := v.r.URL.Query()
	data := &comparison{A: side{Asked: strings.TrimSpace(printable.Line(query.Get("a"), 1024))}, B: side{Asked: strings.TrimSpace(printable.Line(query.Get("b"), 1024))}}
	p := &page{Name: "compare", Title: "Compare", Nav: "repositories", Data: data}
	if data.A.Asked == "" || data.B.Asked == "" {
		return v.show(p)
	}
	p.Commands = []string{"tidewaiter diff " + quoted(data.A.Asked) + " " + quoted(data.B.Asked)}
	answers, err := v.review(false, data.A.Asked, data.B.Asked)
	if err != nil {
		return err
	}
	p.AsOf = answers.AsOf
	for i, s := range []*side{&data.A, &data.B} {
		s.Answer = &answers.References[i]
		if s.Answer.State != "Found" {
			s.Why = &notice{Title: "“" + s.Asked + "” is not known", Message: string(s.Answer.Message)}
			continue
		}
		s.Image = &image{}
		if err := v.call.get(v.ctx(), imagesPath+"/"+string(s.Answer.Meaning.Digest), nil, s.Image); isCode(err, http.StatusUnauthorized) {
			return err
		} else if err != nil {
			s.Image, s.Why = nil, noticeOf("read images", err)
		}
	}
	if data.Whole = data.A.Image != nil && data.B.Image != nil; data.Whole {
		data.fill()
	}
	return v.show(p)
}

// fill finds the differences.
func (c *comparison) fill() {
	a, b := c.A.Image, c.B.Image
	c.Same, c.SizeA, c.SizeB = a.Metadata.Name == b.Metadata.Name, a.Content.Size, b.Content.Size
	add := func(what string, key, a, b text) {
		if a != b {
			c.Differences = append(c.Differences, difference{text(what), key, a, b})
		}
	}
	add("Architecture", "", a.Content.Architecture, b.Content.Architecture)
	if x, y := a.config(), b.config(); x != nil && y != nil {
		add("Entrypoint", "", words(x.Entrypoint), words(y.Entrypoint))
		add("Command", "", words(x.Cmd), words(y.Cmd))
		add("User", "", x.User, y.User)
		add("Working folder", "", x.WorkingDir, y.WorkingDir)
		add("Ports", "", text(joined(slices.Sorted(maps.Keys(x.ExposedPorts)), ", ")), text(joined(slices.Sorted(maps.Keys(y.ExposedPorts)), ", ")))
		add("Volumes", "", text(joined(slices.Sorted(maps.Keys(x.Volumes)), ", ")), text(joined(slices.Sorted(maps.Keys(y.Volumes)), ", ")))
		c.maps("Environment", variables(x.Env), variables(y.Env))
		c.maps("Label", x.Labels, y.Labels)
	} else {
		c.LeftOut = a.lacksConfig() || b.lacksConfig()
	}
	inA, inB := layerNames(a.Layers), layerNames(b.Layers)
	for _, l := range a.Layers {
		c.Layers = append(c.Layers, layerPair{l.Name, l.Size, true, inB.Has(l.Name)})
	}
	for _, l := range b.Layers {
		if !inA.Has(l.Name) {
			c.Layers = append(c.Layers, layerPair{l.Name, l.Size, false, true})
		}
	}
}

// layerNames are the digests of layers. An image can have tens of thousands.
func layerNames(layers []imageLayer) sets.Set[text] {
	names := make(sets.Set[text], len(layers))
	for _, l := range layers {
		names.Insert(l.Name)
	}
	return names
}

// maps adds the keys that differ. An empty value is shown as empty, because it differs from a
// missing key.
func (c *comparison) maps(what string, a, b map[text]text) {
	value := func(m map[text]text, key text) text {
		if v, ok := m[key]; ok && v == "" {
			return "(empty)"
		}
		return m[key]
	}
	keys := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(keys)
	for _, key := range slices.Compact(keys) {
		if x, y := value(a, key), value(b, key); x != y {
			c.Differences = append(c.Differences, difference{text(what), key, x, y})
		}
	}
}

// variables returns the variables of an environment by name. The last one of a name counts.
func variables(env []text) map[text]text {
	all := map[text]text{}
	for _, e := range env {
		name, value, _ := strings.Cut(string(e), "=")
		all[text(name)] = text(value)
	}
	return all
}
