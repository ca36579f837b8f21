// Package console serves web pages with the API's answers, below /console/.
//
// [New] takes the API server's handler chain. To make a page, it calls the API through this chain
// as the person who requests the page: with the person's token or client certificate, address and
// connection. So authentication, authorization, limits and audit are the API's, and a page shows
// nothing that kubectl would not show. The package knows the API's JSON (kinds.go), but neither
// rules nor storage.
//
// Pages are HTML from templates, and need no script: links and forms do everything. Scripts copy
// text, make "/" find the search box, and show what is new while a page is open. Text from images,
// registries and clusters never becomes markup: templates escape it, and [text] makes it printable
// when it is read.
//
// # Signing in
//
// A person signs in with a token. The browser keeps it in cookies that only servers with the same
// secret can read (sessions.go), so each replica knows the session. The chain checks the token on
// each call, so revoking the token ends the session. A request with a credential of its own (a
// client certificate, or an Authorization header such as `tidewaiter console` sends) needs no
// session.
//
// # Bounds
//
// A session ends after two hours without a page, and after twelve hours at the latest. Servers with
// the same objects remember the last 4,096 sessions that were ended early. An answer of the API is
// at most 16 MiB. A page reads at most [pageRows] rows of each list, and [maxSorted] images to sort
// them. An open live page holds one watch, which counts among the person's requests; a person has
// at most [maxOpen] of them.
package console
