// Package answers answers questions about image references: what a reference means, by which
// verdict, where it runs and how old that knowledge is. Verbs, tables, admission and the API ask
// this package, so one question has one answer.
//
// [Answerer.Answer] answers one [Question]. It first finds out what the reference means
// (resolve.go), and then asks about that image and that very reference: repository, tag and digest
// together. It states its needs as small interfaces: [Images] and [Tags] are stored objects, [Use]
// knows pods and workloads, and [Policies] judge.
//
// [NewStorage] serves the same as ReferenceReview, a kind of the group tidewaiter.dev that is
// created and never stored, as SelfSubjectAccessReview is. A caller learns from it only what the
// caller may read otherwise; the rest is unknown, with the reason.
//
// [Answerer.Impact] says what an act would change before it is done: it answers as by the policies,
// the time and the images that there would be, and compares. [NewImpactStorage] serves that as
// ImpactReview.
//
// # Bounds
//
// A review has at most 500 questions and reads at most 256 MiB of Images. It holds one Image at a
// time. Each list in an answer is bounded by a constant in types.go. A review of an act reads all
// images, a page at a time, one review for each user; its bounds are in impact_types.go.
package answers
