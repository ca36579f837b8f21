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
	// Status is what a cluster reports about the policy; it is read over.
	Status any `json:"status,omitempty"`
}

// Metadata is the object's metadata; everything but the name and the annotations of Admission is
// read over, so that the output of `kubectl get clusterimagepolicy NAME -o yaml` can be used as it
// is. But a key that means one of these is refused, because it would have no effect.
type Metadata struct {
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"` // of an object; read over in files
	// Annotations are those that say what becomes of pods on admission.
	Annotations Admission `json:"annotations,omitzero"`
	Labels      labels    `json:"labels,omitzero"`
	_           struct{}  `json:"-"` // makes decodeDocument read over keys that are not listed
}

// labels of a policy mean nothing here.
type labels struct {
	_ struct{} `json:"-"` // makes decodeDocument read over all keys
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
	// Alternatives, ours, is the name of a group: a DNS label, such as release. Of the policies of a
	// group that cover a reference, it is enough to meet one. A group has policies of one kind and,
	// for an ImagePolicy, of one namespace.
	Alternatives string `json:"alternatives,omitempty"`
	// Exceptions, ours, are at most 64, each of which lets images through until it ends.
	//
	// +listType=atomic
	Exceptions []Exception `json:"exceptions,omitempty"`
}

// DocumentPolicy says who must have signed and what image the signature must name.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type DocumentPolicy struct {
	// RootOfTrust is whose signatures count.
	RootOfTrust RootOfTrust `json:"rootOfTrust"`
	// SignedIdentity is what image a signature must name; MatchRepoDigestOrExact if it is left out.
	SignedIdentity *SignedIdentity `json:"signedIdentity,omitempty"`
	// Attestations, ours, are demanded in place of a signature: all of them, by whom the root of
	// trust names.
	//
	// +listType=atomic
	Attestations []Attestation `json:"attestations,omitempty"`
	// Platforms, ours, says what vouches for the platforms of an index: ByIndex, a signature of
	// their own or of the index; or Signed, a signature of their own alone, as containers/image
	// demands. ByIndex if it is left out.
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
	// PolicyType names the member: PublicKey, FulcioCAWithRekor, PKI, or of ours TrustedRoot,
	// GPGKeys, Notary.
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

// PublicKey trusts a key, or any of several: of the PEM blocks in one field, or of the items of
// keyDatas, which containers-policy.json(5) calls so too. With a Rekor key, the signature must also
// be in that transparency log.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type PublicKey struct {
	// KeyData is base64 of one public key in PEM form, or of several.
	KeyData []byte `json:"keyData,omitempty"`
	// KeyPath, ours, is a file beside a document; an API object has none.
	KeyPath string `json:"keyPath,omitempty"`
	// KeyDatas, ours, are several instead of keyData, each in base64. (kubectl apply can merge no
	// list of []byte.)
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
// several, at the time at which the transparency log promised to include the signature.
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
// as vouched for by exactly one of OIDCIssuer and IssuerRegExp. The expressions (RE2) are named as
// sigstore's policy-controller names them, and have to match all of a name.
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
	// Extensions, ours, are further demands on the certificate, all of which must be met: such as
	// the repository that called a reusable workflow, which is the subject.
	//
	// +listType=atomic
	Extensions []FulcioExtension `json:"extensions,omitempty"`
}

// FulcioExtension is what one of the extensions that Fulcio writes into certificates must say:
// exactly one of Value and ValueRegExp.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type FulcioExtension struct {
	// Name is one of Fulcio's names: sourceRepositoryURI, sourceRepositoryRef, buildTrigger,
	// runnerEnvironment, ….
	Name string `json:"name"`
	// Value is the whole value.
	Value string `json:"value,omitempty"`
	// ValueRegExp is an expression (RE2) that has to match all of the value.
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
	// Email is among the certificate's subject alternative names.
	Email string `json:"email,omitempty"`
	// Hostname is among the certificate's subject alternative names; a leading "*." stands for one
	// label.
	Hostname string `json:"hostname,omitempty"`
}

// TrustedRoot trusts (an addition of ours) a sigstore trusted_root.json: its certificate
// authorities, transparency logs (of both versions), timestamp authorities and certificate
// transparency logs. The signer is either a subject of its certificate authorities or a key; there
// can be several of either.
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

// GPGKeys trusts (an addition of ours) every key of an OpenPGP keyring, armored or binary, or of
// several.
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

// Notary trusts (an addition of ours) signatures of the Notary Project, as a statement of
// notation's trust policy of the level strict does that names these trust stores. No network is
// asked about revocation: what is revoked, lists of the policy must tell.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type Notary struct {
	// CARootsData is base64 of the certificates of trust stores of the type ca, in PEM form.
	CARootsData []byte `json:"caRootsData,omitempty"`
	// CARootsPath is a file beside a document; an API object has none.
	CARootsPath string `json:"caRootsPath,omitempty"`
	// SigningAuthorityRootsData is the same of the type signingAuthority.
	SigningAuthorityRootsData []byte `json:"signingAuthorityRootsData,omitempty"`
	// SigningAuthorityRootsPath is a file beside a document; an API object has none.
	SigningAuthorityRootsPath string `json:"signingAuthorityRootsPath,omitempty"`
	// TSARootsData is the same of the type tsa. With it a signature must have a timestamp; without
	// it its certificates must be valid now.
	TSARootsData []byte `json:"tsaRootsData,omitempty"`
	// TSARootsPath is a file beside a document; an API object has none.
	TSARootsPath string `json:"tsaRootsPath,omitempty"`
	// CRLData is base64 of the certificate revocation lists (CRLs) of the CAs, in PEM or DER form. If
	// a policy has lists, each certificate below a root needs a list of its issuer that holds now,
	// also those of a timestamp.
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
	// TrustedIdentities are who must have signed, any of them: "x509.subject: C=US, ST=WA, O=acme"
	// for all certificates whose subject has these parts, or "*" alone for all certificates.
	//
	// +listType=atomic
	TrustedIdentities []string `json:"trustedIdentities"`
}

// SignedIdentity says how the image reference inside a signature must relate to the image's own.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type SignedIdentity struct {
	// MatchPolicy is the rule: MatchRepoDigestOrExact, MatchRepository, ExactRepository,
	// RemapIdentity, or of ours DigestOnly.
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

// ExactRepository is the repository that must be signed for, whatever the image's own.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type ExactRepository struct {
	// Repository is one with its host, such as docker.io/library/busybox.
	Repository string `json:"repository"`
}

// RemapIdentity replaces a prefix of the image's reference before it is compared.
//
// +k8s:deepcopy-gen=true
// +k8s:openapi-gen=true
type RemapIdentity struct {
	// Prefix is a host, or a host and a path, of the image's own reference.
	Prefix string `json:"prefix"`
	// SignedPrefix stands in its place in the reference that was signed.
	SignedPrefix string `json:"signedPrefix"`
}
