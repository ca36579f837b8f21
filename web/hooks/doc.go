// Package hooks receives the push notifications of container registries.
//
// A Receiver in the configuration has a vendor's format, the registry hosts whose events it
// accepts, and the file with its secret. New turns the receivers into a Handler, to be served by
// the API server's listener, by a plain one that serves nothing else, or by both:
//
//	POST /hooks/NAME          vendors that can send a header or a signature
//	POST /hooks/NAME/TOKEN    vendors that can only call a URL
//
// The handler authenticates a request by its path and header before it reads the body, unless the
// proof is a signature of the body. Then the vendor's decoder (such as quay.go) makes events of
// the body. The handler filters them and passes all of them to the Spool in one call. The
// answers are a contract with the senders: some retry for ever, or disable the hook, after a wrong
// one:
//
//	202  the events are stored durably
//	200  the request is authenticated, and has no event that counts: it reports
//	     a pull, a layer or a ping, its host is outside the allow-list, or its
//	     form is unknown. The answer and the log have the reason
//	400  the body is not JSON
//	401  the receiver does not exist, or the secret is missing or wrong. It is
//	     one answer for all, so that a caller cannot find out which receivers
//	     exist. A signed body that is too large or does not arrive gets it, too,
//	     because such a request has proved nothing
//	408  the body did not arrive within 10 seconds
//	413  the body is over 1 MiB, or has over 1,000 events
//	503  the spool could not be written, or the body arrived so slowly that
//	     others took its place; send it again
//
// A host outside the allow-list is refused with 200 and counted
// (tidewaiter_webhook_refused_total{reason="host"}). The receiver's configuration does not match
// the registry's, and any other status would block distribution's queue behind the event for ever,
// and make Quay disable the hook.
//
// An event is a hint: only the repository that it names, on an allowed host, is used. The server
// never calls a URL from an event, including Docker Hub's callback_url. Secrets do not get into
// logs, metrics or errors.
//
// To add a vendor, add a file with its decoder, a line in the table of vendors, and a folder of
// payloads in testdata.
package hooks
