package main

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// BenchmarkSelect shows what the first page of 100 of a selector takes, as a table, of a server in
// a process of its own:
// -images=1000000 -scaledir=DIR, as for BenchmarkScale, and -labels=0 if disk is short.
func BenchmarkSelect(b *testing.B) {
	for text := range strings.SplitSeq(*scaleImages, ",") {
		n, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Images="+text, func(b *testing.B) {
			dir := b.TempDir()
			if *scaleDir != "" {
				dir = filepath.Join(*scaleDir, text)
			}
			names := seedMany(b, dir, n)
			s := runProcess(b, dir)
			for _, of := range []struct{ name, selector string }{
				{"Layer", "layer=" + s.layer(b, names[0])}, {"Layer/None", "layer=" + manifest.Digest([]byte("none"))},
				{"Base", "base=" + scaleBase}, {"Base/Digest", "base=" + manifest.Digest([]byte(scaleBase))}, {"Base/None", "base=registry.example.com/none:1"},
				{"Signer", "signatures.signer=rare"}, {"Gone", "gone=true"}, {"Package/None", "package=openssl"},
			} {
				b.Run("By="+of.name, func(b *testing.B) {
					var all []time.Duration
					for b.Loop() {
						begun := time.Now()
						if err := s.accept("application/json;as=Table;v=v1;g=meta.k8s.io", http.MethodGet, benchPath+"?limit=100&includeObject=None&fieldSelector="+url.QueryEscape(of.selector), "", "", http.StatusOK); err != nil {
							b.Fatal(err)
						}
						all = append(all, time.Since(begun))
					}
					reportTimes(b, all, "ms")
				})
			}
		})
	}
}
