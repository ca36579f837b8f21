package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// Bounds of the picture of layers, and of what is read for it.
const (
	countedLayers  = 32 // layers whose images are listed
	layerUpTo      = 10 // images that are listed of a layer
	drawnPlatforms = 8
	drawnGroups    = 12
	drawnOthers    = 8
)

// Sizes in the picture of layers, in pixels.
const (
	boxWide, boxHigh = 196, 40
	nameWide         = 240 // of a box with the name of a repository
	gapWide, gapHigh = 44, 10
)

// withLayer are the images that have a layer.
type withLayer struct {
	counted
	Digests []text // of those that were counted
}

// platformLayers is an image of the picture: a platform of an index, or the image of the page.
type platformLayers struct {
	Platform, Digest text
	Layers           []imageLayer
}

// layerGroup are layers that the same images have.
type layerGroup struct {
	Layers    []imageLayer
	Size      int64
	Platforms []int // that have them, by their places
	Others    []int // likewise, of repositories with other images that have them
	More      bool  // there are more images than were listed
	Unknown   bool  // it is not known which other images have them
}

// otherRepository is a repository with other images that share layers.
type otherRepository struct {
	Name    text // empty for an image that is in none
	Digests []text
}

// sharing are the layers of an image, or of an index's platforms, by the images that share them.
type sharing struct {
	Indexes   []text
	Platforms []platformLayers
	Groups    []layerGroup
	Others    []otherRepository
	Unread    []text // platforms that are not stored, or not drawn
	Truncated bool   // some groups or repositories are not drawn
}

// readSharing reads which images have the layers of the image or, for an index, of its platforms.
func (v *visit) readSharing(data *imageView) error {
	m, s := &data.Answer.Meaning, &sharing{}
	if len(data.Image.Layers) > 0 || len(m.Platforms) == 0 {
		s.Indexes = m.Indexes[:min(len(m.Indexes), drawnPlatforms)]
		s.Platforms = []platformLayers{{cmp.Or(m.Platform, "this image"), m.Digest, data.Image.Layers}}
	} else {
		s.Indexes = []text{m.Digest}
		if err := v.readPlatforms(s, m.Platforms); err != nil {
			return err
		}
	}
	with, err := v.haveLayers(s.layers())
	if err != nil {
		return err
	}
	for i := range data.Layers {
		if in := with[data.Layers[i].Digest]; in != nil {
			data.Layers[i].In = &in.counted
		}
	}
	names, err := v.repositoriesOf(s.others(with))
	if err != nil {
		return err
	}
	if s.group(with, names); s.saysMore() {
		data.Sharing = s
	}
	return nil
}

// readPlatforms reads the images that an index lists.
func (v *visit) readPlatforms(s *sharing, platforms []platformImage) error {
	var digests []string
	for _, p := range platforms[:min(len(platforms), drawnPlatforms)] {
		digests = append(digests, string(p.Digest))
	}
	var all list[image]
	err := v.call.get(v.ctx(), imagesPath, url.Values{"fieldSelector": {"digest=" + strings.Join(digests, "|")}}, &all)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	for _, p := range platforms { // after an error, none is stored as far as is known
		if p.Platform == "unknown/unknown" {
			continue // attestations
		}
		at := slices.IndexFunc(all.Items, func(i image) bool { return i.Metadata.Name == p.Digest })
		if name := cmp.Or(p.Platform, "unknown platform"); at < 0 {
			s.Unread = append(s.Unread, name)
		} else {
			s.Platforms = append(s.Platforms, platformLayers{name, p.Digest, all.Items[at].Layers})
		}
	}
	return nil
}

// layers returns the digests of all layers, each once.
func (s *sharing) layers() (all []text) {
	for _, p := range s.Platforms {
		for _, l := range p.Layers {
			if !slices.Contains(all, l.Name) {
				all = append(all, l.Name)
			}
		}
	}
	return all
}

// haveLayers lists for each layer the images that have it, unless there are very many layers. A
// layer for which that fails is left out.
func (v *visit) haveLayers(layers []text) (map[text]*withLayer, error) {
	layers = layers[:min(len(layers), countedLayers)]
	found := make([]*withLayer, len(layers))
	var group errgroup.Group
	group.SetLimit(4)
	for i, layer := range layers {
		group.Go(func() error {
			var l list[struct {
				Metadata objectMeta `json:"metadata"`
			}]
			err := v.call.getAs(v.ctx(), asNames, imagesPath, url.Values{"limit": {fmt.Sprint(layerUpTo)}, "fieldSelector": {"layer=" + escapeTerm(string(layer))}}, &l)
			if err == nil && len(l.Items) > 0 {
				found[i] = &withLayer{counted: counted{Count: len(l.Items), More: l.Metadata.Continue != ""}}
				for _, one := range l.Items {
					found[i].Digests = append(found[i].Digests, one.Metadata.Name)
				}
			}
			if isCode(err, http.StatusUnauthorized) {
				return err
			}
			return nil
		})
	}
	err := group.Wait()
	with := map[text]*withLayer{}
	for i, layer := range layers {
		if found[i] != nil {
			with[layer] = found[i]
		}
	}
	return with, err
}

// others returns the digests of the other images that have some of the layers.
func (s *sharing) others(with map[text]*withLayer) (all []string) {
	for _, layer := range s.layers() {
		if with[layer] == nil {
			continue
		}
		for _, digest := range with[layer].Digests {
			if s.platform(digest) < 0 && !slices.Contains(all, string(digest)) {
				all = append(all, string(digest))
			}
		}
	}
	return all[:min(len(all), maxDigests)]
}

// platform returns the place of a platform; -1 if a digest is none of them.
func (s *sharing) platform(digest text) int {
	return slices.IndexFunc(s.Platforms, func(p platformLayers) bool { return p.Digest == digest })
}

// repositoriesOf returns the repositories of images. Images that cannot be read are left out.
func (v *visit) repositoriesOf(digests []string) (map[text]text, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	t, err := v.call.table(v.ctx(), imagesPath, url.Values{"includeObject": {"None"}, "fieldSelector": {"digest=" + strings.Join(digests, "|")}})
	if isCode(err, http.StatusUnauthorized) {
		return nil, err
	}
	names := map[text]text{}
	if err == nil {
		for i := range t.Rows {
			row := rowOf(t, &t.Rows[i])
			names[row.Digest] = row.Repository
		}
	}
	return names, nil
}

// group joins layers that the same images have.
func (s *sharing) group(with map[text]*withLayer, names map[text]text) {
	places := map[string]int{}
	for _, layer := range s.layers() {
		one := layerGroup{Unknown: with[layer] == nil}
		for i, p := range s.Platforms {
			if at := slices.IndexFunc(p.Layers, func(l imageLayer) bool { return l.Name == layer }); at >= 0 {
				one.Platforms = append(one.Platforms, i)
				one.Layers, one.Size = []imageLayer{p.Layers[at]}, p.Layers[at].Size
			}
		}
		if !one.Unknown {
			one.More = with[layer].More
			for _, digest := range with[layer].Digests {
				if name, known := names[digest]; known && s.platform(digest) < 0 {
					one.Others = append(one.Others, s.other(name, digest))
				} else if !known && s.platform(digest) < 0 {
					one.More = true
				}
			}
			slices.Sort(one.Others)
			one.Others = slices.Compact(one.Others)
		}
		key := fmt.Sprint(one.Platforms, one.Others, one.More, one.Unknown)
		if at, ok := places[key]; ok {
			s.Groups[at].Layers = append(s.Groups[at].Layers, one.Layers...)
			s.Groups[at].Size += one.Size
			continue
		}
		places[key] = len(s.Groups)
		s.Groups = append(s.Groups, one)
	}
}

// other returns the place of a repository of another image.
func (s *sharing) other(name, digest text) int {
	at := slices.IndexFunc(s.Others, func(o otherRepository) bool { return o.Name == name && (name != "" || o.Digests[0] == digest) })
	if at < 0 {
		at, s.Others = len(s.Others), append(s.Others, otherRepository{Name: name})
	}
	if o := &s.Others[at]; !slices.Contains(o.Digests, digest) {
		o.Digests = append(o.Digests, digest)
	}
	return at
}

// isShared reports whether several images have a group's layers.
func (g *layerGroup) isShared() bool { return len(g.Platforms) > 1 || len(g.Others) > 0 || g.More }

// saysMore reports whether some image shares layers with another: otherwise the lists of the page
// have all that the picture would have.
func (s *sharing) saysMore() bool {
	return slices.ContainsFunc(s.Groups, func(g layerGroup) bool { return g.isShared() })
}

// Sentence says how many of the layers are shared.
func (s *sharing) Sentence() string {
	var all, among, elsewhere, unknown int
	for _, g := range s.Groups {
		all += len(g.Layers)
		if len(g.Platforms) > 1 {
			among += len(g.Layers)
		}
		if len(g.Others) > 0 || g.More {
			elsewhere += len(g.Layers)
		}
		if g.Unknown {
			unknown += len(g.Layers)
		}
	}
	said := fmt.Sprintf("Of %s, ", tablecells.Quantity(all, "layer"))
	if len(s.Platforms) > 1 {
		said += fmt.Sprintf("%d %s in several platforms, and ", among, are(among))
	}
	said += fmt.Sprintf("%d %s in other images, too.", elsewhere, are(elsewhere))
	if unknown > 0 {
		said += fmt.Sprintf(" Of %d it is not known.", unknown)
	}
	return said
}

// are is the verb for a number.
func are(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// Title names the layers of a group.
func (g *layerGroup) Title() string {
	var all []string
	for _, l := range g.Layers {
		all = append(all, fmt.Sprintf("%s, %s", l.Name, size(l.Size)))
	}
	return strings.Join(all, "; ")
}

// Who says in how many other images a group's layers are, as far as that was read.
func (g *layerGroup) Who() string {
	switch {
	case g.Unknown:
		return "elsewhere: unknown"
	case g.More:
		return fmt.Sprintf("in more than %d images", layerUpTo)
	case len(g.Others) > 0:
		return "shared with others"
	case len(g.Platforms) > 1:
		return "shared by platforms"
	}
	return "not shared"
}

// Words are the groups in words, with links.
func (s *sharing) Words() (all []sharedWords) {
	for i := range s.Groups {
		g := &s.Groups[i]
		one := sharedWords{Layers: g.count(), Link: g.link(), Who: g.Who()}
		for _, p := range g.Platforms {
			one.In = append(one.In, s.Platforms[p].Platform)
		}
		for _, o := range g.Others[:min(len(g.Others), drawnOthers)] {
			one.Others = append(one.Others, cmp.Or(s.Others[o].Name, "an image in no repository"))
		}
		if n := len(g.Others) - drawnOthers; n > 0 {
			one.Others = append(one.Others, text(fmt.Sprintf("and %d more", n)))
		}
		all = append(all, one)
	}
	return all
}

// sharedWords is a group of layers in words.
type sharedWords struct {
	Layers, Link, Who string
	In, Others        []text
}

func (g *layerGroup) count() string {
	return tablecells.Quantity(len(g.Layers), "layer") + ", " + size(g.Size)
}

// link leads to the images that have the last of a group's layers.
func (g *layerGroup) link() string {
	return link("images", "layer", g.Layers[len(g.Layers)-1].Name)
}

// box is a box of the picture.
type box struct {
	X, Y                          int
	Kind, Name, More, Title, Link string
}

// Wide is the width of the box.
func (b box) Wide() int {
	if b.Kind == "other" {
		return nameWide
	}
	return boxWide
}

// High is the height of each box.
func (box) High() int { return boxHigh }

// NameX is where both lines of text begin.
func (b box) NameX() int { return b.X + 12 }

// NameY is the line of the name.
func (b box) NameY() int { return b.Y + 17 }

// MoreY is the line below the name.
func (b box) MoreY() int { return b.Y + 32 }

// drawing is the picture of layers: boxes in columns, and the lines between them.
type drawing struct {
	Wide, High int
	Boxes      []box
	Lines      []string // as SVG has paths
}

// Drawing draws the indexes, the platforms, the groups of layers and the other repositories, each
// in a column.
func (s *sharing) Drawing() *drawing {
	groups := min(len(s.Groups), drawnGroups)
	others := s.orderOthers(groups)
	s.Truncated = groups < len(s.Groups) || len(others) > drawnOthers
	others = others[:min(len(others), drawnOthers)]

	indexes := make([]box, len(s.Indexes))
	for i, digest := range s.Indexes {
		indexes[i] = box{Kind: "index", Name: "index", More: short(digest), Title: string(digest), Link: link("image", "ref", digest)}
	}
	platforms := make([]box, len(s.Platforms))
	for i, p := range s.Platforms {
		platforms[i] = box{Kind: "platform", Name: string(p.Platform), More: short(p.Digest), Title: string(p.Digest), Link: link("image", "ref", p.Digest)}
	}
	layers := make([]box, groups)
	for i := range layers {
		g := &s.Groups[i]
		layers[i] = box{Kind: "layers", Name: g.count(), More: g.Who(), Title: g.Title(), Link: g.link()}
		if g.isShared() {
			layers[i].Kind = "layers shared"
		}
	}
	repositories := make([]box, len(others))
	for i, at := range others {
		o := &s.Others[at]
		name := string(cmp.Or(o.Name, o.Digests[0]))
		_, path, ok := strings.Cut(name, "/")
		if !ok {
			path = name
		}
		repositories[i] = box{Kind: "other", Name: lastOf(path, 25), More: tablecells.Quantity(len(o.Digests), "image"), Title: name, Link: link("image", "ref", o.Digests[0])}
		if len(o.Digests) > 1 && o.Name != "" && !strings.Contains(name, ",+") {
			repositories[i].Link = link("repository", "name", name)
		}
	}
	d := &drawing{}
	d.columns(indexes, platforms, layers, repositories)
	for i := range platforms {
		for _, index := range indexes {
			d.line(&index, &platforms[i])
		}
		for j := range layers {
			if slices.Contains(s.Groups[j].Platforms, i) {
				d.line(&platforms[i], &layers[j])
			}
		}
	}
	for i, at := range others {
		for j := range layers {
			if slices.Contains(s.Groups[j].Others, at) {
				d.line(&layers[j], &repositories[i])
			}
		}
	}
	return d
}

// orderOthers returns the places of the other repositories that share the drawn groups, each beside
// its groups, so that few lines cross.
func (s *sharing) orderOthers(groups int) []int {
	beside, all := map[int]float64{}, []int{}
	for at := range s.Others {
		sum, n := 0, 0
		for j, g := range s.Groups[:groups] {
			if slices.Contains(g.Others, at) {
				sum, n = sum+j, n+1
			}
		}
		if n > 0 {
			beside[at] = float64(sum) / float64(n)
			all = append(all, at)
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(beside[a], beside[b]) })
	return all
}

// columns places boxes in columns, each in the middle of the picture's height.
func (d *drawing) columns(all ...[]box) {
	for _, column := range all {
		d.High = max(d.High, len(column)*(boxHigh+gapHigh)-gapHigh)
	}
	d.High += 2 // the strokes at the edges
	x := 1
	for _, column := range all {
		if len(column) == 0 {
			continue
		}
		top := (d.High - len(column)*(boxHigh+gapHigh) + gapHigh) / 2
		for i := range column {
			column[i].X, column[i].Y = x, top+i*(boxHigh+gapHigh)
		}
		d.Boxes = append(d.Boxes, column...)
		x += column[0].Wide()
		d.Wide = x + 1
		x += gapWide
	}
}

// line draws a line from one box to another at its right.
func (d *drawing) line(from, to *box) {
	x, y, end := from.X+from.Wide(), from.Y+boxHigh/2, to.Y+boxHigh/2
	d.Lines = append(d.Lines, fmt.Sprintf("M%d %dC%d %d %d %d %d %d", x, y, x+gapWide/2, y, to.X-gapWide/2, end, to.X, end))
}

// lastOf shortens a text to its last characters.
func lastOf(s string, most int) string {
	if all := []rune(s); len(all) > most {
		return "…" + string(all[len(all)-most+1:])
	}
	return s
}
