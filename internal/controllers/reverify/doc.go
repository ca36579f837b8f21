// Package reverify keeps the verdicts of stored Images up to date when policies change or time
// passes. It works in the background, and leaves a server most of its time for requests.
//
// A Sweeper reads all Images page by page, in the order of their names. It judges those whose
// verdict may be out of date (signatures.Stale) and writes those whose verdict changed. It sweeps
// when it starts, when policies were replaced (Trigger), when the earliest expiry that the last
// sweep saw has come, and after an hour.
//
// It spends a fixed share of its time at work and pauses for the rest. So it slows down when the
// server is busy: pages then take longer, and so do the pauses. It holds one page at a time.
//
// The Images record what a sweep has done: a verdict has the name of its policy and a hash of the
// policy's content. If a sweep was cut short, the next one reads from the start, but judges and
// writes only what is left.
package reverify
