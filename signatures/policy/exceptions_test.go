package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// An exception has single images of the scopes, an end, a person and a reason. Each mistake is
// refused with its field.
func TestExceptionsAreChecked(t *testing.T) {
	t.Parallel()
	const digest, right = "sha256:00000000000000000000000000000000000000000000000000000000000000ff", `until: "2026-12-31T00:00:00Z", by: ann@example.com, reason: why`
	key := signaturestest.NewKey(t, signaturestest.P256)
	parse := func(scopes, exceptions string) (*policy.Policy, error) {
		all, err := policy.Parse([]byte(signaturestest.Document("demo", scopes, signaturestest.TrustKey(key, nil), "")+"  exceptions: "+exceptions+"\n"), "")
		if err != nil {
			return nil, err
		}
		return all[0], nil
	}
	for images, scopes := range map[string]string{
		digest: `["registry.example.com"]`, "registry.example.com/app@" + digest: `["registry.example.com/app"]`, "a.corp.example/app:v1": `["*.corp.example"]`,
		"anywhere.example.com/app:v1": `["*"]`, "Registry.Example.com:443/app:v1": `["registry.example.com/app:v1"]`,
	} {
		if _, err := parse(scopes, fmt.Sprintf("[{images: [%q], %s}]", images, right)); err != nil {
			t.Errorf("%s in %s: %v", images, scopes, err)
		}
	}
	many := func(n int, one string) string { return "[" + strings.TrimSuffix(strings.Repeat(one+",", n), ",") + "]" }
	for exceptions, want := range map[string]string{
		`[{` + right + `}]`:                                                        "spec.exceptions[0].images: is required",
		`[{images: [], ` + right + `}]`:                                            "spec.exceptions[0].images: is required",
		`[{images: [x], ` + right + `}]`:                                           "spec.exceptions[0].images[0]: ",
		`[{images: [""], ` + right + `}]`:                                          "spec.exceptions[0].images[0]: ",
		`[{images: ["*"], ` + right + `}]`:                                         "spec.exceptions[0].images[0]: ",
		`[{images: ["registry.example.com/app"], ` + right + `}]`:                  "names neither a tag nor a digest",
		`[{images: ["registry.example.com/app:v1@` + digest + `"],` + right + `}]`: "both a tag and a digest",
		`[{images: ["other.example.com/app:v1"], ` + right + `}]`:                  "spec.exceptions[0].images[0]: other.example.com/app:v1 is in none of the policy's scopes",
		`[{images: ["sha512:` + strings.Repeat("a", 128) + `"], ` + right + `}]`:   "alone can be the digest of no image",
		`[{images: ["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"], ` + right + `}]`:                                                                                          "which no image can have",
		`[{images: ["registry.example.com/app@sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"], ` + right + `}]`:                                                                 "which no image can have",
		`[{images: ["sha256:01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b"], ` + right + `}]`:                                                                                          "which no image can have",
		`[{images: ["registry.example.com/app@sha512:cf83e1357eefb8bdf1542850d66d8007d620e4050b5715dc83f4a921d36ce9ce47d0d13c5d85f2b0ff8318d2877eec2f63b931bd47417a81a538327af927da3e"], ` + right + `}]`: "which no image can have",
		`[{images: ["registry.example.com/app@sha384:` + strings.Repeat("a", 96) + `"], ` + right + `}]`:                                                                                                  "spec.exceptions[0].images[0]: ",
		`[{images: ["` + digest[:20] + `"], ` + right + `}]`:                                                                                                                                              "spec.exceptions[0].images[0]: ",
		`[{images: ["` + digest + `"], by: a, reason: b}]`:                                                                                                                                                `spec.exceptions[0].until: is "", must be a time in RFC 3339`,
		`[{images: ["` + digest + `"], until: tomorrow, by: a, reason: b}]`:                                                                                                                               `spec.exceptions[0].until: is "tomorrow"`,
		`[{images: ["` + digest + `"], until: "2026-12-31", by: a, reason: b}]`:                                                                                                                           "spec.exceptions[0].until: ",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00.5Z", by: a, reason: b}]`:                                                                                                               "spec.exceptions[0].until: ",
		`[{images: ["` + digest + `"], until: "9999-12-31T23:59:59-01:00", by: a, reason: b}]`:                                                                                                            "spec.exceptions[0].until: ",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00Z", reason: b}]`:                                                                                                                        "spec.exceptions[0].by: is required",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00Z", by: " ", reason: b}]`:                                                                                                               "spec.exceptions[0].by: is required",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00Z", by: a}]`:                                                                                                                            "spec.exceptions[0].reason: is required",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00Z", by: a, reason: "b\nc"}]`:                                                                                                            "spec.exceptions[0].reason: must be one line",
		`[{images: ["` + digest + `"], until: "2026-12-31T00:00:00Z", by: a, reason: ` + strings.Repeat("b", 513) + `}]`:                                                                                  "spec.exceptions[0].reason: must be one line of at most 512 bytes",
		`[{images: ["` + digest + `"], untill: "2026-12-31T00:00:00Z"}]`:                                                                                                                                  "untill: unknown field; known here: by, images, reason, until",
		`[{images: ` + many(33, `"`+digest+`"`) + `, ` + right + `}]`:                                                                                                                                     "has 33 images, at most 32",
		many(65, `{images: ["`+digest+`"], `+right+`}`):                                                                                                                                                   "has 65 exceptions, at most 64",
	} {
		if _, err := parse(`["registry.example.com"]`, exceptions); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.200s: %v, want %q", exceptions, err, want)
		}
	}
	plain, err := parse(`["registry.example.com"]`, "[]")
	if err != nil {
		t.Fatal(err)
	}
	excepting, err := parse(`["registry.example.com"]`, `[{images: ["`+digest+`"], `+right+`}]`)
	if err != nil || excepting.Hash() == plain.Hash() {
		t.Errorf("a policy with an exception has the hash of one without: what is stored would not be judged again (%v)", err)
	}
}
