// Package gpg verifies simple signing with OpenPGP: messages signed by `gpg --sign` whose content
// is a simple signing document ("atomic container signature"). Lookaside storage and OpenShift's
// Image objects have such messages.
//
// A Keyring trusts every key in it. Expiry and revocation are checked at the time that the caller
// passes, as gpg and containers/image do. The time in the signature does not matter for this.
package gpg
