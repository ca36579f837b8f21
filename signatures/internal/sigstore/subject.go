package sigstore

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore/pkg/cryptoutils"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Subject is what a Fulcio certificate must contain: the OpenID Connect issuer, and an e-mail
// address, a URI, or any name that a regular expression matches. For the issuer, and for the name,
// either the string or the expression is set. An expression must match a whole name, as in
// sigstore's policy-controller; [Anchored] compiles one. The certificate must also have all
// Extensions.
type Subject struct {
	Issuer        string
	IssuerRegExp  *regexp.Regexp
	Email         string
	URI           string
	SubjectRegExp *regexp.Regexp
	Extensions    []Extension
}

// names reports whether a certificate must have this name, or this value of an extension.
func (s Subject) names(name string) bool {
	return s.Email == name || s.URI == name || slices.ContainsFunc(s.Extensions, func(x Extension) bool { return x.Value == name })
}

// Anchored compiles an expression (RE2, with Go's syntax) that must match a whole name.
func Anchored(expression string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(expression); err != nil { // within the group, "a)(b" would be valid
		return nil, err
	}
	return regexp.Compile(`^(?:` + expression + `)$`)
}

func (s Subject) String() string {
	issuer, subject := s.Issuer, s.Email+s.URI
	if s.IssuerRegExp != nil {
		issuer = s.IssuerRegExp.String()
	}
	if s.SubjectRegExp != nil {
		subject = s.SubjectRegExp.String()
	}
	return subject + " of " + issuer
}

// errExtension is an error about a certificate of the right subject.
type errExtension struct{ error }

// check returns an error if the certificate is not for the subject, otherwise the name that matches
// and the issuer. It compares whole strings. The error is an errExtension if only an extension does
// not match.
func (s Subject) check(leaf *x509.Certificate) (met, issuer string, err error) {
	if issuer, err = oidcIssuer(leaf); err != nil {
		return "", "", err
	}
	names := subjectNames(leaf)
	if i := slices.IndexFunc(names, s.isSubject); i >= 0 && s.isIssuer(issuer) {
		if err := checkExtensions(s.Extensions, leaf); err != nil {
			return "", "", errExtension{err}
		}
		return names[i].value, issuer, nil
	}
	return "", "", fmt.Errorf("signed by %s of %s, the policy wants %s", allNames(leaf), issuer, s)
}

func (s Subject) isIssuer(issuer string) bool {
	if s.IssuerRegExp != nil {
		return issuer != "" && s.IssuerRegExp.MatchString(issuer)
	}
	return issuer != "" && issuer == s.Issuer
}

func (s Subject) isSubject(n name) bool {
	switch {
	case n.value == "":
		return false
	case s.SubjectRegExp != nil:
		return s.SubjectRegExp.MatchString(n.value)
	case n.kind == email:
		return n.value == s.Email
	case n.kind == uri:
		return n.value == s.URI
	}
	return false
}

type nameKind int

const (
	email nameKind = iota
	uri
	otherName
)

// name is a subject alternative name and its kind.
type name struct {
	kind  nameKind
	value string
}

// subjectNames are the names that Fulcio puts into certificates: e-mail addresses, URIs, and user
// names, which are "other names" (SAN type otherName). A host name is none of them.
func subjectNames(leaf *x509.Certificate) []name {
	var names []name
	for _, address := range leaf.EmailAddresses {
		names = append(names, name{email, address})
	}
	for _, u := range leaf.URIs {
		names = append(names, name{uri, u.String()})
	}
	if other, err := cryptoutils.UnmarshalOtherNameSAN(leaf.Extensions); err == nil {
		names = append(names, name{otherName, other})
	}
	return names
}

// identify returns an error unless the certificate is for one of the subjects. It stores the signer
// and the extensions that met the policy in the evidence, so that they are shown.
func identify(e *evidence.Evidence, subjects []Subject, leaf *x509.Certificate) error {
	var errs []error
	for _, s := range subjects {
		met, issuer, err := s.check(leaf)
		if err == nil {
			e.Subject, e.SubjectOrganization = met, issuer
			for _, x := range s.Extensions {
				e.Extensions = append(e.Extensions, x.Name)
			}
			return nil
		}
		errs = append(errs, err)
	}
	byExtension := slices.IndexFunc(errs, func(err error) bool { return errors.As(err, new(errExtension)) })
	if byExtension >= 0 || len(errs) == 1 {
		return errs[max(byExtension, 0)]
	}
	issuer, err := oidcIssuer(leaf)
	if err != nil {
		return err
	}
	return fmt.Errorf("signed by %s of %s, who is not one of the policy's %d subjects", allNames(leaf), issuer, len(subjects))
}

// oidIssuerV1 is Fulcio's first extension for the issuer. Fulcio still sets it beside the new one.
var oidIssuerV1 = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57264, 1, 1}

// oidcIssuer reads the issuer from Fulcio's extensions: an old one (raw bytes) and a new one (DER).
// It refuses a certificate in which the two differ, because other programs may read the other one.
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

// namesOf returns all names of a certificate, of every kind.
func namesOf(leaf *x509.Certificate) (all []string) {
	for _, n := range subjectNames(leaf) {
		all = append(all, n.value)
	}
	all = append(all, leaf.DNSNames...)
	for _, ip := range leaf.IPAddresses {
		all = append(all, ip.String())
	}
	if leaf.Subject.CommonName != "" {
		all = append(all, leaf.Subject.CommonName)
	}
	return all
}

// maxNames bounds the names of a certificate in a message.
const maxNames = 8

// allNames returns the names of a certificate for a message.
func allNames(leaf *x509.Certificate) string {
	var names []string
	for _, n := range subjectNames(leaf) {
		names = append(names, n.value)
	}
	if len(names) == 0 {
		return subjectName(leaf)
	}
	return strings.Join(names[:min(len(names), maxNames)], ", ")
}

// subjectName returns the subject alternative name to show for a certificate that met no policy.
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
