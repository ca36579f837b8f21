package sigstore

import (
	"crypto/x509"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// Extension is a demand on one of Fulcio's extensions in a certificate: it must have a value, or a
// value that an expression matches as a whole. A certificate without the extension does not meet
// the demand.
type Extension struct {
	Name   string // one of ExtensionNames
	Value  string
	RegExp *regexp.Regexp // instead of Value; see [Anchored]
}

func (x Extension) String() string {
	if x.RegExp != nil {
		return x.Name + " " + x.RegExp.String()
	}
	return x.Name + " " + x.Value
}

func (x Extension) matches(value string) bool {
	if x.RegExp != nil {
		return value != "" && x.RegExp.MatchString(value)
	}
	return value != "" && value == x.Value
}

// ExtensionIssuer is the name of the extension with the OpenID Connect issuer.
const ExtensionIssuer = "issuer"

// ExtensionNames are the names of Fulcio's extensions, new and deprecated ones, without
// ExtensionIssuer; see https://github.com/sigstore/fulcio/blob/main/docs/oid-info.md.
var ExtensionNames = func() (names []string) {
	for name := range fieldsOf(certificate.Extensions{}) {
		if name != ExtensionIssuer {
			names = append(names, name)
		}
	}
	return names
}()

// fieldsOf yields the extensions that sigstore-go knows, by name and value; "" if it is absent.
func fieldsOf(x certificate.Extensions) func(yield func(name, value string) bool) {
	return func(yield func(name, value string) bool) {
		v := reflect.ValueOf(x)
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			if value, ok := v.Field(i).Interface().(string); ok && name != "" && !yield(name, value) {
				return
			}
		}
	}
}

// fulcioClaims returns the values of a certificate's Fulcio extensions, such as
// fulcio.buildTrigger. It returns none if one of them cannot be read.
func fulcioClaims(leaf *x509.Certificate) map[string]string {
	claims := map[string]string{}
	x, err := certificate.ParseExtensions(leaf.Extensions)
	if err != nil {
		return claims
	}
	for name, value := range fieldsOf(x) {
		if value != "" {
			claims[evidence.ClaimOfExtension+name] = value
		}
	}
	return claims
}

// checkExtensions returns an error about the first demand that a certificate does not meet.
func checkExtensions(demanded []Extension, leaf *x509.Certificate) error {
	claims := fulcioClaims(leaf)
	for _, x := range demanded {
		value, ok := claims[evidence.ClaimOfExtension+x.Name]
		switch {
		case !ok:
			return fmt.Errorf("signed by %s, whose certificate has no extension %s; the policy wants %s", allNames(leaf), x.Name, x)
		case !x.matches(value):
			return fmt.Errorf("signed by %s with %s %s, the policy wants %s", allNames(leaf), x.Name, value, x)
		}
	}
	return nil
}
