package streams

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Rule is the namespace for the streams of the repositories below a prefix.
type Rule struct {
	// Prefix is a host, with its port unless that is the protocol's, and the first elements of a
	// path, or none.
	Prefix string
	// Namespace is a namespace that no other rule has.
	Namespace string
}

// Rules decide in which namespace a stream is made.
type Rules struct{ all []rule }

// rule is a Rule as it was read.
type rule struct {
	prefix, namespace string // the prefix ends in a slash
}

// NewRules reads rules. It returns the index of the first faulty rule and an error: the prefix or
// the namespace is not valid, or another rule has it. Streams are named by what follows the prefix,
// so names of two prefixes would collide in one namespace, and names of a prefix would collide with
// others in the namespace of the default rule.
func NewRules(list []Rule) (rules Rules, wrong int, err error) {
	for i, r := range list {
		prefix, err := parsePrefix(r.Prefix)
		if err != nil {
			return Rules{}, i, err
		}
		if problems := validation.IsDNS1123Label(r.Namespace); len(problems) > 0 {
			return Rules{}, i, fmt.Errorf("namespace: %q is not a namespace: %s", r.Namespace, strings.Join(problems, "; "))
		}
		if r.Namespace == tags.Namespace {
			return Rules{}, i, fmt.Errorf("namespace: %s has the streams that no rule covers, whose names may collide", r.Namespace)
		}
		for _, before := range rules.all {
			switch {
			case before.prefix == prefix:
				return Rules{}, i, fmt.Errorf("prefix: another rule also has %s", strings.TrimSuffix(prefix, "/"))
			case before.namespace == r.Namespace:
				return Rules{}, i, fmt.Errorf("namespace: %s has the streams of %s, whose names may collide: give each prefix its own namespace", r.Namespace, strings.TrimSuffix(before.prefix, "/"))
			}
		}
		rules.all = append(rules.all, rule{prefix, r.Namespace})
	}
	return rules, 0, nil
}

// parsePrefix returns a prefix in the form in which repositories are named, with a slash at its
// end.
func parsePrefix(s string) (string, error) {
	const example = "such as registry.example.com/team"
	if !strings.Contains(s, "/") {
		host, err := reference.ParseHost(s)
		if err != nil {
			return "", fmt.Errorf("prefix: %q is not a host, with or without the beginning of a path, %s: %w", s, example, err)
		}
		return host + "/", nil
	}
	name, _, _ := strings.Cut(s, "/")
	if _, err := reference.ParseHost(name); err != nil {
		return "", fmt.Errorf("prefix: %q does not begin with a host, %s: %w", s, example, err)
	}
	// One more element makes the path a repository's. Docker Hub's host alone would get the prefix
	// library/.
	ref, err := reference.ParseRepository(s + "/x")
	if err != nil {
		return "", fmt.Errorf("prefix: %q is not a host with the beginning of a path, %s: %w", s, example, err)
	}
	return strings.TrimSuffix(ref.Name(), "x"), nil
}

// Place returns where the stream of a repository is made: in the namespace of the longest prefix
// above the repository, named by what follows the prefix; else by the default rule. A repository
// that is itself a prefix is not below it.
func (r Rules) Place(repository reference.Reference) (namespace, name string) {
	longest, full := rule{}, repository.Name()
	for _, rule := range r.all {
		if len(rule.prefix) > len(longest.prefix) && strings.HasPrefix(full, rule.prefix) {
			longest = rule
		}
	}
	if longest.prefix == "" {
		return tags.Namespace, tags.Stream(repository)
	}
	return longest.namespace, tags.StreamBelow(full[len(longest.prefix):])
}
