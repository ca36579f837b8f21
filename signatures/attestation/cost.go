package attestation

import (
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// coster computes the cost of calls. CEL includes the size of a call's arguments only if it knows
// their type beforehand, and a predicate's type is unknown. Without coster, joining two long texts
// or comparing two large objects would cost 1.
type coster struct{}

// CallCost implements interpreter.ActualCostEstimator; nil leaves the count to CEL.
func (coster) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	switch function {
	case "contains", "startsWith", "endsWith", "matches":
		// only texts have these, so CEL counts their size itself
		return nil
	case "size", "_[_]", "_[?_]", "_?._": // the cost does not depend on the argument's size
		return nil
	}
	left := maxCost * textPerCost
	for _, arg := range args {
		left -= weight(arg, left)
	}
	left -= weight(result, left)
	cost := 1 + uint64(maxCost-left/textPerCost)
	return &cost
}

// textPerCost is how many bytes of text cost as much as a step, as in CEL.
const textPerCost = 10

// weight is the size of a value, at most limit.
func weight(v ref.Val, limit int) int {
	w := 1
	switch v := v.(type) {
	case types.String:
		w = len(v)
	case types.Bytes:
		w = len(v)
	case traits.Mapper:
		for it := v.Iterator(); w < limit && it.HasNext() == types.True; {
			key := it.Next()
			w += textPerCost + weight(key, limit-w)
			if item, ok := v.Find(key); ok {
				w += weight(item, limit-w)
			}
		}
	case traits.Lister:
		for it := v.Iterator(); w < limit && it.HasNext() == types.True; {
			w += textPerCost + weight(it.Next(), limit-w)
		}
	}
	return min(w, max(limit, 0))
}
