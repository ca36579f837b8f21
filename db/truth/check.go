package truth

import (
	"context"
	"fmt"
	"strings"
)

// maxNamed bounds the faults that Check names.
const maxNamed = 20

// FaultsError names keys of a store that its servers cannot serve, or cannot serve unchanged.
type FaultsError struct {
	// Faults has at most 20 of the faults.
	Faults []string
	// All is the number of faults.
	All int
}

func (e *FaultsError) Error() string {
	all := strings.Join(e.Faults, "; ")
	if n := e.All - len(e.Faults); n > 0 {
		all += fmt.Sprintf("; and %d more", n)
	}
	return all
}

// Check reads all keys of a store as of one revision, a page at a time, and returns their number.
// It fails with *FaultsError if a value cannot be read, or if keys share a revision, because only
// another program writes such keys. Servers may use the store meanwhile.
func Check(ctx context.Context, s Store) (keys int, err error) {
	faults := &FaultsError{}
	found := func(format string, args ...any) {
		if faults.All++; len(faults.Faults) < maxNamed {
			faults.Faults = append(faults.Faults, fmt.Sprintf(format, args...))
		}
	}
	at := map[int64]bool{} // revisions of keys: eight bytes and a little for each
	for from, rev, more := "", int64(0), true; more; {
		var page []Change
		if page, rev, more, err = s.Range(ctx, from, rev); err != nil {
			return keys, err
		}
		for _, c := range page {
			switch {
			case c.Unreadable != nil:
				found("the value of %s cannot be read: %v", c.Key, c.Unreadable)
			case at[c.Rev]:
				found("%s has revision %d, as another key has", c.Key, c.Rev)
			}
			at[c.Rev] = true
			from = c.Key + "\x00"
		}
		keys += len(page)
	}
	if faults.All > 0 {
		return keys, faults
	}
	return keys, nil
}
