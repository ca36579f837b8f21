package payload

import (
	"encoding/json"
	"strings"
	"unicode/utf8"
)

// Unambiguous reports whether every JSON parser reads data as the same value. It refuses what is
// not exactly one value in UTF-8, and an object that has a key twice. With fold, keys are the same
// if they differ only in case and in underscores: encoding/json does not look at the case, and
// protobuf takes dsse_envelope for dsseEnvelope.
func Unambiguous(data []byte, fold bool) error {
	if !json.Valid(data) {
		return malformed("not JSON: %w", json.Unmarshal(data, &json.RawMessage{}))
	}
	if !utf8.Valid(data) {
		return malformed("not UTF-8")
	}
	var open []keys // of the objects and arrays that are open
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '{':
			open = append(open, keys{isObject: true, next: true})
		case '[':
			open = append(open, keys{})
		case '}', ']':
			open = open[:len(open)-1]
		case ',':
			open[len(open)-1].next = true
		case '"':
			end := i + 1
			for ; data[end] != '"'; end++ {
				if data[end] == '\\' {
					end++
				}
			}
			if n := len(open); n > 0 && open[n-1].isObject && open[n-1].next {
				open[n-1].next = false
				if key := string(data[i : end+1]); !open[n-1].add(key, fold) {
					return malformed("key %s appears twice, or differs from another only in its spelling", key)
				}
			}
			i = end
		}
	}
	return nil
}

// keys are the keys of an object that were seen; isObject is false for an array, which has none.
type keys struct {
	isObject bool
	next     bool     // the next string is a key
	few      []string // up to maxFew, for which a map is too much
	many     map[string]bool
}

const maxFew = 8

// add reports whether a quoted key is new.
func (k *keys) add(quoted string, fold bool) bool {
	key := quoted[1 : len(quoted)-1]
	if strings.Contains(key, `\`) {
		_ = json.Unmarshal([]byte(quoted), &key) // it is valid
	}
	if fold {
		key = folded(key)
	}
	if k.many == nil {
		for _, other := range k.few {
			if other == key {
				return false
			}
		}
		if k.few = append(k.few, key); len(k.few) <= maxFew {
			return true
		}
		k.many = make(map[string]bool, 2*maxFew)
		for _, other := range k.few {
			k.many[other] = true
		}
		return true
	}
	if k.many[key] {
		return false
	}
	k.many[key] = true
	return true
}

// folded is what the spellings of a key have in common.
func folded(key string) string {
	return strings.ToLower(strings.ToUpper(strings.ReplaceAll(key, "_", "")))
}
