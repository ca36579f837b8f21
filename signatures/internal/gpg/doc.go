// Package gpg verifies simple signing with OpenPGP: signed messages as `gpg --sign` makes them,
// whose content is a simple signing document ("atomic container signature"). Lookaside storage and
// OpenShift's Image objects hold such messages.
//
// A Keyring trusts every key in it. Expiry and revocation count at the time that the caller names,
// as they do for gpg and containers/image. The time that a signature claims for itself does not
// matter for them.
package gpg
