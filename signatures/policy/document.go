package policy

// Document is a ClusterImagePolicy as written in a file. Fields that OpenShift's type
// (github.com/openshift/api, config/v1/types_image_policy.go) does not have are marked "ours".
// Every …Data field is base64 of a PEM document (of a keyring or JSON document where so stated);
// the …Path field beside it, ours, names a file with the same content instead, relative to the
// document's own folder.
type Document struct {
	APIVersion string       `json:"apiVersion,omitempty"`
	Kind       string       `json:"kind,omitempty"`
	Metadata   Metadata     `json:"metadata,omitempty"`
	Spec       DocumentSpec `json:"spec,omitempty"`
	// Status is what a cluster reports about the policy; it is ignored.
	Status any `json:"status,omitempty"`
}

// Metadata is the object's metadata. Only the name and the annotations of Admission matter; the
// rest is ignored, so that the output of `kubectl get clusterimagepolicy NAME -o yaml` can be used
// as it is. But a misspelt one of these keys is refused, because it would have no effect.
type Metadata struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"` // of an object; ignored in files
	// Annotations are those that set what happens to pods on admission.
	Annotations Admission `json:"annotations,omitzero"`
	Labels      labels    `json:"labels,omitzero"`
	_           struct{}  `json:"-"` // makes decodeDocument ignore keys that are not listed
}

// labels of a policy have no effect.
type labels struct {
	_ struct{} `json:"-"` // makes decodeDocument ignore all keys
}

// DocumentSpec is the policy and the images it is for.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type DocumentSpec struct {
	// Scopes are at most 256 prefixes of image references: "host[:port]", a namespace, a
	// repository, a single "repository:tag" or "repository@digest", "*.domain" for every subdomain,
	// or "*" (ours) for every image that no other scope covers.
	//
	// +listType=atomic
	Scopes []string `json:"scopes"`
	// Policy is who must have signed.
	Policy DocumentPolicy `json:"policy"`
	// Alternatives, ours, is the name of a group: a DNS label, such as release. If several policies of
	// a group cover an image, it is enough to meet one of them. A group has policies of one kind and,
	// for an ImagePolicy, of one namespace.
	Alternatives string `json:"alternatives,omitempty"`
	// Exceptions, ours, let images through until they end. There are at most 64.
	//
	// +listType=atomic
	Exceptions []Exception `json:"exceptions,omitempty"`
}

// DocumentPolicy is the demand: who must have signed, and which image the signature must name.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type DocumentPolicy struct {
	// RootOfTrust has the keys or identities whose signatures count.
	RootOfTrust RootOfTrust `json:"rootOfTrust"`
	// SignedIdentity is which image a signature must name; MatchRepoDigestOrExact if it is left out.
	SignedIdentity *SignedIdentity `json:"signedIdentity,omitempty"`
	// Attestations, ours, are demanded instead of a signature. All of them must be there, made by
	// signers whom the root of trust names.
	//
	// +listType=atomic
	Attestations []Attestation `json:"attestations,omitempty"`
	// Platforms, ours, is ByIndex if a signature of an index also counts for the platforms' images
	// that it lists, or Signed if each of them needs its own signature, as containers/image demands.
	// ByIndex if it is left out.
	Platforms string `json:"platforms,omitempty"`
}

// The values of platforms.
const (
	PlatformsByIndex = "ByIndex"
	PlatformsSigned  = "Signed"
)

// RootOfTrust is a union: the one member that PolicyType names is set.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RootOfTrust struct {
	// PolicyType names the member: PublicKey, FulcioCAWithRekor or PKI; or, ours, TrustedRoot, GPGKeys
	// or Notary.
	PolicyType        string             `json:"policyType"`
	PublicKey         *PublicKey         `json:"publicKey,omitempty"`
	FulcioCAWithRekor *FulcioCAWithRekor `json:"fulcioCAWithRekor,omitempty"`
	PKI               *PKI               `json:"pki,omitempty"`
	TrustedRoot       *TrustedRoot       `json:"trustedRoot,omitempty"` // ours
	GPGKeys           *GPGKeys           `json:"gpgKeys,omitempty"`     // ours
	Notary            *Notary            `json:"notary,omitempty"`      // ours
}

// The values of policyType.
const (
	TypePublicKey         = "PublicKey"
	TypeFulcioCAWithRekor = "FulcioCAWithRekor"
	TypePKI               = "PKI"
	TypeTrustedRoot       = "TrustedRoot" // ours
	TypeGPGKeys           = "GPGKeys"     // ours
	TypeNotary            = "Notary"      // ours
)

// PublicKey trusts one key or any of several. Several keys are PEM blocks in one field, or the
// items of keyDatas, as in containers-policy.json(5). With a Rekor key, the signature must also be
// in that transparency log.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PublicKey struct {
	// KeyData is base64 of one public key in PEM form, or of several.
	KeyData []byte `json:"keyData,omitempty"`
	// KeyPath, ours, is a file beside a document; an API object has none.
	KeyPath string `json:"keyPath,omitempty"`
	// KeyDatas, ours, are several keys instead of keyData, each in base64. (kubectl apply cannot merge
	// a list of []byte.)
	//
	// +listType=atomic
	KeyDatas []string `json:"keyDatas,omitempty"`
	// KeyPaths, ours, are files beside a document; an API object has none.
	//
	// +listType=atomic
	KeyPaths []string `json:"keyPaths,omitempty"`
	// RekorKeyData is base64 of the public key of a transparency log, in PEM form.
	RekorKeyData []byte `json:"rekorKeyData,omitempty"`
	// RekorKeyPath, ours, is a file beside a document; an API object has none.
	RekorKeyPath string `json:"rekorKeyPath,omitempty"`
}

// FulcioCAWithRekor trusts short-lived certificates of a Fulcio CA for one subject, or any of
// several. They must have been valid when the transparency log promised to include the signature.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type FulcioCAWithRekor struct {
	// FulcioCAData is base64 of the CA's certificates, in PEM form.
	FulcioCAData []byte `json:"fulcioCAData,omitempty"`
	// FulcioCAPath, ours, is a file beside a document; an API object has none.
	FulcioCAPath string `json:"fulcioCAPath,omitempty"`
	// RekorKeyData is base64 of the public key of a transparency log, in PEM form.
	RekorKeyData []byte `json:"rekorKeyData,omitempty"`
	// RekorKeyPath, ours, is a file beside a document; an API object has none.
	RekorKeyPath string `json:"rekorKeyPath,omitempty"`
	// FulcioSubject is who must have signed.
	FulcioSubject *FulcioSubject `json:"fulcioSubject,omitempty"`
	// FulcioSubjects, ours, are several instead of fulcioSubject: any of them may have signed.
	//
	// +listType=atomic
	FulcioSubjects []FulcioSubject `json:"fulcioSubjects,omitempty"`
}

// FulcioSubject is who must have signed: exactly one of SignedEmail, SignedURI and SubjectRegExp,
// and exactly one of OIDCIssuer and IssuerRegExp, the issuer that vouches for it. The expressions
// (RE2) have the names of sigstore's policy-controller, and must match a whole name.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type FulcioSubject struct {
	// OIDCIssuer is the URL of the issuer that vouches for the subject.
	OIDCIssuer string `json:"oidcIssuer,omitempty"`
	// IssuerRegExp, ours, is an expression instead of oidcIssuer.
	IssuerRegExp string `json:"issuerRegExp,omitempty"`
	// SignedEmail is the e-mail address that the certificate is for.
	SignedEmail string `json:"signedEmail,omitempty"`
	// SignedURI, ours, is the URI a workload's certificate carries, such as
	// https://github.com/OWNER/REPO/.github/workflows/build.yml@refs/heads/main.
	SignedURI string `json:"signedURI,omitempty"`
	// SubjectRegExp, ours, is for URIs that change with each release, and matches e-mail addresses,
	// URIs and user names.
	SubjectRegExp string `json:"subjectRegExp,omitempty"`
	// Extensions, ours, are further demands on the certificate. All of them must be met. For instance,
	// the subject may be a reusable workflow, and an extension the repository that called it.
	//
	// +listType=atomic
	Extensions []FulcioExtension `json:"extensions,omitempty"`
}

// FulcioExtension is a demand on one of Fulcio's extensions of a certificate: exactly one of Value
// and ValueRegExp.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type FulcioExtension struct {
	// Name is one of Fulcio's names: sourceRepositoryURI, sourceRepositoryRef, buildTrigger,
	// runnerEnvironment, ….
	Name string `json:"name"`
	// Value is the whole value.
	Value string `json:"value,omitempty"`
	// ValueRegExp is an expression (RE2) that must match the whole value.
	ValueRegExp string `json:"valueRegExp,omitempty"`
}

// PKI trusts certificates of a private CA that are valid now.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PKI struct {
	// CARootsData is base64 of the CA's root certificates, in PEM form.
	CARootsData []byte `json:"caRootsData,omitempty"`
	// CARootsPath, ours, is a file beside a document; an API object has none.
	CARootsPath string `json:"caRootsPath,omitempty"`
	// CAIntermediatesData is base64 of intermediate certificates, in PEM form.
	CAIntermediatesData []byte `json:"caIntermediatesData,omitempty"`
	// CAIntermediatesPath, ours, is a file beside a document; an API object has none.
	CAIntermediatesPath string `json:"caIntermediatesPath,omitempty"`
	// Subject is who the certificate must be for.
	Subject PKISubject `json:"pkiCertificateSubject"`
}

// PKISubject is who the certificate must be for; when both are set, both must match.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PKISubject struct {
	// Email must be among the certificate's subject alternative names.
	Email string `json:"email,omitempty"`
	// Hostname must be among the certificate's subject alternative names; a leading "*." stands for
	// one label.
	Hostname string `json:"hostname,omitempty"`
}

// TrustedRoot (an addition of ours) trusts a sigstore trusted_root.json: its certificate
// authorities, transparency logs (of both versions), timestamp authorities and certificate
// transparency logs. The signer is either a subject of a certificate or a key; there can be several
// of either.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type TrustedRoot struct {
	// TrustedRootData is base64 of a trusted_root.json.
	TrustedRootData []byte `json:"trustedRootData,omitempty"`
	// TrustedRootPath is a file beside a document; an API object has none.
	TrustedRootPath string `json:"trustedRootPath,omitempty"`
	// FulcioSubject is who must have signed.
	FulcioSubject *FulcioSubject `json:"fulcioSubject,omitempty"`
	// FulcioSubjects are several instead of fulcioSubject: any of them may have signed.
	//
	// +listType=atomic
	FulcioSubjects []FulcioSubject `json:"fulcioSubjects,omitempty"`
	// KeyData is base64 of one public key in PEM form, or of several, instead of a subject.
	KeyData []byte `json:"keyData,omitempty"`
	// KeyPath is a file beside a document; an API object has none.
	KeyPath string `json:"keyPath,omitempty"`
	// KeyDatas are several instead of keyData, each in base64.
	//
	// +listType=atomic
	KeyDatas []string `json:"keyDatas,omitempty"`
	// KeyPaths are files beside a document; an API object has none.
	//
	// +listType=atomic
	KeyPaths []string `json:"keyPaths,omitempty"`
}

// GPGKeys (an addition of ours) trusts every key of one or several OpenPGP keyrings, armored or
// binary.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type GPGKeys struct {
	// KeyData is base64 of the keyring.
	KeyData []byte `json:"keyData,omitempty"`
	// KeyPath is a file beside a document; an API object has none.
	KeyPath string `json:"keyPath,omitempty"`
	// KeyDatas are several instead of keyData, each in base64.
	//
	// +listType=atomic
	KeyDatas []string `json:"keyDatas,omitempty"`
	// KeyPaths are files beside a document; an API object has none.
	//
	// +listType=atomic
	KeyPaths []string `json:"keyPaths,omitempty"`
}

// Notary (an addition of ours) trusts signatures of the Notary Project. It works like a statement
// of notation's trust policy with the level strict and these trust stores. Revocation is not
// checked over the network, but only by the policy's lists.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Notary struct {
	// CARootsData is base64 of the certificates of trust stores of the type ca, in PEM form.
	CARootsData []byte `json:"caRootsData,omitempty"`
	// CARootsPath is a file beside a document; an API object has none.
	CARootsPath string `json:"caRootsPath,omitempty"`
	// SigningAuthorityRootsData is the same for the type signingAuthority.
	SigningAuthorityRootsData []byte `json:"signingAuthorityRootsData,omitempty"`
	// SigningAuthorityRootsPath is a file beside a document; an API object has none.
	SigningAuthorityRootsPath string `json:"signingAuthorityRootsPath,omitempty"`
	// TSARootsData is the same for the type tsa. With it, a signature must have a timestamp; without
	// it, the signature's certificates must be valid now.
	TSARootsData []byte `json:"tsaRootsData,omitempty"`
	// TSARootsPath is a file beside a document; an API object has none.
	TSARootsPath string `json:"tsaRootsPath,omitempty"`
	// CRLData is base64 of the certificate revocation lists (CRLs) of the CAs, in PEM or DER form. If
	// a policy has lists, each certificate below a root needs a valid list of its issuer; so do the
	// certificates of a timestamp.
	CRLData []byte `json:"crlData,omitempty"`
	// CRLPath is a file beside a document; an API object has none.
	CRLPath string `json:"crlPath,omitempty"`
	// CRLDatas are several instead of crlData, each in base64.
	//
	// +listType=atomic
	CRLDatas []string `json:"crlDatas,omitempty"`
	// CRLPaths are files beside a document; an API object has none.
	//
	// +listType=atomic
	CRLPaths []string `json:"crlPaths,omitempty"`
	// TrustedIdentities are the accepted signers: "x509.subject: C=US, ST=WA, O=acme" for all
	// certificates whose subject has these parts, or "*" alone for all certificates.
	//
	// +listType=atomic
	TrustedIdentities []string `json:"trustedIdentities"`
}

// SignedIdentity is the rule for the image reference inside a signature, compared with the image's
// own.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type SignedIdentity struct {
	// MatchPolicy is the rule: MatchRepoDigestOrExact, MatchRepository, ExactRepository, RemapIdentity
	// or, ours, DigestOnly.
	MatchPolicy     string           `json:"matchPolicy"`
	ExactRepository *ExactRepository `json:"exactRepository,omitempty"`
	RemapIdentity   *RemapIdentity   `json:"remapIdentity,omitempty"`
}

// The values of matchPolicy.
const (
	MatchRepoDigestOrExact = "MatchRepoDigestOrExact"
	MatchRepository        = "MatchRepository"
	MatchExactRepository   = "ExactRepository"
	MatchRemapIdentity     = "RemapIdentity"
	MatchDigestOnly        = "DigestOnly" // ours
)

// ExactRepository is the repository that the signature must name, whichever repository the image is
// in.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ExactRepository struct {
	// Repository is a repository with its host, such as docker.io/library/busybox.
	Repository string `json:"repository"`
}

// RemapIdentity replaces a prefix of the image's reference before it is compared.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RemapIdentity struct {
	// Prefix is a host, or a host and a path, of the image's own reference.
	Prefix string `json:"prefix"`
	// SignedPrefix replaces Prefix before the comparison with the signed reference.
	SignedPrefix string `json:"signedPrefix"`
}
