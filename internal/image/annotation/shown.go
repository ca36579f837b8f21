package annotation

import (
	"maps"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// ShownIn returns the annotations of an Image that readers of one repository see, for the pods of a
// namespace: without references, signatures, verdicts and policies of other repositories and
// namespaces.
func ShownIn(annotations map[string]string, repository reference.Reference, namespace string) map[string]string {
	shown := maps.Clone(annotations)
	for _, key := range []string{References, MoreReferences, Gone, Repositories, Verdicts, NamespaceVerdicts, TagVerdicts, Policy, NamespacePolicy, Recheck} {
		delete(shown, key)
	}
	if shown == nil {
		return nil
	}
	isHere := func(ref reference.Reference) bool { return ref.Bare() == repository }
	SetKnown(shown, slices.DeleteFunc(Known(annotations), func(ref reference.Reference) bool { return !isHere(ref) }))
	missing := Missing(annotations)
	maps.DeleteFunc(missing, func(ref reference.Reference, _ string) bool { return !isHere(ref) })
	SetMissing(shown, missing)
	if r, ok := Found(annotations)[repository.String()]; ok {
		SetFound(shown, map[string]Repository{repository.String(): r})
	}
	for _, key := range []string{Verdicts, NamespaceVerdicts, TagVerdicts} {
		here := judged(annotations, key)
		maps.DeleteFunc(here, func(key string, _ Verdict) bool {
			of, in, _ := strings.Cut(key, "#")
			ref, err := reference.Parse(of)
			return of != NotJudged && (err != nil || !isHere(ref) || in != "" && in != namespace)
		})
		if len(here) > 0 {
			set(shown, key, here)
		}
	}
	return shown
}

// IsElsewhere reports whether, by its annotations, an Image is or was in another repository than
// the given one. own is the Image's own reference.
func IsElsewhere(annotations map[string]string, own string, repository reference.Reference) bool {
	if annotations[MoreReferences] != "" {
		return true
	}
	if ref, err := reference.Parse(own); err != nil || ref.Bare() != repository {
		return true
	}
	for name := range Found(annotations) {
		if name != Clients && name != repository.String() {
			return true
		}
	}
	refs := slices.Concat(Known(annotations), slices.Collect(maps.Keys(Missing(annotations))))
	return slices.ContainsFunc(refs, func(ref reference.Reference) bool { return ref.Bare() != repository })
}
