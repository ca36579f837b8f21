package main

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
)

// What runs and is not imported is said with its pods, and is not called unknown.
func TestRunsNotImported(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]answers.Answer{
		"": {Message: "no image has the digest", Running: &answers.Running{Complete: true}},
		"runs, not imported: it runs; 1 pod runs it: prod/shop/app-1":            {Message: "it runs", Meaning: answers.Meaning{Digest: "sha256:1"}, Running: &answers.Running{Pods: 1, Complete: true, Names: []string{"prod/shop/app-1"}}},
		"runs, not imported: nothing is known; 5+ pods name it: a/b/c, d/e/f, …": {Message: "nothing is known", Running: &answers.Running{Pods: 5, Names: []string{"a/b/c", "d/e/f"}}},
		"it runs; 1 pod names it":                    {Message: "it runs", Suggestion: "r.example.com/a@sha256:1", Running: &answers.Running{Pods: 1, Complete: true}},
		"runs, not imported: it runs; 2 pods run it": {Message: "it runs", Meaning: answers.Meaning{Digest: "sha256:1"}, Running: &answers.Running{Pods: 2, Complete: true}},
	} {
		if got := (&found{Answer: a}).runs(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
