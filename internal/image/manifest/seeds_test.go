package manifest

import (
	"os"
	"path/filepath"
	"testing"
)

// AddSeeds adds every file of testdata, and fails when there is none.
func AddSeeds(f *testing.F, add func(raw []byte)) {
	f.Helper()
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds in testdata: %v", err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		add(raw)
	}
}
