package console

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// What others wrote is as they released it: htmx.org 2.0.7 and htmx-ext-sse 2.2.4 of npm, with the
// integrities
// sha512-YiJqF3U5KyO28VC5mPfehKJPF+n1Gni+cupK+D69TF0nm7wY6AXn3a4mPWIikfAXtl1u1F1+ZhSCS7KT8pVmqA==
// and
// sha512-LJmxVhykyflBWgh5PvbRidcyuqMHlgfajmmzumvKctv9puvsufeH6OaejSMZTNTnEI8O2wXXn4ZZtBdpEMqmEQ==.
func TestFilesOfOthers(t *testing.T) {
	for name, want := range map[string]string{
		"LICENSE":     "d3d2456f76414f2456104660ebd65aff1c04cd7966b942bdabd63f3cdb316a38",
		"LICENSE.sse": "a17d224ce9afdc21ec9491b76a2f5d036d19aa641ac4f85ca29c21f9f7e54fdf",
		"htmx.min.js": "60231ae6ba9db3825eb15a261122d5f55921c4d53b66bf637dc18b4ee27c79f9",
		"sse.min.js":  "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
	} {
		b, err := staticFiles.ReadFile("static/htmx/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has the hash %x", name, sum)
		}
	}
}
