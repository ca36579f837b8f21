package policy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/internal/gpg"
	"github.com/tidewaiter/tidewaiter/signatures/internal/notary"
	"github.com/tidewaiter/tidewaiter/signatures/internal/sigstore"
)

// builder turns one decoded document into a Policy and knows where in the file each field is.
type builder struct {
	doc *decoded
	// the folder that …Path fields are relative to; "" for an object, which names no files
	folder string
}

func (b *builder) fail(field, format string, args ...any) error {
	return &Error{Line: b.doc.line(field), Field: field, Err: fmt.Errorf(format, args...)}
}

func parseDocument(node *yaml.Node, file string) (*Policy, error) {
	return parseNode(node, file, func(b *builder) error {
		if b.doc.Kind == namespacedKind {
			return b.fail("kind", "an ImagePolicy covers the pods of one namespace, and files apply to the cluster: apply it to the server with kubectl, or write a ClusterImagePolicy")
		}
		return nil
	})
}

// parseObject is parseDocument for a document that will be an object of the API.
func parseObject(node *yaml.Node, file string) (*Policy, error) {
	return parseNode(node, file, func(b *builder) error {
		if b.doc.Kind == namespacedKind && b.doc.Metadata.Namespace == "" {
			return b.fail("metadata.namespace", "is required: an ImagePolicy covers the pods of one namespace")
		}
		return nil
	})
}

func parseNode(node *yaml.Node, file string, check func(*builder) error) (*Policy, error) {
	if err := foreign(node); err != nil {
		return nil, err
	}
	doc, err := decodeDocument(node)
	if err != nil {
		return nil, err
	}
	b := &builder{doc: doc}
	if file != "" {
		b.folder = filepath.Dir(file)
	}
	if err := check(b); err != nil {
		return nil, err
	}
	if doc.Kind != namespacedKind {
		doc.Metadata.Namespace = "" // this kind has no namespace
	}
	p, err := b.build()
	if err == nil {
		p.Spec = doc.Spec
	}
	return p, err
}

// New makes a policy of an API object: a ClusterImagePolicy, or the ImagePolicy of a namespace. The
// rules are those of files, except that it reads no files, because the author of an object may not
// be allowed to read the server's files. An error is an *Error that names the field.
func New(namespace, name string, spec *DocumentSpec) (*Policy, error) {
	d := Document{APIVersion: apiVersion, Kind: kind, Metadata: Metadata{Name: name, Namespace: namespace}, Spec: *spec.DeepCopy()}
	if namespace != "" {
		d.Kind = namespacedKind
	}
	b := &builder{doc: &decoded{Document: d}}
	return b.build()
}

// DenyAll returns a policy for an API object that New refuses. It covers the valid scopes of the
// object, trusts no signer and has no alternatives, so that no image meets it.
func DenyAll(namespace, name string, spec *DocumentSpec) *Policy {
	b := &builder{doc: &decoded{}}
	p := &Policy{Namespace: namespace, Name: name, Sigstore: trustsNone{}, Identity: Identity{match: MatchRepoDigestOrExact}}
	p.hash = "nobody " + p.ID()
	for _, s := range spec.Scopes {
		if scopes, err := b.scopes([]string{s}); err == nil && !slices.Contains(p.Scopes, scopes[0]) {
			p.Scopes = append(p.Scopes, scopes[0])
			p.hash += " " + scopes[0]
		}
	}
	return p
}

// trustsNone is a root of trust that trusts no signature.
type trustsNone struct{}

// Verify is part of sigstore.Verifier.
func (trustsNone) Verify(*sigstore.Signature, time.Time) (*evidence.Evidence, error) {
	return nil, evidence.Fail(evidence.NoMatchingKey, "the policy cannot be used, so it trusts no signer")
}

const (
	apiVersion = "config.openshift.io/v1"
	kind       = "ClusterImagePolicy"
	// namespacedKind is the kind for the pods of a namespace.
	namespacedKind = "ImagePolicy"
)

func (b *builder) build() (*Policy, error) {
	d := &b.doc.Document
	switch {
	case d.APIVersion != apiVersion:
		return nil, b.fail("apiVersion", "is %q, must be %s", d.APIVersion, apiVersion)
	case d.Kind != kind && d.Kind != namespacedKind:
		return nil, b.fail("kind", "is %q, must be %s", d.Kind, kind)
	case d.Metadata.Name == "":
		return nil, b.fail("metadata.name", "is required")
	}
	p := &Policy{Namespace: d.Metadata.Namespace, Name: d.Metadata.Name, lines: map[string]int{}}
	for _, field := range []string{"metadata.name", "spec.scopes"} {
		p.lines[field] = b.doc.line(field)
	}
	var err error
	if p.Scopes, err = b.scopes(d.Spec.Scopes); err != nil {
		return nil, err
	}
	if p.Alternatives, err = b.alternatives(d.Spec.Alternatives); err != nil {
		return nil, err
	}
	if p.Identity, err = b.identity(d.Spec.Policy.SignedIdentity); err != nil {
		return nil, err
	}
	if err := b.rootOfTrust(p, &d.Spec.Policy.RootOfTrust); err != nil {
		return nil, err
	}
	if err := b.attestations(p, &d.Spec.Policy); err != nil {
		return nil, err
	}
	switch platforms := d.Spec.Policy.Platforms; platforms {
	case "", PlatformsByIndex:
	case PlatformsSigned:
		p.OwnSignatures = true
	default:
		return nil, b.fail("spec.policy.platforms", "is %q, must be %s or %s", platforms, PlatformsByIndex, PlatformsSigned)
	}
	if err := b.exceptions(p, d.Spec.Exceptions); err != nil {
		return nil, err
	}
	if field, err := d.Metadata.Annotations.validate(); err != nil {
		return nil, b.fail(field, "%w", err)
	}
	p.Admission = d.Metadata.Annotations
	// By now the …Data fields have the contents of the files that …Path fields name, so the hash
	// covers them.
	d.Status, d.Metadata.Annotations = nil, Admission{}
	canonical, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(canonical)
	p.hash = hex.EncodeToString(sum[:])
	return p, nil
}

// wildcardPattern is OpenShift's grammar of a scope with a wildcard. The other scopes are what
// checkScope accepts: all that OpenShift's grammar accepts, and hosts that it refuses, such as
// registry:5000 and [::1]:5000.
var wildcardPattern = regexp.MustCompile(`^\*(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))+$`)

const rootField = "spec.policy.rootOfTrust"

func (b *builder) scopes(written []string) ([]string, error) {
	const field = "spec.scopes"
	if len(written) == 0 {
		return nil, b.fail(field, "is required: without it the policy covers no image")
	}
	if len(written) > maxScopes {
		return nil, b.fail(field, "has %d scopes, at most %d are allowed", len(written), maxScopes)
	}
	seen := map[string]bool{}
	var scopes []string
	for i, s := range written {
		item := fmt.Sprintf("%s[%d]", field, i)
		switch {
		case len(s) > 512:
			return nil, b.fail(item, "is longer than 512 characters")
		case s != CatchAll && strings.Contains(s, "*") && !wildcardPattern.MatchString(s):
			return nil, b.fail(item, "%q: a wildcard is only allowed as *.domain, for all subdomains, or alone, for all images", s)
		case !strings.Contains(s, "*"):
			if err := checkScope(s); err != nil {
				return nil, b.fail(item, "%w", err)
			}
		}
		if written := signedScope(s); seen[written] {
			return nil, b.fail(item, "%q appears twice", written)
		} else {
			seen[written] = true
		}
		// In earlier releases, registry.example.com and registry.example.com:443 were two scopes, and
		// policies may have both.
		if s = CanonicalScope(s); !slices.Contains(scopes, s) {
			scopes = append(scopes, s)
		}
	}
	return scopes, nil
}

// exceptions checks the exceptions of a document.
func (b *builder) exceptions(p *Policy, written []Exception) error {
	const field = "spec.exceptions"
	if len(written) > maxExceptions {
		return b.fail(field, "has %d exceptions, at most %d are allowed", len(written), maxExceptions)
	}
	for i, w := range written {
		at := fmt.Sprintf("%s[%d]", field, i)
		e := exception{Exception: w}
		switch n := len(w.Images); {
		case n == 0:
			return b.fail(at+".images", "is required: the images that are let through")
		case n > maxExceptedImages:
			return b.fail(at+".images", "has %d images, at most %d are allowed", n, maxExceptedImages)
		}
		for j, image := range w.Images {
			if err := e.add(p.Scopes, image); err != nil {
				return b.fail(fmt.Sprintf("%s.images[%d]", at, j), "%w", err)
			}
		}
		until, err := time.Parse(time.RFC3339, w.Until)
		if err != nil || until.Nanosecond() != 0 || until.UTC().Year() > 9999 {
			return b.fail(at+".until", "is %.64q, must be a time in RFC 3339 with whole seconds, such as 2026-12-31T00:00:00Z", w.Until)
		}
		e.until = until.UTC()
		for _, text := range []struct {
			field, value string
			most         int
		}{{"by", w.By, maxExceptedBy}, {"reason", w.Reason, maxExceptionReason}} {
			switch {
			case strings.TrimSpace(text.value) == "":
				return b.fail(at+"."+text.field, "is required: an exception names its author and its reason")
			case len(text.value) > text.most || printable.Line(text.value, 0) != text.value:
				return b.fail(at+"."+text.field, "must be one line of at most %d bytes that can be printed", text.most)
			}
		}
		p.exceptions = append(p.exceptions, e)
	}
	return nil
}

func (b *builder) identity(s *SignedIdentity) (Identity, error) {
	const field = "spec.policy.signedIdentity"
	if s == nil {
		return Identity{match: MatchRepoDigestOrExact}, nil
	}
	id := Identity{match: s.MatchPolicy}
	switch s.MatchPolicy {
	case MatchRepoDigestOrExact, MatchRepository, MatchExactRepository, MatchRemapIdentity, MatchDigestOnly:
	case "":
		return id, b.fail(field+".matchPolicy", "is required")
	default:
		return id, b.fail(field+".matchPolicy", "is %q, must be one of MatchRepoDigestOrExact, MatchRepository, ExactRepository, RemapIdentity, DigestOnly", s.MatchPolicy)
	}
	if has, want := s.ExactRepository != nil, s.MatchPolicy == MatchExactRepository; has != want {
		return id, b.fail(field+".exactRepository", "is required when matchPolicy is ExactRepository, and forbidden otherwise")
	}
	if has, want := s.RemapIdentity != nil, s.MatchPolicy == MatchRemapIdentity; has != want {
		return id, b.fail(field+".remapIdentity", "is required when matchPolicy is RemapIdentity, and forbidden otherwise")
	}
	prefix := func(name, value string, form func(string) string) (string, error) {
		if err := checkScope(value); err != nil {
			return "", b.fail(field+"."+name, "%w", err)
		}
		if _, path, _ := strings.Cut(value, "/"); strings.ContainsAny(path, ":@") {
			return "", b.fail(field+"."+name, "%q is not host[:port] or host[:port]/path without tag and digest", value)
		}
		return form(value), nil
	}
	var err error
	if s.ExactRepository != nil {
		id.repository, err = prefix("exactRepository.repository", s.ExactRepository.Repository, signedScope)
		if err == nil && !strings.Contains(id.repository, "/") {
			err = b.fail(field+".exactRepository.repository", "%q is a host, not a repository", id.repository)
		}
	}
	if s.RemapIdentity != nil && err == nil {
		if id.prefix, err = prefix("remapIdentity.prefix", s.RemapIdentity.Prefix, CanonicalScope); err == nil {
			id.signedPrefix, err = prefix("remapIdentity.signedPrefix", s.RemapIdentity.SignedPrefix, signedScope)
		}
	}
	return id, err
}

func (b *builder) rootOfTrust(p *Policy, r *RootOfTrust) error {
	members := []struct {
		typ, name string
		present   bool
		build     func() error
	}{
		{TypePublicKey, "publicKey", r.PublicKey != nil, func() error { return b.publicKey(p, r.PublicKey) }},
		{TypeFulcioCAWithRekor, "fulcioCAWithRekor", r.FulcioCAWithRekor != nil, func() error { return b.fulcio(p, r.FulcioCAWithRekor) }},
		{TypePKI, "pki", r.PKI != nil, func() error { return b.pki(p, r.PKI) }},
		{TypeTrustedRoot, "trustedRoot", r.TrustedRoot != nil, func() error { return b.trustedRoot(p, r.TrustedRoot) }},
		{TypeGPGKeys, "gpgKeys", r.GPGKeys != nil, func() error { return b.gpgKeys(p, r.GPGKeys) }},
		{TypeNotary, "notary", r.Notary != nil, func() error { return b.notary(p, r.Notary) }},
	}
	var types []string
	var chosen func() error
	for _, m := range members {
		types = append(types, m.typ)
	}
	if !slices.Contains(types, r.PolicyType) {
		meant := ""
		for _, m := range members {
			if m.present {
				meant = "; did you mean " + m.typ + "?"
			}
		}
		return b.fail(rootField+".policyType", "is %q, must be one of %s%s", r.PolicyType, strings.Join(types, ", "), meant)
	}
	for _, m := range members {
		if m.present != (m.typ == r.PolicyType) {
			return b.fail(rootField+"."+m.name, "is required when policyType is %s, and forbidden otherwise; policyType is %q", m.typ, r.PolicyType)
		}
		if m.present {
			chosen = m.build
		}
	}
	return chosen()
}

func (b *builder) publicKey(p *Policy, k *PublicKey) error {
	const at = rootField + ".publicKey"
	publics, err := b.keys(at, fourFields{"key", noSigner, &k.KeyData, &k.KeyPath, &k.KeyDatas, &k.KeyPaths}, true)
	if err != nil {
		return err
	}
	rekor, err := b.rekorKey(at, &k.RekorKeyData, &k.RekorKeyPath, false)
	if err != nil {
		return err
	}
	p.Sigstore, err = anyKey(publics, func(public crypto.PublicKey) (*sigstore.KeyVerifier, error) {
		return sigstore.NewKeyVerifier(public, rekor)
	})
	if err != nil {
		return b.fail(at, "a key cannot be used: %w", err)
	}
	return nil
}

// anyKey trusts any of several keys.
func anyKey(publics []crypto.PublicKey, trust func(crypto.PublicKey) (*sigstore.KeyVerifier, error)) (sigstore.Verifier, error) {
	var alternatives sigstore.AnyOf
	for _, public := range publics {
		v, err := trust(public)
		if err != nil {
			return nil, err
		}
		alternatives = append(alternatives, v)
	}
	if len(alternatives) == 1 {
		return alternatives[0], nil
	}
	return alternatives, nil
}

func (b *builder) fulcio(p *Policy, f *FulcioCAWithRekor) error {
	const at = rootField + ".fulcioCAWithRekor"
	cas, err := b.certificates(at, "fulcioCA", &f.FulcioCAData, &f.FulcioCAPath, true, checkCA)
	if err != nil {
		return err
	}
	rekor, err := b.rekorKey(at, &f.RekorKeyData, &f.RekorKeyPath, true)
	if err != nil {
		return err
	}
	subjects, err := b.subjects(at, f.FulcioSubject, f.FulcioSubjects)
	if err != nil {
		return err
	}
	v, err := sigstore.NewFulcioVerifier(cas, rekor, subjects)
	if err != nil {
		return b.fail(at, "%w", err)
	}
	p.Sigstore = v
	return nil
}

func (b *builder) pki(p *Policy, k *PKI) error {
	const at = rootField + ".pki"
	roots, err := b.certificates(at, "caRoots", &k.CARootsData, &k.CARootsPath, true, checkCA)
	if err != nil {
		return err
	}
	intermediates, err := b.certificates(at, "caIntermediates", &k.CAIntermediatesData, &k.CAIntermediatesPath, false, checkCA)
	if err != nil {
		return err
	}
	s := k.Subject
	switch {
	case s.Email == "" && s.Hostname == "":
		return b.fail(at+".pkiCertificateSubject", "needs email or hostname: without one, every certificate of the CA would be accepted")
	case s.Email != "" && !emailPattern.MatchString(s.Email):
		return b.fail(at+".pkiCertificateSubject.email", "%q is not an e-mail address", s.Email)
	case s.Hostname != "" && !hostnamePattern.MatchString(s.Hostname):
		return b.fail(at+".pkiCertificateSubject.hostname", "%q is not a lower-case host name", s.Hostname)
	}
	p.Sigstore = sigstore.NewPKIVerifier(roots, intermediates, s.Email, s.Hostname)
	p.usable = func(now time.Time) error { return expired(roots, now) }
	return nil
}

// expired returns an error if all CA certificates have expired, for roots of trust whose
// certificates must be valid now.
func expired(roots []*x509.Certificate, now time.Time) error {
	last := slices.MaxFunc(roots, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	if now.After(last.NotAfter) {
		return fmt.Errorf("the CA certificate %q expired at %s, and certificates have to be valid now", last.Subject, last.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

func (b *builder) trustedRoot(p *Policy, t *TrustedRoot) error {
	const at = rootField + ".trustedRoot"
	data, field, err := b.data(at, "trustedRoot", &t.TrustedRootData, &t.TrustedRootPath, true)
	if err != nil {
		return err
	}
	publics, err := b.keys(at, fourFields{"key", noSigner, &t.KeyData, &t.KeyPath, &t.KeyDatas, &t.KeyPaths}, false)
	if err != nil {
		return err
	}
	byKey, bySubject := publics != nil, t.FulcioSubject != nil || t.FulcioSubjects != nil
	if byKey == bySubject {
		return b.fail(at, "needs either fulcioSubject, or fulcioSubjects, or keys: without one, anyone known to the root could sign")
	}
	if byKey {
		p.Sigstore, err = anyKey(publics, func(public crypto.PublicKey) (*sigstore.KeyVerifier, error) {
			return sigstore.NewTrustedRootKeyVerifier(public, data)
		})
	} else {
		var subjects []sigstore.Subject
		if subjects, err = b.subjects(at, t.FulcioSubject, t.FulcioSubjects); err != nil {
			return err
		}
		p.Sigstore, err = sigstore.NewTrustedRootVerifier(data, subjects)
	}
	if err != nil {
		return b.fail(field, "%w", err)
	}
	return nil
}

func (b *builder) gpgKeys(p *Policy, g *GPGKeys) error {
	const at = rootField + ".gpgKeys"
	contents, err := b.contents(at, fourFields{"key", noSigner, &g.KeyData, &g.KeyPath, &g.KeyDatas, &g.KeyPaths}, true)
	if err != nil {
		return err
	}
	var keyrings [][]byte
	for _, c := range contents {
		if _, err := gpg.ParseKeyring(c.data); err != nil {
			return b.fail(c.field, "%w", err)
		}
		keyrings = append(keyrings, c.data)
	}
	if p.GPG, err = gpg.ParseKeyring(keyrings...); err != nil {
		return b.fail(at, "%w", err)
	}
	p.usable = p.GPG.Usable
	return nil
}

func (b *builder) notary(p *Policy, n *Notary) error {
	const at = rootField + ".notary"
	// Notary signatures name no image.
	if given := b.doc.Spec.Policy.SignedIdentity; given != nil && !p.Identity.DigestOnly() {
		return b.fail("spec.policy.signedIdentity", "cannot be met: a signature of the Notary Project names no image; leave signedIdentity out, or write matchPolicy: DigestOnly")
	}
	p.Identity = Identity{match: MatchDigestOnly}
	t := notary.Trust{Identities: n.TrustedIdentities}
	for _, s := range []struct {
		name         string
		data         *[]byte
		path         *string
		check        func(*x509.Certificate) error
		certificates *[]*x509.Certificate
	}{
		{"caRoots", &n.CARootsData, &n.CARootsPath, notary.CheckRoot, &t.CAs},
		{"signingAuthorityRoots", &n.SigningAuthorityRootsData, &n.SigningAuthorityRootsPath, notary.CheckRoot, &t.SigningAuthorities},
		{"tsaRoots", &n.TSARootsData, &n.TSARootsPath, checkCA, &t.TSAs},
	} {
		var err error
		if *s.certificates, err = b.certificates(at, s.name, s.data, s.path, false, s.check); err != nil {
			return err
		}
	}
	lists, err := b.contents(at, fourFields{"crl", "leave it out to have no lists", &n.CRLData, &n.CRLPath, &n.CRLDatas, &n.CRLPaths}, false)
	if err != nil {
		return err
	}
	for _, c := range lists {
		more, err := notary.ParseLists(c.data)
		if err != nil {
			return b.fail(c.field, "%w", err)
		}
		t.Lists = append(t.Lists, more...)
	}
	switch {
	case len(t.Lists) > notary.MaxLists:
		return b.fail(at, "holds %d revocation lists, at most %d are looked at", len(t.Lists), notary.MaxLists)
	case len(t.CAs)+len(t.SigningAuthorities) == 0:
		return b.fail(at+".caRootsData", "is required, or signingAuthorityRootsData: otherwise the policy would trust no signer")
	case len(t.Identities) == 0 || len(t.Identities) > maxAlternatives:
		return b.fail(at+".trustedIdentities", "has %d items, must have 1 to %d; [\"*\"] means anyone with a certificate", len(t.Identities), maxAlternatives)
	}
	v, err := notary.New(t)
	if err != nil {
		return b.fail(at+".trustedIdentities", "%w", err)
	}
	p.Notary = v
	if len(t.TSAs) == 0 && len(t.SigningAuthorities) == 0 {
		p.usable = func(now time.Time) error { return expired(t.CAs, now) }
	}
	return nil
}

var (
	emailPattern    = regexp.MustCompile(`^\S+@\S+$`)
	hostnamePattern = regexp.MustCompile(`^(?:\*\.)?[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*$`)
)

// maxAlternatives bounds the keys, or the subjects, of one policy.
const maxAlternatives = 64

func (b *builder) subjects(at string, one *FulcioSubject, several []FulcioSubject) ([]sigstore.Subject, error) {
	switch {
	case (one != nil) == (several != nil):
		return nil, b.fail(at, "needs either fulcioSubject or fulcioSubjects: without one, anyone with a certificate could sign")
	case one != nil:
		s, err := b.subject(at+".fulcioSubject", *one)
		return []sigstore.Subject{s}, err
	case len(several) == 0 || len(several) > maxAlternatives:
		return nil, b.fail(at+".fulcioSubjects", "has %d items, must have 1 to %d", len(several), maxAlternatives)
	}
	var subjects []sigstore.Subject
	for i, written := range several {
		s, err := b.subject(fmt.Sprintf("%s.fulcioSubjects[%d]", at, i), written)
		if err != nil {
			return nil, err
		}
		subjects = append(subjects, s)
	}
	return subjects, nil
}

func (b *builder) subject(at string, s FulcioSubject) (sigstore.Subject, error) {
	subject := sigstore.Subject{Issuer: s.OIDCIssuer, Email: s.SignedEmail, URI: s.SignedURI}
	names := 0
	for _, name := range []string{s.SignedEmail, s.SignedURI, s.SubjectRegExp} {
		if name != "" {
			names++
		}
	}
	switch issuer, err := url.Parse(s.OIDCIssuer); {
	case (s.OIDCIssuer == "") == (s.IssuerRegExp == ""):
		return subject, b.fail(at+".oidcIssuer", "is required, or issuerRegExp instead")
	case s.OIDCIssuer != "" && (err != nil || issuer.Scheme == "" || issuer.Host == ""):
		return subject, b.fail(at+".oidcIssuer", "%q is not a URL", s.OIDCIssuer)
	case names != 1:
		return subject, b.fail(at, "needs exactly one of signedEmail, signedURI and subjectRegExp: without one, anyone known to the issuer could sign")
	case s.SignedEmail != "" && !emailPattern.MatchString(s.SignedEmail):
		return subject, b.fail(at+".signedEmail", "%q is not an e-mail address", s.SignedEmail)
	}
	if s.SignedURI != "" {
		if u, err := url.Parse(s.SignedURI); err != nil || u.Scheme == "" {
			return subject, b.fail(at+".signedURI", "%q is not a URI", s.SignedURI)
		}
		if strings.ContainsAny(s.SignedURI, "*[]{}|^$\\") {
			return subject, b.fail(at+".signedURI", "%q looks like a pattern, and would match only itself; write a regular expression in subjectRegExp", s.SignedURI)
		}
	}
	var err error
	if subject.IssuerRegExp, err = b.expression(at+".issuerRegExp", s.IssuerRegExp); err != nil {
		return subject, err
	}
	if subject.SubjectRegExp, err = b.expression(at+".subjectRegExp", s.SubjectRegExp); err != nil {
		return subject, err
	}
	subject.Extensions, err = b.extensions(at+".extensions", s.Extensions)
	return subject, err
}

func (b *builder) extensions(at string, written []FulcioExtension) (all []sigstore.Extension, err error) {
	if written != nil && len(written) == 0 {
		return nil, b.fail(at, "is empty; leave it out to demand no extension")
	}
	for i, x := range written {
		item := fmt.Sprintf("%s[%d]", at, i)
		switch {
		case x.Name == sigstore.ExtensionIssuer:
			return nil, b.fail(item+".name", "is %q: write the issuer in oidcIssuer or issuerRegExp", x.Name)
		case !slices.Contains(sigstore.ExtensionNames, x.Name):
			near, _ := nearest.Of(x.Name[:min(len(x.Name), maxAnnotation)], sigstore.ExtensionNames)
			return nil, b.fail(item+".name", "is %.64q, which is not an extension of Fulcio; did you mean %s? Known are %s", x.Name, near, strings.Join(sigstore.ExtensionNames, ", "))
		case slices.ContainsFunc(all, func(other sigstore.Extension) bool { return other.Name == x.Name }):
			return nil, b.fail(item+".name", "%q appears twice", x.Name)
		case (x.Value == "") == (x.ValueRegExp == ""):
			return nil, b.fail(item, "needs exactly one of value and valueRegExp")
		case strings.Contains(x.Value, "*"):
			return nil, b.fail(item+".value", "%q looks like a pattern, and would match only itself; write a regular expression in valueRegExp", x.Value)
		}
		demand := sigstore.Extension{Name: x.Name, Value: x.Value}
		if demand.RegExp, err = b.expression(item+".valueRegExp", x.ValueRegExp); err != nil {
			return nil, err
		}
		all = append(all, demand)
	}
	return all, nil
}

func (b *builder) expression(field, text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil
	}
	x, err := sigstore.Anchored(text)
	switch {
	case err != nil:
		return nil, b.fail(field, "is not a regular expression (RE2): %w", err)
	case x.MatchString(""):
		return nil, b.fail(field, "%q matches the empty string, and so most likely every subject or value", text)
	}
	return x, nil
}

// data returns the content of a …Data field or of the file that its …Path field names, and the
// name of the field that was used. It stores the content in *inline.
func (b *builder) data(at, name string, inline *[]byte, path *string, required bool) ([]byte, string, error) {
	dataField, pathField := at+"."+name+"Data", at+"."+name+"Path"
	switch {
	case *inline != nil && *path != "":
		return nil, pathField, b.fail(pathField, "and %sData are both given; give one", name)
	case *path != "":
		data, err := b.content(pathField, nil, *path)
		if err != nil {
			return nil, pathField, err
		}
		*inline, *path = data, ""
		return data, pathField, nil
	case len(bytes.TrimSpace(*inline)) > 0:
		return *inline, dataField, nil
	case required || *inline != nil:
		return nil, dataField, b.fail(dataField, "is required and must not be empty (or give a file name in %sPath)", name)
	}
	return nil, dataField, nil
}

// fourFields are the four ways to write keys or revocation lists. A policy uses one of them.
type fourFields struct {
	name  string // "key", if the fields are keyData, keyPath, keyDatas and keyPaths
	empty string // what it would mean to have none
	data  *[]byte
	path  *string
	datas *[]string
	paths *[]string
}

const noSigner = "the policy would trust no signer"

// fieldContent is the content of one of fourFields, and the field's name.
type fieldContent struct {
	field string
	data  []byte
}

// contents reads the contents of fourFields; if they are empty and not required, it returns none.
// It stores the contents of files in *f.data or *f.datas.
func (b *builder) contents(at string, f fourFields, required bool) ([]fieldContent, error) {
	several := len(*f.datas) > 0 || len(*f.paths) > 0
	single := *f.data != nil || *f.path != ""
	switch {
	case *f.datas != nil && !several, *f.paths != nil && !several:
		return nil, b.fail(at+"."+f.name+"Datas", "is empty: %s", f.empty)
	case several && single, len(*f.datas) > 0 && len(*f.paths) > 0:
		return nil, b.fail(at, "needs one of %[1]sData, %[1]sPath, %[1]sDatas and %[1]sPaths, not several", f.name)
	case !several:
		data, field, err := b.data(at, f.name, f.data, f.path, required)
		if err != nil || data == nil {
			return nil, err
		}
		return []fieldContent{{field, data}}, nil
	}
	field := at + "." + f.name + "Datas"
	if len(*f.paths) > 0 {
		field = at + "." + f.name + "Paths"
		*f.datas = make([]string, len(*f.paths))
	}
	var contents []fieldContent
	for i := range *f.datas {
		path := ""
		if len(*f.paths) > 0 {
			path = (*f.paths)[i]
		}
		item := fmt.Sprintf("%s[%d]", field, i)
		if i == maxAlternatives {
			return nil, b.fail(field, "has %d items, at most %d are looked at", len(*f.datas), maxAlternatives)
		}
		inline, err := base64.StdEncoding.DecodeString((*f.datas)[i])
		if err != nil {
			return nil, b.fail(item, "is not base64 (encode the file with `base64 -w0`): %w", err)
		}
		data, err := b.content(item, inline, path)
		if err != nil {
			return nil, err
		}
		(*f.datas)[i] = base64.StdEncoding.EncodeToString(data)
		contents = append(contents, fieldContent{item, data})
	}
	*f.paths = nil
	return contents, nil
}

// keys reads the public keys of a policy.
func (b *builder) keys(at string, f fourFields, required bool) ([]crypto.PublicKey, error) {
	contents, err := b.contents(at, f, required)
	if err != nil {
		return nil, err
	}
	var publics []crypto.PublicKey
	for _, c := range contents {
		more, err := b.publicKeys(c.field, c.data)
		if err != nil {
			return nil, err
		}
		publics = append(publics, more...)
	}
	if len(publics) > maxAlternatives {
		return nil, b.fail(at, "holds %d keys, at most %d are looked at", len(publics), maxAlternatives)
	}
	return publics, nil
}

// ErrNamesFile is in the error for an API object that names a file.
var ErrNamesFile = errors.New("is only for documents in files: the server does not read a file that an API object names; put the content, as base64, into the field that ends in Data")

// content is the content of a field or of the file that path names.
func (b *builder) content(field string, inline []byte, path string) ([]byte, error) {
	if path == "" {
		if len(bytes.TrimSpace(inline)) == 0 {
			return nil, b.fail(field, "must not be empty")
		}
		return inline, nil
	}
	if b.folder == "" {
		return nil, b.fail(field, "%w", ErrNamesFile)
	}
	file := path
	if !filepath.IsAbs(file) {
		file = filepath.Join(b.folder, file)
	}
	data, err := readBounded(file)
	if err != nil {
		return nil, b.fail(field, "%s: %w", path, err)
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, b.fail(field, "%s: the file is empty", path)
	}
	return data, nil
}

// publicKeys reads one PEM block or several.
func (b *builder) publicKeys(field string, data []byte) ([]crypto.PublicKey, error) {
	var publics []crypto.PublicKey
	for rest := data; len(bytes.TrimSpace(rest)) > 0; {
		block, after := pem.Decode(rest)
		if block == nil && len(publics) == 0 {
			return nil, b.fail(field, "is not a public key in PEM form")
		}
		if len(publics) > 0 && !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("-----BEGIN ")) {
			return nil, b.fail(field, "has something after key %d that is not a key: %.40q", len(publics), bytes.TrimSpace(rest))
		}
		if block == nil || bytes.Count(rest[:len(rest)-len(after)], []byte("-----BEGIN ")) > 1 {
			// pem.Decode skips damaged blocks
			return nil, b.fail(field, "has a damaged PEM block after key %d", len(publics))
		}
		if len(publics) == maxAlternatives {
			return nil, b.fail(field, "holds more than %d keys", maxAlternatives)
		}
		public, err := cryptoutils.UnmarshalPEMToPublicKey(pem.EncodeToMemory(block))
		if err != nil {
			return nil, b.fail(field, "is not a public key in PEM form: %w", err)
		}
		publics = append(publics, public)
		rest = after
	}
	return publics, nil
}

// rekorKey reads a log's key. Rekor signs its promises with ECDSA, and sigstore-go verifies nothing
// else. With another key every signature would be refused without a reason.
func (b *builder) rekorKey(at string, inline *[]byte, path *string, required bool) (*ecdsa.PublicKey, error) {
	data, field, err := b.data(at, "rekorKey", inline, path, required)
	if err != nil || data == nil {
		return nil, err
	}
	publics, err := b.publicKeys(field, data)
	if err != nil {
		return nil, err
	}
	if len(publics) > 1 {
		return nil, b.fail(field, "holds %d keys; several logs can be named in a TrustedRoot", len(publics))
	}
	public := publics[0]
	k, ok := public.(*ecdsa.PublicKey)
	if !ok {
		return nil, b.fail(at, "the Rekor key is of type %T, transparency logs sign with ECDSA", public)
	}
	return k, nil
}

// certificates returns the certificates of a field, each of which passes check.
func (b *builder) certificates(at, name string, inline *[]byte, path *string, required bool, check func(*x509.Certificate) error) ([]*x509.Certificate, error) {
	data, field, err := b.data(at, name, inline, path, required)
	if err != nil || data == nil {
		return nil, err
	}
	certs, err := sigstore.ParseCertificates(data)
	if err == nil && len(certs) == 0 {
		err = errors.New("holds no certificate")
	}
	if err == nil && bytes.Count(data, []byte("-----BEGIN ")) != len(certs) {
		err = errors.New("has a damaged PEM block") // pem.Decode skips damaged blocks
	}
	if err != nil {
		return nil, b.fail(field, "%w", err)
	}
	for _, c := range certs {
		if err := check(c); err != nil {
			return nil, b.fail(field, "%w", err)
		}
	}
	return certs, nil
}

// checkCA returns an error for the certificate of a signer.
func checkCA(c *x509.Certificate) error {
	if !c.IsCA {
		return fmt.Errorf("%q is not a CA certificate", c.Subject)
	}
	return nil
}
