package content

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// Comparison lists the differences of two images.
type Comparison struct {
	A Side `json:"a"`
	B Side `json:"b"`
	// Same is true if both are one image, by its digest.
	Same bool `json:"same"`
	// Platform is the platform that is compared, if the images are for several.
	Platform string `json:"platform,omitempty"`
	// Platforms are the platforms whose images differ, or that one side lacks.
	Platforms []Change `json:"platforms,omitempty"`
	// Changes are in this order: platform, size, base, entrypoint, cmd, user, workingDir, ports,
	// volumes, run, env and label.
	Changes []Change `json:"changes"`
	Layers  Layers   `json:"layers"`
	// NotCompared names the parts that are unknown for one of the images.
	NotCompared []string `json:"notCompared,omitempty"`
}

// Side is one of the two images.
type Side struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// Compared is the digest of the compared image, if that is one of several platforms.
	Compared string `json:"compared,omitempty"`
}

// Change is something that only one image has, or that differs. An absent side is empty.
type Change struct {
	Field string `json:"field"`
	// Key is the name of the variable or the label.
	Key string `json:"key,omitempty"`
	A   string `json:"a,omitempty"`
	B   string `json:"b,omitempty"`
}

// Layers compares the layers by their place, each once.
type Layers struct {
	// Base is how many of the first layers are the same in both images.
	Base    int     `json:"base"`
	Shared  []Layer `json:"shared"`
	Removed []Layer `json:"removed"`
	Added   []Layer `json:"added"`
}

// Subject is what is compared: the image that a reference leads to.
type Subject struct {
	Reference string
	Image     *imagev1.Image
	// OnPlatform is the image for the platform that is compared: Image itself, or one that it lists.
	OnPlatform *imagev1.Image
}

func (s *Subject) side() Side {
	side := Side{Reference: s.Reference, Digest: s.Image.Name}
	if s.OnPlatform.Name != side.Digest {
		side.Compared = s.OnPlatform.Name
	}
	return side
}

// Compare compares two images. If one of them is an index, platform is the platform that is
// compared; no contents are compared if it is "".
func Compare(subjectA, subjectB Subject, platform string) *Comparison {
	r := &Comparison{A: subjectA.side(), B: subjectB.side(), Same: subjectA.Image.Name == subjectB.Image.Name, Changes: []Change{}}
	platformsA, platformsB := byPlatform(subjectA.Image), byPlatform(subjectB.Image)
	if len(platformsA) > 0 && len(platformsB) > 0 {
		r.Platforms = changes("platform", platformsA, platformsB)
	}
	if len(platformsA)+len(platformsB) > 0 {
		if platform == "" {
			r.NotCompared = append(r.NotCompared, "the contents: the images have no platform in common")
			return r
		}
		r.Platform = platform
	}
	a, b := Of(subjectA.OnPlatform), Of(subjectB.OnPlatform)
	for i, c := range []*Content{&a, &b} {
		if !c.Configured {
			r.NotCompared = append(r.NotCompared, "the configuration: that of "+[]string{r.A.Reference, r.B.Reference}[i]+" is not known")
		}
	}
	if p, q := platformOf(&a), platformOf(&b); normalized(p) != normalized(q) {
		r.Changes = append(r.Changes, Change{"platform", "", p, q})
	}
	r.contents(&a, &b)
	return r
}

// contents compares the contents of two images.
func (r *Comparison) contents(a, b *Content) {
	add := func(field, key, from, to string) {
		if from != to {
			r.Changes = append(r.Changes, Change{field, key, from, to})
		}
	}
	size := func(c *Content) string {
		if c.Size == 0 {
			return ""
		}
		return fmt.Sprint(c.Size)
	}
	add("size", "", size(a), size(b))
	add("base", "", a.Base, b.Base)
	if a.Configured && b.Configured {
		add("entrypoint", "", Words(a.Entrypoint), Words(b.Entrypoint))
		add("cmd", "", Words(a.Cmd), Words(b.Cmd))
		add("user", "", a.User, b.User)
		add("workingDir", "", a.WorkingDir, b.WorkingDir)
		add("ports", "", strings.Join(a.Ports, ","), strings.Join(b.Ports, ","))
		add("volumes", "", strings.Join(a.Volumes, ","), strings.Join(b.Volumes, ","))
		add("run", "", string(a.Run), string(b.Run))
		r.Changes = append(r.Changes, changes("env", variables(a.Env), variables(b.Env))...)
		r.Changes = append(r.Changes, changes("label", a.Labels, b.Labels)...)
	}
	r.Layers = layers(a.Layers, b.Layers)
}

// variables returns the variables of an environment by name. The last one of a name counts, as in a
// container.
func variables(env []string) map[string]string {
	all := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		all[name] = value
	}
	return all
}

// changes compares two maps. A key with an empty value in one map differs from a key that the map
// lacks.
func changes(field string, a, b map[string]string) (all []Change) {
	names := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(names)
	text := func(m map[string]string, name string) string {
		if value, ok := m[name]; ok {
			return name + "=" + value
		}
		return ""
	}
	for _, name := range slices.Compact(names) {
		if from, to := text(a, name), text(b, name); from != to {
			all = append(all, Change{field, name, from, to})
		}
	}
	return all
}

func layers(a, b []Layer) Layers {
	d := Layers{Shared: []Layer{}, Removed: []Layer{}, Added: []Layer{}}
	for d.Base < min(len(a), len(b)) && a[d.Base].Digest == b[d.Base].Digest {
		d.Base++
	}
	digests := func(layers []Layer) map[string]bool {
		all := map[string]bool{}
		for _, l := range layers {
			all[l.Digest] = true
		}
		return all
	}
	inA, inB := digests(a), digests(b)
	seen := map[string]bool{}
	for _, l := range slices.Concat(a, b) {
		switch {
		case seen[l.Digest]:
		case inA[l.Digest] && inB[l.Digest]:
			d.Shared = append(d.Shared, l)
		case inA[l.Digest]:
			d.Removed = append(d.Removed, l)
		default:
			d.Added = append(d.Added, l)
		}
		seen[l.Digest] = true
	}
	return d
}

// platformOf returns the platform of an image for one platform.
func platformOf(c *Content) string {
	if len(c.Platforms) == 1 {
		return c.Platforms[0].Platform
	}
	return ""
}

// normalized returns the name of a platform by which platforms are compared.
func normalized(platform string) string { return manifest.ParsePlatform(platform).Normalized().Exact() }

// byPlatform returns the images of an index by platform; none for an image.
func byPlatform(image *imagev1.Image) map[string]string {
	all := map[string]string{}
	for _, p := range Of(image).Platforms {
		if p.Digest != "" {
			all[normalized(p.Platform)] = p.Digest
		}
	}
	return all
}

// Shared returns the first platform of a that b also has, if one of them is an index; "" if there
// is none, or if neither is an index.
func Shared(a, b *imagev1.Image) string {
	platformsA, platformsB := Of(a).Platforms, Of(b).Platforms
	isIndex := func(all []Platform) bool { return len(all) > 0 && all[0].Digest != "" }
	if !isIndex(platformsA) && !isIndex(platformsB) {
		return ""
	}
	for _, p := range platformsA {
		if p.Platform != "" && slices.ContainsFunc(platformsB, func(q Platform) bool { return normalized(q.Platform) == normalized(p.Platform) }) {
			return p.Platform
		}
	}
	return ""
}
