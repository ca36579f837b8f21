//lint:file-ignore SA1019 arithmetic on points is what the deprecated functions are for, and only a test needs it
package signaturestest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"math/big"
	"testing"
)

// RecoverKey finds another P-256 key under which a signature made by key verifies. Two keys can be
// computed from one ECDSA signature, and anyone may claim the one that is not the signer's (SEC 1,
// section 4.1.6).
func RecoverKey(t testing.TB, message, signature []byte, key *Key) *ecdsa.PublicKey {
	t.Helper()
	var rs struct{ R, S *big.Int }
	_, err := asn1.Unmarshal(signature, &rs)
	must(t, err)
	curve := elliptic.P256()
	p, n := curve.Params().P, curve.Params().N
	sum := sha256.Sum256(message)
	e := new(big.Int).SetBytes(sum[:])

	// R is a point with x = r; y² = x³ - 3x + b.
	y := new(big.Int).Exp(rs.R, big.NewInt(3), p)
	y.Sub(y, new(big.Int).Mul(big.NewInt(3), rs.R)).Add(y, curve.Params().B).Mod(y, p)
	if y.ModSqrt(y, p) == nil {
		t.Fatal("r is not a point of the curve")
	}
	inverse := new(big.Int).ModInverse(rs.R, n)
	for range 2 {
		// Q = r⁻¹(sR - eG)
		sx, sy := curve.ScalarMult(rs.R, y, rs.S.Bytes())
		ex, ey := curve.ScalarBaseMult(e.Bytes())
		qx, qy := curve.Add(sx, sy, ex, new(big.Int).Sub(p, ey))
		qx, qy = curve.ScalarMult(qx, qy, inverse.Bytes())
		q := &ecdsa.PublicKey{Curve: curve, X: qx, Y: qy}
		if !ecdsa.VerifyASN1(q, sum[:], signature) {
			t.Fatal("the recovered key does not verify the signature")
		}
		if !q.Equal(key.Private.Public()) {
			return q
		}
		y.Sub(p, y)
	}
	t.Fatal("no other key")
	return nil
}
