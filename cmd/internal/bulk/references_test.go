package bulk

import (
	"strings"
	"testing"
)

// FuzzReadReferences: if --failures writes the references of a file, reading them again gives the
// same jobs.
func FuzzReadReferences(f *testing.F) {
	for _, seed := range []string{
		"registry.example.com/team/app:v1\n", "busybox # why\n# nothing\n\n", "registry.example.com/team/app:*\nregistry.example.com/**",
		"localhost:5000/app@sha256:" + strings.Repeat("0", 64), "docker://quay.io/acme/web", "[::1]:5000/**", "quay.io/**:*", "app:*", "/**", ":*", "\xff", "a\r\nb\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		jobs, err := CollectJobs(nil, []string{"-"}, strings.NewReader(text), ParseImage)
		if err != nil {
			if msg := err.Error(); !strings.HasPrefix(msg, "standard input, line ") && !strings.HasPrefix(msg, "reading standard input: ") {
				t.Errorf("the error does not name the line: %v", err)
			}
			return
		}
		var written strings.Builder
		for _, j := range jobs {
			written.WriteString(j.name() + " # Timeout\n")
		}
		again, err := CollectJobs(nil, []string{"-"}, strings.NewReader(written.String()), ParseImage)
		if err != nil || len(again) != len(jobs) {
			t.Fatalf("%q: %d jobs became %d, %v", written.String(), len(jobs), len(again), err)
		}
		for i := range jobs {
			if again[i] != jobs[i] {
				t.Errorf("%+v became %+v", jobs[i], again[i])
			}
		}
	})
}
