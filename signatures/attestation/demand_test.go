package attestation_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/signatures/attestation"
)

const slsa = `{"buildDefinition":{"buildType":"https://example.com/build/v1"},"runDetails":{"builder":{"id":"https://example.com/builder"}},"runs":3,"score":7.5,
"findings":[{"severity":"LOW"},{"severity":"HIGH"}],"big":12345678901234567890}`

func TestExpressions(t *testing.T) {
	t.Parallel()
	for expression, satisfied := range map[string]bool{
		``: true,
		`predicate.runDetails.builder.id == "https://example.com/builder"`:   true,
		`predicate.runDetails.builder.id == "https://example.com/builder2"`:  false,
		`predicate.runDetails.builder.id.startsWith("https://example.com/")`: true,
		`predicate.runs == 3 && predicate.runs + 1 == 4`:                     true,
		`predicate.score > 7 && predicate.runs < 3.5`:                        true,
		`predicate.big > 1.0e19`:                                             true,
		`predicate.findings.all(f, f.severity != "CRITICAL")`:                true,
		`predicate.findings.exists(f, f.severity == "CRITICAL")`:             false,
		`has(predicate.nothing)`:                                             false,
		`predicate.?nothing.?deeper.orValue("x") == "x"`:                     true,
		// an error counts as false
		`predicate.nothing == 1`: false,
		`predicate.runs == "3"`:  false,
	} {
		d, err := attestation.NewDemand("d", "slsaprovenance1", expression)
		if err != nil {
			t.Errorf("%s: %v", expression, err)
			continue
		}
		if err := d.Check([]byte(slsa)); (err == nil) != satisfied || err != nil && !errors.Is(err, attestation.ErrRefused) {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

func TestDemandsThatCannotWork(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ typ, expression, want string }{
		{"slsa", "", "neither a URI"},
		{"", "", "neither a URI"},
		{" https://slsa.dev/provenance/v1", "", "neither a URI"},
		{"vuln", "predicate.", "not a CEL expression"},
		{"vuln", "predicat.a == 1", "undeclared reference"},
		{"vuln", "predicate.a", "must be of type bool"},
		{"vuln", "1", "must be of type bool"},
		{"vuln", `predicate.a.matches("(")`, "invalid matches argument"},
		{"vuln", strings.Repeat(" ", attestation.MaxExpression) + "true", "at most"},
		{"vuln", strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000), "recursion"},
	} {
		if _, err := attestation.NewDemand("d", tc.typ, tc.expression); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s, %.40s: %v, want %q", tc.typ, tc.expression, err, tc.want)
		}
	}
}

// An expression whose evaluation never ends in practice is cut short, which counts as false.
func TestAttackEndlessExpression(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 2000 {
		items = append(items, fmt.Sprint(i))
	}
	predicate := []byte(`{"a":[` + strings.Join(items, ",") + `],"text":"` + strings.Repeat("a", 100_000) + `"}`)
	for _, expression := range []string{
		`predicate.a.all(x, predicate.a.all(y, predicate.a.all(z, x + y + z >= 0)))`,
		`predicate.a.all(x, predicate.text.matches("(a+)+b") == false)`,
		`predicate.a.map(x, predicate.a.map(y, predicate.text + predicate.text)).size() > 0`,
		`predicate.a.all(x, predicate == predicate)`,
		`predicate.a.all(x, predicate.text <= predicate.text)`,
		`predicate.a.all(x, bytes(predicate.text) != b"")`,
	} {
		d, err := attestation.NewDemand("d", "vuln", expression)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Check(predicate); err == nil || !strings.Contains(err.Error(), "cost limit") {
			t.Errorf("%s: %v", expression, err)
		}
	}
}

// Whatever the predicate is, an expression that is never true refuses it. An expression that is
// always true accepts it, unless the predicate cannot be read.
func FuzzPredicate(f *testing.F) {
	f.Add([]byte(slsa))
	f.Add([]byte(`null`))
	f.Add([]byte(`[1e999,{"a":1}]`))
	f.Add([]byte(``))
	never, err := attestation.NewDemand("d", "vuln", `predicate == "x" && predicate == "y"`)
	if err != nil {
		f.Fatal(err)
	}
	any, err := attestation.NewDemand("d", "vuln", `predicate == predicate || true`)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, predicate []byte) {
		if never.Check(predicate) == nil {
			t.Error("satisfied")
		}
		if err := any.Check(predicate); err != nil && !strings.Contains(err.Error(), "cannot be read") {
			t.Error(err)
		}
	})
}
