package console

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// maxDigests is how many whole digests the API selects at a time.
const maxDigests = 100

// Name is the reference that a row is about: the repository with the first tag, or alone.
func (r *imageRow) Name() text {
	if len(r.Tags) == 0 || strings.Contains(string(r.Repository), ",+") {
		return r.Repository
	}
	return r.Repository + ":" + r.Tags[0]
}

// Shown returns the size on the page: for an index, the size of the images that are folded into it.
func (r *imageRow) Shown() string {
	if r.Size != "" || len(r.Platforms) == 0 {
		return spaced(r.Size)
	}
	least, most := r.Platforms[0].Size, r.Platforms[0].Size
	for _, p := range r.Platforms {
		if inBytes(p.Size) < inBytes(least) {
			least = p.Size
		}
		if inBytes(p.Size) > inBytes(most) {
			most = p.Size
		}
	}
	if inBytes(most) < inBytes(least)*1.05 {
		return spaced(most) + " each"
	}
	return spaced(least) + " to " + spaced(most)
}

// need is the place of a row in the order of need.
func (r *imageRow) need() int {
	drifted := r.Outdated != "" && r.Outdated != "0" && r.Outdated != tablecells.Unknown
	return tablecells.Need(verdictPlace(r.Verdict) < verdictPlace("Unknown"), verdictPlace(r.Verdict) == verdictPlace("Unknown"), r.Pods != "0", drifted)
}

// folded returns rows with the images that an index among them lists, and that no tag leads to, in
// the row of the index, which then has the worst verdict of all of them.
func (v *visit) folded(rows []imageRow) ([]imageRow, error) {
	var indexes []string
	children := false
	for i := range rows {
		if rows[i].Size == "" {
			indexes = append(indexes, string(rows[i].Digest))
		} else if len(rows[i].Tags) == 0 {
			children = true
		}
	}
	if !children {
		return rows, nil
	}
	parent := map[text]text{} // of the images of at most maxSorted indexes
	for some := range slices.Chunk(indexes, maxDigests) {
		var all list[image]
		err := v.call.get(v.ctx(), imagesPath, url.Values{"fieldSelector": {"digest=" + strings.Join(some, "|")}}, &all)
		switch {
		case isCode(err, http.StatusUnauthorized):
			return nil, err
		case err != nil:
			return rows, nil // they are shown as they are
		}
		for i := range all.Items {
			for _, m := range all.Items[i].ManifestsOfIndex {
				parent[m.Digest] = all.Items[i].Metadata.Name
			}
		}
	}
	return foldInto(rows, parent), nil
}

// foldInto folds rows into the rows of their parents. It folds no rows into an index that is itself
// folded.
func foldInto(rows []imageRow, parent map[text]text) (kept []imageRow) {
	here, top, places := map[text]bool{}, map[text]bool{}, map[text]int{}
	for i := range rows {
		here[rows[i].Digest] = true
	}
	for i := range rows {
		top[rows[i].Digest] = len(rows[i].Tags) > 0 || !here[parent[rows[i].Digest]]
	}
	folds := func(r *imageRow) bool { return len(r.Tags) == 0 && top[parent[r.Digest]] }
	for i := range rows {
		if !folds(&rows[i]) {
			places[rows[i].Digest], kept = len(kept), append(kept, rows[i])
		}
	}
	for i := range rows {
		if !folds(&rows[i]) {
			continue
		}
		index := &kept[places[parent[rows[i].Digest]]]
		index.Platforms = append(index.Platforms, rows[i])
		if place := verdictPlace(rows[i].Verdict); place < verdictPlace(index.Verdict) && place < verdictPlace("ByIndex") {
			index.Verdict = rows[i].Verdict
		}
	}
	return kept
}
