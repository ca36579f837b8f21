package trusted

import (
	"encoding/pem"
	"errors"
	"strings"
)

// WholePEM returns an error for a file that has the beginning of a block without its end, or no
// block at all. Readers of PEM skip such a beginning as if it were a comment.
func WholePEM(data []byte) error {
	if block, _ := pem.Decode(data); block == nil {
		return errors.New("it has nothing in PEM")
	}
	for len(data) > 0 {
		block, rest := pem.Decode(data)
		between := data
		if block != nil {
			between = data[:strings.LastIndex(string(data[:len(data)-len(rest)]), "-----BEGIN ")]
			data = rest
		} else {
			data = nil
		}
		for line := range strings.Lines(string(between)) {
			if strings.HasPrefix(line, "-") {
				return errors.New("it has the beginning of a block in PEM without its end: it may be half written")
			}
		}
	}
	return nil
}
