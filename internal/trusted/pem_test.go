package trusted_test

import (
	"encoding/pem"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// The beginning of a block without its end is found wherever it is, and comments are not taken for
// one.
func TestWholePEM(t *testing.T) {
	t.Parallel()
	block := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: make([]byte, 300)}))
	for text, whole := range map[string]bool{
		block: true, "\n" + block: true, "# a - b\n" + block + "# end": true, block + block: true,
		"": false, "# none\n": false, "---\n" + block: false, block + "--": false, block + "-----BEGIN CERTIFICATE-----\n": false,
	} {
		if err := trusted.WholePEM([]byte(text)); (err == nil) != whole {
			t.Errorf("%.60q…%q: %v", text, text[max(0, len(text)-20):], err)
		}
	}
	for n := range len(block) {
		// One that ends before its last line, and is followed by a whole one, is found, too.
		if err := trusted.WholePEM([]byte(block[:n] + "\n" + block)); err == nil && n > 0 && n < len(block)-1 {
			t.Errorf("the first %d of %d bytes before a whole block are skipped", n, len(block))
		}
	}
}
