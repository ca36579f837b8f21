package policy_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// The policies in docs/signatures.md are policies: nothing is wrong with them but
// that the files which they name are not here.
func TestDocumentedPolicies(t *testing.T) {
	text, err := os.ReadFile("../../docs/signatures.md")
	if err != nil {
		t.Fatal(err)
	}
	const head = "apiVersion: config.openshift.io/v1\nkind: ClusterImagePolicy\nmetadata: {name: demo}\nspec:\n  scopes: [registry.example.com/demo]\n  policy:\n"
	seen := 0
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for part := range strings.SplitSeq(block[1], "---\n") {
			switch {
			case strings.HasPrefix(part, "apiVersion:"):
			case strings.HasPrefix(part, "    rootOfTrust:"):
				part = head + part
			case strings.HasPrefix(part, "        fulcioSubjects:"):
				part = head + "    rootOfTrust:\n      policyType: TrustedRoot\n      trustedRoot:\n        trustedRootPath: trusted_root.json\n" + part
			case strings.HasPrefix(part, "registriesDir:"), strings.HasPrefix(part, "trustedRoots:"): // of the configuration
				continue
			default:
				t.Errorf("what is this?\n%s", part)
			}
			seen++
			if _, err := policy.Parse([]byte(part), filepath.Join(t.TempDir(), "policy.yaml")); err == nil || !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v in\n%s", err, part)
			}
		}
	}
	if seen < 6 {
		t.Errorf("%d policies were found: the test reads something else", seen)
	}
}
