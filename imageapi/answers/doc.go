// Package answers answers questions about image references: what a reference means, which verdict
// it has, where it runs, and how old these facts are. Verbs, tables, admission and the API all call
// this package, so a question has one answer.
//
// [Answerer.Answer] answers one [Question]. It first finds out what the reference means
// (resolve.go), and then collects facts about that image under that reference: repository, tag and
// digest together. It reads through small interfaces: [Images] and [Tags] are stored objects, [Use]
// knows pods and workloads, and [Policies] judge.
//
// [NewStorage] serves the same as ReferenceReview, a kind of the group tidewaiter.dev that is
// created and never stored, like SelfSubjectAccessReview. It shows a caller only facts that the
// caller may read elsewhere; the others are unknown, with the reason.
//
// [Answerer.Impact] tells what an act would change: it answers once with the present policies, time
// and images, once with those after the act, and compares. [NewImpactStorage] serves this as
// ImpactReview.
//
// # Bounds
//
// A review has at most 500 questions and reads at most 256 MiB of Images. It holds one Image at a
// time. Each list in an answer is bounded by a constant in types.go. A review of an act reads all
// images, a page at a time, one review for each user; its bounds are in impact_types.go.
package answers
