// Package console serves the answers on pages, for people who look rather than type, below
// /console/.
//
// [New] takes the API server's handler chain. Each page is made of API calls that go through this
// chain as the person who looks: with the person's token or client certificate, address and
// connection. So authentication, rights, limits and audit are those of the API, and a page shows
// nothing that kubectl would not. The package knows the API's JSON (kinds.go), and neither rules
// nor storage.
//
// Pages are HTML from templates, and need no script: links and forms do everything. Scripts copy
// text, make "/" find the search box, and show what is new while a page is open. Text of images,
// registries and clusters is never markup: templates escape it, and [text] makes it printable when
// it is read.
//
// # Signing in
//
// A person signs in with a token. The browser has it in cookies that only servers with the same
// secret can read (sessions.go), so each replica knows the session. The chain checks the token on
// each call, so revoking it ends the session. A request that brings a credential itself, a client
// certificate or an Authorization header as `tidewaiter console` sends it, needs none.
//
// # Bounds
//
// A session lasts for two hours without a page and for twelve altogether. A server remembers the
// last 4,096 sessions that were ended early. An answer of the API is at most 16 MiB. A page reads
// at most [pageRows] rows of each list, and [maxSorted] images to sort them. A page that is open
// holds one watch, which counts among the person's.
package console
