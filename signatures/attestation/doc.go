// Package attestation holds what a policy demands of in-toto statements about an image: a predicate
// type, and an expression in CEL (https://cel.dev) that the predicate has to satisfy. It does not
// check signers: call Check only for statements that a root of trust vouches for.
//
//	d, err := attestation.NewDemand("provenance", "slsaprovenance1", `predicate.runDetails.builder.id == "https://…"`)
//	err = d.Check(statement.Predicate)
package attestation
