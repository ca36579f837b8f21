// Package gpg verifies simple signing with OpenPGP: signed messages as `gpg --sign` makes them, whose content is
// a simple signing document ("atomic container signature"), as kept in lookaside storage and in OpenShift's
// Image objects.
//
// A Keyring trusts every key in it. Expiry and revocation count at the time the caller names, as they do for gpg
// and containers/image, not at the time a signature claims for itself.
package gpg
