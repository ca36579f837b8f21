package db

// KV is a key with the value of one of its revisions. Value must not be changed.
type KV struct {
	Key   string
	Rev   int64
	Value []byte
	// Err is a *DamagedError when the stored bytes are not those that were
	// written; Value is nil then.
	Err error
}

// Bounds of one Range call.
const (
	// MaxRangeRows is the most rows a Range returns.
	MaxRangeRows = 10000
	// maxRangeBytes closes a page early, so that a page of large values does
	// not take memory out of proportion. RangeOptions.Bytes may ask for less.
	maxRangeBytes = 4 << 20
)

// RangeOptions say what Range reads.
type RangeOptions struct {
	// Prefix selects the keys that start with it.
	Prefix string
	// From skips keys before it; "" starts at the prefix.
	From string
	// Rev reads the state at this revision; 0 is the newest.
	Rev int64
	// Limit bounds the rows; at most, and by default, MaxRangeRows.
	Limit int
	// Bytes closes the page at the value that makes them full; 0 is the most, 4 MiB.
	Bytes int
	// Index, with IndexValue, reads only the keys whose indexed value matches. The index
	// must be Ready.
	Index      *Index
	IndexValue string
	// KeysOnly leaves the values out.
	KeysOnly bool
	// Count asks for Page.Remaining.
	Count bool
}

// Page is what Range returns.
type Page struct {
	// Rev is the revision the page shows. Read the next page at it.
	Rev int64
	// KVs are in the order of their keys.
	KVs []KV
	// More is set when the range has keys after the last of KVs. The next page
	// starts at that key followed by a zero byte.
	More bool
	// Remaining is the number of keys after the page, when More is set and
	// RangeOptions.Count asked for it; otherwise it may be 0.
	Remaining int64
}

// prefixEnd returns the smallest string after every string that starts with
// prefix. Keys are UTF-8 text, so 0xff is after all of them.
func prefixEnd(prefix string) string { return prefix + "\xff" }
