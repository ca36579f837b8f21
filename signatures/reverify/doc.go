// Package reverify keeps the verdicts of stored Images up to date when policies change or time passes, in the
// background and beside a server that has better to do.
//
// A Sweeper reads all Images page by page in the order of their names, judges those whose verdict may be out of date
// (signatures.Stale) and writes the ones whose verdict changed. It sweeps when it starts, when the policies in force
// were replaced (Trigger), when the next expiry comes that the last sweep saw, and after an hour.
//
// It spends a fixed share of its time at work and pauses for the rest, so that it slows down when the server is
// busy: pages then take longer, and so do the pauses. It holds one page at a time.
//
// What a sweep has done is recorded in the Images themselves: a verdict names the policy it was computed with, with a
// hash of its content. A sweep that was cut short and begins again reads from the start, but judges and writes only what
// is left.
package reverify
