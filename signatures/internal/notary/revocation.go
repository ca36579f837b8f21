package notary

import (
	"bytes"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/notaryproject/notation-core-go/revocation"
	"github.com/notaryproject/notation-core-go/revocation/crl"
	"github.com/notaryproject/notation-core-go/revocation/purpose"
	"github.com/notaryproject/notation-core-go/revocation/result"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// MaxLists bounds the revocation lists of one policy.
const MaxLists = 64

// skew is how far the clocks of a CA and of this server may differ: a list is valid this long
// before its thisUpdate.
const skew = time.Minute

// List is a certificate revocation list (RFC 5280, section 5) that is complete: it has all revoked
// certificates of its scope.
type List struct {
	crl *x509.RevocationList
	// scope is the list's issuingDistributionPoint in DER: of two lists with the same issuer and the
	// same scope, the newer one replaces the older one.
	scope            string
	onlyEnd, onlyCAs bool
	points           []string // URIs of which a certificate must name one; none for all certificates
}

// Extensions of lists (RFC 5280, section 5.2).
var (
	oidIssuingDistributionPoint = asn1.ObjectIdentifier{2, 5, 29, 28}
	oidDeltaCRLIndicator        = asn1.ObjectIdentifier{2, 5, 29, 27}
	oidFreshestCRL              = asn1.ObjectIdentifier{2, 5, 29, 46}
)

// ParseLists reads one revocation list or several: blocks "X509 CRL" in PEM form, or lists in DER
// form, one after the other. It returns at most MaxLists. Their signatures are checked when a
// certificate is, because the certificate comes with its issuer's.
func ParseLists(data []byte) ([]*List, error) {
	var lists []*List
	inPEM := bytes.Contains(data, []byte("-----BEGIN "))
	for rest := data; len(bytes.TrimSpace(rest)) > 0; {
		if len(lists) == MaxLists {
			return nil, fmt.Errorf("holds more than %d lists", MaxLists)
		}
		after := fmt.Sprintf("after %d lists", len(lists))
		der := rest
		if inPEM {
			block, behind := pem.Decode(rest)
			switch {
			case block == nil || bytes.Count(rest[:len(rest)-len(behind)], []byte("-----BEGIN ")) > 1: // pem.Decode skips damaged blocks
				return nil, fmt.Errorf("%s: has a damaged PEM block, or something that is none", after)
			case block.Type != "X509 CRL":
				return nil, fmt.Errorf("%s: has a PEM block %.40q, must be \"X509 CRL\"", after, block.Type)
			}
			der, rest = block.Bytes, behind
		}
		var raw asn1.RawValue
		behind, err := asn1.Unmarshal(der, &raw)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%s: is not a revocation list in PEM or DER form: %w", after, err)
		case inPEM && len(behind) > 0:
			return nil, fmt.Errorf("%s: a PEM block has something behind the list", after)
		case !inPEM:
			rest = behind
		}
		list, err := parseList(raw.FullBytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", after, err)
		}
		lists = append(lists, list)
	}
	if len(lists) == 0 {
		return nil, errors.New("holds no revocation list")
	}
	return lists, nil
}

// parseList refuses lists that do not have all revoked certificates, or have no time of the next
// update.
func parseList(der []byte) (*List, error) {
	parsed, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, fmt.Errorf("is not a revocation list: %w", err)
	}
	l := &List{crl: parsed}
	if !parsed.ThisUpdate.Before(parsed.NextUpdate) {
		return nil, fmt.Errorf("%s has no end (nextUpdate), so it could be any age", l)
	}
	for _, x := range parsed.Extensions {
		switch {
		case x.Id.Equal(oidDeltaCRLIndicator):
			return nil, fmt.Errorf("%s is a delta list (deltaCRLIndicator), which has only what changed: give the complete list", l)
		case x.Id.Equal(oidFreshestCRL):
			return nil, fmt.Errorf("%s has delta lists (freshestCRL), which can have later revocations and are not read: have the CA issue complete lists only", l)
		case x.Id.Equal(oidIssuingDistributionPoint) && l.scope != "":
			return nil, fmt.Errorf("%s has two issuingDistributionPoints", l)
		case x.Id.Equal(oidIssuingDistributionPoint):
			if err := l.limit(x.Value); err != nil {
				return nil, fmt.Errorf("%s: its issuingDistributionPoint %w", l, err)
			}
		case x.Critical:
			return nil, fmt.Errorf("%s has the critical extension %s, which is not known", l, x.Id)
		}
	}
	return l, nil
}

// issuingDistributionPoint is the extension of this name (RFC 5280, section 5.2.5).
type issuingDistributionPoint struct {
	Point                 distributionPointName `asn1:"optional,tag:0"`
	OnlyUserCerts         bool                  `asn1:"optional,tag:1"`
	OnlyCACerts           bool                  `asn1:"optional,tag:2"`
	OnlySomeReasons       asn1.BitString        `asn1:"optional,tag:3"`
	IndirectCRL           bool                  `asn1:"optional,tag:4"`
	OnlyAttributeCertOnly bool                  `asn1:"optional,tag:5"`
}

type distributionPointName struct {
	FullName     []asn1.RawValue                   `asn1:"optional,tag:0"`
	RelativeName pkix.RelativeDistinguishedNameSET `asn1:"optional,tag:1"`
}

// limit reads which certificates the list is about.
func (l *List) limit(value []byte) error {
	var point issuingDistributionPoint
	rest, err := asn1.Unmarshal(value, &point)
	if err != nil {
		return err
	}
	again, err := asn1.Marshal(point) // asn1.Unmarshal ignores what follows the known fields
	switch {
	case err != nil:
		return err
	case len(rest) > 0 || !bytes.Equal(again, value):
		return errors.New("is malformed, or has a field that is not known")
	case point.OnlySomeReasons.BitLength > 0:
		return errors.New("says that the list has only some reasons (onlySomeReasons): give a list with all")
	case point.IndirectCRL:
		return errors.New("says that the list is indirect (indirectCRL): give a list that the CA itself has signed")
	case point.OnlyAttributeCertOnly:
		return errors.New("says that the list has only attribute certificates (onlyContainsAttributeCerts)")
	case point.OnlyUserCerts && point.OnlyCACerts:
		return errors.New("excludes all certificates")
	case len(point.Point.RelativeName) > 0:
		return errors.New("has a name that is relative to the issuer's, which is not supported")
	}
	for _, name := range point.Point.FullName {
		if name.Class == asn1.ClassContextSpecific && name.Tag == 6 { // uniformResourceIdentifier
			l.points = append(l.points, string(name.Bytes))
		}
	}
	if len(point.Point.FullName) > 0 && len(l.points) == 0 {
		return errors.New("has no URI")
	}
	l.scope, l.onlyEnd, l.onlyCAs = string(value), point.OnlyUserCerts, point.OnlyCACerts
	return nil
}

// String names the list in messages.
func (l *List) String() string {
	number := "without a number"
	if l.crl.Number != nil {
		number = "number " + l.crl.Number.String()
	}
	return fmt.Sprintf("the revocation list of %q, %s, of %s", l.crl.Issuer, number, l.crl.ThisUpdate.UTC().Format(time.RFC3339))
}

// covers reports whether the list's scope includes a certificate of its issuer.
func (l *List) covers(c *x509.Certificate) bool {
	return !(l.onlyEnd && c.IsCA) && !(l.onlyCAs && !c.IsCA) &&
		(len(l.points) == 0 || slices.ContainsFunc(c.CRLDistributionPoints, func(uri string) bool { return slices.Contains(l.points, uri) }))
}

// sameScope reports whether one of two lists replaces the other.
func (l *List) sameScope(other *List) bool {
	return bytes.Equal(l.crl.RawIssuer, other.crl.RawIssuer) && bytes.Equal(l.crl.AuthorityKeyId, other.crl.AuthorityKeyId) && l.scope == other.scope
}

// newer reports whether the list replaces another one with the same scope.
func (l *List) newer(other *List) bool {
	if l.crl.Number != nil && other.crl.Number != nil {
		if n := l.crl.Number.Cmp(other.crl.Number); n != 0 {
			return n > 0
		}
	}
	return l.crl.ThisUpdate.After(other.crl.ThisUpdate)
}

// Older returns an error if a list of t is older than the one that it would replace in before. So
// an attacker who sends an old list cannot undo revocations of a newer one.
func (t Trust) Older(before Trust) error {
	for _, had := range before.Lists {
		var newest *List
		for _, l := range t.Lists {
			if l.sameScope(had) && (newest == nil || l.newer(newest)) {
				newest = l
			}
		}
		if newest != nil && had.newer(newest) {
			return fmt.Errorf("%s is older than the one before it, of %s: an old list without later revocations may have been sent again", newest, had.crl.ThisUpdate.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// Outdated returns an error if no list is valid at the time now, so that no signature can be valid.
func (t Trust) Outdated(now time.Time) error {
	var last *List
	for _, l := range t.Lists {
		if last == nil || l.crl.NextUpdate.After(last.crl.NextUpdate) {
			last = l
		}
	}
	if last == nil || !now.After(last.crl.NextUpdate) {
		return nil
	}
	return fmt.Errorf("%s held until %s: give the policy a new one", last, last.crl.NextUpdate.UTC().Format(time.RFC3339))
}

// OutdatedSoon returns an error if a list has ended, or is in the last fifth of its time, and no
// other list replaces it. Soon signatures with certificates that it covers will not be valid.
func (t Trust) OutdatedSoon(now time.Time) error {
	for _, l := range t.Lists {
		isReplaced := slices.ContainsFunc(t.Lists, func(other *List) bool { return other.sameScope(l) && other.newer(l) })
		last := l.crl.NextUpdate.Sub(l.crl.ThisUpdate) / 5
		if !isReplaced && now.After(l.crl.NextUpdate.Add(-last)) {
			return fmt.Errorf("%s holds until %s: give the policy a new one", l, l.crl.NextUpdate.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// question is one revocation check for Verify, with its result.
type question struct {
	now     time.Time
	failure *evidence.Failure // why a certificate may not be used; a revoked one comes first
	until   time.Time         // when the next of these lists is replaced, or should be; zero for never
}

type questionKey struct{}

func (q *question) fail(f *evidence.Failure) {
	if q.failure == nil || f.Revoked && !q.failure.Revoked {
		q.failure = f
	}
}

func (q *question) holdsUntil(t time.Time) {
	if q.until.IsZero() || t.Before(q.until) {
		q.until = t
	}
}

// byLists checks by lists whether certificates are revoked. It uses no network. Each certificate
// except the root must be covered by a list that its issuer has signed and that is valid now. This
// also applies to a certificate without a distribution point, because the policy demands lists.
// notation's library then reads the list.
type byLists struct {
	lists []*List
	// the purpose of the certificates
	whose purpose.Purpose
}

// errNoNetwork is the answer to a request that byLists would send; it sends none.
var errNoNetwork = errors.New("revocation is checked without a network")

// RoundTrip is part of http.RoundTripper.
func (byLists) RoundTrip(*http.Request) (*http.Response, error) { return nil, errNoNetwork }

// ValidateContext is part of revocation.Validator.
func (b byLists) ValidateContext(ctx context.Context, o revocation.ValidateContextOptions) ([]*result.CertRevocationResult, error) {
	q, ok := ctx.Value(questionKey{}).(*question)
	if !ok {
		return nil, errors.New("a revocation check outside of Verify")
	}
	results, err := b.validate(ctx, o, q)
	if err != nil {
		q.fail(evidence.Fail(evidence.RevocationUnknown, "whether certificates are revoked could not be found out: %w", err).AsAuthentic(true))
	}
	return results, err
}

func (b byLists) validate(ctx context.Context, o revocation.ValidateContextOptions, q *question) ([]*result.CertRevocationResult, error) {
	// The library looks for a list at each place that a certificate names, and compares the list's
	// end with the system's clock. It gets copies that name the lists which choose has found, and
	// which never end.
	chosen := byName{}
	chain := make([]*x509.Certificate, len(o.CertChain))
	for i, c := range o.CertChain {
		alias := *c
		alias.OCSPServer, alias.CRLDistributionPoints = nil, nil
		chain[i] = &alias
		if i == len(o.CertChain)-1 {
			break // only the policy can revoke a root
		}
		lists, f := b.choose(c, o.CertChain[i+1], q)
		if f != nil {
			q.fail(f)
			continue
		}
		for _, l := range lists {
			endless := *l.crl
			endless.NextUpdate = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
			name := strconv.Itoa(len(chosen))
			chosen[name] = &crl.Bundle{BaseCRL: &endless}
			alias.CRLDistributionPoints = append(alias.CRLDistributionPoints, name)
		}
	}
	library, err := revocation.NewWithOptions(revocation.Options{
		OCSPHTTPClient: &http.Client{Transport: b}, CRLFetcher: chosen, CertChainPurpose: b.whose,
	})
	if err != nil {
		return nil, err
	}
	results, err := library.ValidateContext(ctx, revocation.ValidateContextOptions{CertChain: chain, AuthenticSigningTime: o.AuthenticSigningTime})
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		c := o.CertChain[i]
		switch r.Result {
		case result.ResultRevoked:
			f := evidence.Fail(evidence.CertificateRevoked, "the certificate of %q, serial number %x, is revoked%s", c.Subject, c.SerialNumber, chosen.since(chain[i])).AsAuthentic(true)
			f.Revoked = true
			q.fail(f)
		case result.ResultUnknown:
			q.fail(evidence.Fail(evidence.RevocationUnknown, "whether the certificate of %q is revoked is unknown: %w", c.Subject, r.ServerResults[0].Error).AsAuthentic(true))
		}
	}
	return results, nil
}

// choose returns the lists that cover a certificate and are valid now: for each scope the newest
// one.
func (b byLists) choose(c, issuer *x509.Certificate, q *question) ([]*List, *evidence.Failure) {
	var newest []*List
	var ahead *List // the first one that becomes valid later
	var refused error
	for _, l := range b.lists {
		if !bytes.Equal(l.crl.RawIssuer, issuer.RawSubject) || !l.covers(c) {
			continue
		}
		if err := l.crl.CheckSignatureFrom(issuer); err != nil {
			refused = fmt.Errorf("%s is not signed with the key of this CA: %w", l, err)
			continue
		}
		if from := l.crl.ThisUpdate.Add(-skew); q.now.Before(from) {
			if ahead == nil || l.crl.ThisUpdate.Before(ahead.crl.ThisUpdate) {
				ahead = l
			}
			q.holdsUntil(from)
			continue
		}
		i := slices.IndexFunc(newest, l.sameScope)
		switch {
		case i < 0:
			newest = append(newest, l)
		case l.newer(newest[i]):
			newest[i] = l
		}
	}
	unknown := func(format string, args ...any) *evidence.Failure {
		return evidence.Fail(evidence.RevocationUnknown, "whether the certificate of %q is revoked is unknown: %w", c.Subject, fmt.Errorf(format, args...)).AsAuthentic(true)
	}
	switch {
	case len(newest) > 0:
	case ahead != nil:
		f := unknown("%s holds only from then on", ahead)
		f.NotBefore = ahead.crl.ThisUpdate.Add(-skew)
		return nil, f
	case refused != nil:
		return nil, unknown("%w", refused)
	default:
		return nil, unknown("the policy has no revocation list of %q for it", issuer.Subject)
	}
	for _, l := range newest {
		if q.now.After(l.crl.NextUpdate) {
			return nil, unknown("%s held until %s: give the policy a new one", l, l.crl.NextUpdate.UTC().Format(time.RFC3339))
		}
		q.holdsUntil(l.crl.NextUpdate)
	}
	return newest, nil
}

// byName has the lists of one question, by the names in the copies of the certificates.
type byName map[string]*crl.Bundle

// Fetch is part of crl.Fetcher.
func (b byName) Fetch(_ context.Context, name string) (*crl.Bundle, error) {
	if bundle := b[name]; bundle != nil {
		return bundle, nil
	}
	return nil, errNoNetwork
}

// reasons are the words of RFC 5280, section 5.3.1.
var reasons = map[int]string{
	1: "keyCompromise", 2: "cACompromise", 3: "affiliationChanged", 4: "superseded", 5: "cessationOfOperation",
	6: "certificateHold", 9: "privilegeWithdrawn", 10: "aACompromise",
}

// since returns text with the time and the reason of a certificate's revocation, as far as the list
// has them.
func (b byName) since(c *x509.Certificate) string {
	for _, name := range c.CRLDistributionPoints {
		for _, e := range b[name].BaseCRL.RevokedCertificateEntries {
			if e.SerialNumber.Cmp(c.SerialNumber) == 0 {
				if why := reasons[e.ReasonCode]; why != "" {
					return fmt.Sprintf(" since %s (%s)", e.RevocationTime.UTC().Format(time.RFC3339), why)
				}
				return " since " + e.RevocationTime.UTC().Format(time.RFC3339)
			}
		}
	}
	return ""
}
