package attestation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
)

// Bounds on an expression.
const (
	MaxExpression = 4 << 10 // bytes
	// maxCost bounds one evaluation, in CEL's units: about one for each step, and for each ten
	// bytes of text.
	maxCost = 500_000
)

// shortNames maps the short names of predicate types in cosign and sigstore's policy-controller to
// URIs.
var shortNames = map[string]string{
	"custom":           "https://cosign.sigstore.dev/attestation/v1",
	"cyclonedx":        "https://cyclonedx.org/bom",
	"link":             "https://in-toto.io/Link/v1",
	"openvex":          "https://openvex.dev/ns",
	"slsaprovenance":   "https://slsa.dev/provenance/v0.2",
	"slsaprovenance02": "https://slsa.dev/provenance/v0.2",
	"slsaprovenance1":  "https://slsa.dev/provenance/v1",
	"spdx":             "https://spdx.dev/Document",
	"spdxjson":         "https://spdx.dev/Document",
	"vuln":             "https://cosign.sigstore.dev/attestation/vuln/v1",
}

// Demand is what one attestation of an image must satisfy. It is immutable.
type Demand struct {
	Name          string // unique within a policy
	PredicateType string // a URI
	expression    string // "" if any predicate will do
	program       cel.Program
}

// TypeOf returns the URI of a predicate type, which may be one of cosign's short names.
func TypeOf(text string) (string, error) {
	if uri, ok := shortNames[text]; ok {
		return uri, nil
	}
	if u, err := url.Parse(text); err != nil || u.Scheme == "" || strings.TrimSpace(text) != text {
		return "", fmt.Errorf("%q is neither a URI nor one of cosign's short names, such as slsaprovenance1, spdxjson, cyclonedx or vuln", text)
	}
	return text, nil
}

// NewDemand makes a Demand. expression may be ""; otherwise it is CEL of type bool, in which
// "predicate" is the predicate.
func NewDemand(name, predicateType, expression string) (*Demand, error) {
	uri, err := TypeOf(predicateType)
	if err != nil {
		return nil, err
	}
	d := &Demand{Name: name, PredicateType: uri, expression: expression}
	if expression != "" {
		d.program, err = compile(expression)
	}
	return d, err
}

// environment has CEL's standard library and optional values only, so that every function has a
// cost.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("predicate", cel.DynType),
		cel.OptionalTypes(),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ASTValidators(cel.ValidateRegexLiterals(), cel.ValidateDurationLiterals(), cel.ValidateTimestampLiterals()),
	)
})

func compile(expression string) (cel.Program, error) {
	if len(expression) > MaxExpression {
		return nil, fmt.Errorf("has %d bytes, at most %d are allowed", len(expression), MaxExpression)
	}
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("is not a CEL expression: %w", err)
	}
	if ast.OutputType() != cel.BoolType {
		return nil, fmt.Errorf("is of type %s, must be of type bool; compare a value that may be true or false: %s == true", ast.OutputType(), expression)
	}
	return env.Program(ast, cel.CostTracking(coster{}), cel.CostLimit(maxCost))
}

// ErrRefused is wrapped by the errors of Check.
var ErrRefused = errors.New("the predicate does not satisfy the policy")

// Check returns nil if a predicate, which is JSON, satisfies the demand. Its time and memory are
// bounded for any expression and predicate, and its result depends only on these.
func (d *Demand) Check(predicate []byte) error {
	if d.program == nil {
		return nil
	}
	value, err := decode(predicate)
	if err != nil {
		return fmt.Errorf("%w: it cannot be read: %w", ErrRefused, err)
	}
	out, _, err := d.program.Eval(map[string]any{"predicate": value})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s: %w", ErrRefused, d.expression, err)
	case out.Value() != true:
		return fmt.Errorf("%w: %s is false", ErrRefused, d.expression)
	}
	return nil
}

// decode reads JSON. Whole numbers that fit are int, as in Kubernetes' own CEL.
func decode(data []byte) (any, error) {
	if len(data) == 0 {
		return map[string]any{}, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	return numbers(value)
}

func numbers(value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i, nil
		}
		return v.Float64()
	case map[string]any:
		for key, item := range v {
			number, err := numbers(item)
			if err != nil {
				return nil, err
			}
			v[key] = number
		}
	case []any:
		for i, item := range v {
			number, err := numbers(item)
			if err != nil {
				return nil, err
			}
			v[i] = number
		}
	}
	return value, nil
}
