package sigstore

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// Subject is who a Fulcio certificate must be for: the OpenID Connect issuer, and an e-mail address or a URI.
type Subject struct {
	Issuer string
	Email  string
	URI    string
}

func (s Subject) String() string { return s.Email + s.URI + " of " + s.Issuer }

// check tells whether the certificate is for the subject. Every comparison is of whole strings.
func (s Subject) check(leaf *x509.Certificate) error {
	issuer, err := oidcIssuer(leaf)
	if err != nil {
		return err
	}
	if issuer == "" || issuer != s.Issuer {
		return fmt.Errorf("signed by %s of %s, the policy wants %s", subjectName(leaf), issuer, s)
	}
	if s.Email != "" && slices.Contains(leaf.EmailAddresses, s.Email) {
		return nil
	}
	for _, uri := range leaf.URIs {
		if s.URI != "" && uri.String() == s.URI {
			return nil
		}
	}
	return fmt.Errorf("signed by %s of %s, the policy wants %s", subjectName(leaf), issuer, s)
}

// oidIssuerV1 is the extension that Fulcio put the issuer in at first, and still does beside the new one.
var oidIssuerV1 = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}

// oidcIssuer reads the issuer from Fulcio's extensions, of which there is an old one (raw bytes) and a new one
// (DER). A certificate in which the two disagree would name one issuer to us and another to someone else.
func oidcIssuer(leaf *x509.Certificate) (string, error) {
	var v1, v2 string
	var has1, has2 bool
	for _, x := range leaf.Extensions {
		switch {
		case x.Id.Equal(oidIssuerV1):
			v1, has1 = string(x.Value), true
		case x.Id.Equal(certificate.OIDIssuerV2):
			if err := certificate.ParseDERString(x.Value, &v2); err != nil {
				return "", fmt.Errorf("the certificate's issuer extension: %w", err)
			}
			has2 = true
		}
	}
	switch {
	case has1 && has2 && v1 != v2:
		return "", fmt.Errorf("the certificate names two issuers, %q and %q", v1, v2)
	case has2:
		return v2, nil
	case has1:
		return v1, nil
	}
	return "", errors.New("the certificate names no OpenID Connect issuer")
}

// subjectName is the subject alternative name to show.
func subjectName(leaf *x509.Certificate) string {
	switch {
	case len(leaf.URIs) > 0:
		return leaf.URIs[0].String()
	case len(leaf.EmailAddresses) > 0:
		return leaf.EmailAddresses[0]
	case len(leaf.DNSNames) > 0:
		return leaf.DNSNames[0]
	}
	if name, err := cryptoutils.UnmarshalOtherNameSAN(leaf.Extensions); err == nil && name != "" {
		return name
	}
	return leaf.Subject.CommonName
}

const claimIssuer = "fulcio.issuer"

// fulcioClaims are the facts that Fulcio put into a certificate's extensions, such as fulcio.buildTrigger; see
// https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md.
func fulcioClaims(leaf *x509.Certificate) map[string]string {
	claims := map[string]string{}
	x, err := certificate.ParseExtensions(leaf.Extensions)
	if err != nil {
		return claims
	}
	v := reflect.ValueOf(x)
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if value, ok := v.Field(i).Interface().(string); ok && value != "" && name != "" {
			claims["fulcio."+name] = value
		}
	}
	return claims
}
