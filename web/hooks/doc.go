// Package hooks receives the push notifications of container registries.
//
// A Receiver of the configuration names a vendor's format, the registry hosts
// it may speak for and the file that holds its secret. New turns the receivers
// into a Handler, to be served by the API server's listener, by a plain one that
// serves nothing else, or by both:
//
//	POST /hooks/NAME          vendors that can send a header or a signature
//	POST /hooks/NAME/TOKEN    vendors that can only call a URL
//
// A request is authenticated before its body is read, by its path and header alone, unless its
// proof is a signature of the body. It is then decoded by its vendor's file (quay.go, github.go, …)
// into events, filtered, and handed to the Spool in one call: all of its events or none. The
// answers are a contract with the senders, several of which retry for ever or disable the hook on
// the wrong one:
//
//	202  the events are on disk
//	200  authenticated, and nothing in it is of interest: a pull, a layer, a
//	     ping, a host outside the allow-list, a shape we do not know; the answer and
//	     the log say which
//	400  the body is not JSON
//	401  there is no such receiver, or its secret is missing or wrong: one
//	     answer, so that nobody learns which receivers there are. A body that is
//	     signed has it, too, when it is too large or does not arrive, since nothing
//	     is proved then
//	408  the body did not arrive within 10 seconds
//	413  the body is over 1 MiB, or holds over 1,000 events
//	503  the spool could not be written, or the body arrived so slowly that
//	     others took its place; send it again
//
// A host outside the allow-list is refused with 200 and counted
// (tidewaiter_webhook_refused_total{reason="host"}): it is the receiver's
// configuration that is at odds with the registry's, and any other status would
// make distribution's queue wait behind the event for ever and Quay disable the
// hook.
//
// An event is a hint. Nothing in it is trusted beyond its naming a repository
// of an allowed host, no URL in it is ever called (Docker Hub's callback_url
// included), and no secret reaches a log, a metric or an error.
//
// A new vendor is one file here with its decoder, one line in the table of
// vendors, and one folder of payloads under testdata.
package hooks
