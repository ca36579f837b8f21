package main

import (
	"strings"
	"testing"
)

func TestClosing(t *testing.T) {
	for name, tc := range map[string]struct {
		in, want string
		failed   bool
	}{
		"passed": {`{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\n"}
{"Action":"pass","Package":"p"}
`, "ok  \tp\t0.1s\nx: 1 passed, 0 failed, 0 skipped, in 1 packages\n", false},
		"failed and skipped": {`go test -json ./...
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"skip","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
`, "go test -json ./...\n--- FAIL: TestA\nFAIL\tp\t0.1s\nskipped: p TestB\nx: 0 passed, 1 failed, 1 skipped, in 1 packages\n", true},
		"does not build": {`{"ImportPath":"p","Action":"build-output","Output":"p.go:1: no\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"fail","Package":"p"}
`, "p.go:1: no\nx: 0 passed, 0 failed, 0 skipped, in 1 packages\n", true},
		"slow": {`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.9}
{"Action":"pass","Package":"p","Test":"TestB/part","Elapsed":7}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":7.26}
{"Action":"pass","Package":"p","Test":"TestC","Elapsed":12}
{"Action":"pass","Package":"p","Elapsed":20}
`, "slow: 12.0 s p TestC\nslow: 7.3 s p TestB\nx: 4 passed, 0 failed, 0 skipped, in 1 packages\n", false},
		"nothing ran": {"", "x: 0 passed, 0 failed, 0 skipped, in 0 packages\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			failed, err := closing("x", strings.NewReader(tc.in), &out)
			if err != nil || failed != tc.failed || out.String() != tc.want {
				t.Errorf("failed=%t, %v, printed\n%s", failed, err, out.String())
			}
		})
	}
}
