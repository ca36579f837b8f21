package policy

// Document is a ClusterImagePolicy as written in a file. Fields that OpenShift's type
// (github.com/openshift/api config/v1, types_image_policy.go) does not have are marked "ours". Every …Data
// field is base64 of a PEM document (of a keyring or JSON document where so stated); the …Path field beside
// it, ours, names a file with the same content instead, relative to the document's own folder.
type Document struct {
	APIVersion string       `json:"apiVersion"`
	Kind       string       `json:"kind"`
	Metadata   Metadata     `json:"metadata"`
	Spec       DocumentSpec `json:"spec"`
	// Status is what a cluster reports about the policy; it is read over.
	Status any `json:"status"`
}

// Metadata is the object's metadata; everything but the name is read over, so that the output of
// `kubectl get clusterimagepolicy NAME -o yaml` can be used as it is.
type Metadata struct {
	Name string   `json:"name"`
	_    struct{} `json:"-"` // makes decodeDocument read over keys that are not listed
}

// DocumentSpec is the policy and the images it is for.
type DocumentSpec struct {
	// Scopes are at most 256 prefixes of image references: "host[:port]", a namespace, a repository, a single
	// "repository:tag" or "repository@digest", "*.domain" for every subdomain, or "*" (ours) for every image that no other
	// scope covers.
	Scopes []string       `json:"scopes"`
	Policy DocumentPolicy `json:"policy"`
}

// DocumentPolicy says who must have signed and what image the signature must name.
type DocumentPolicy struct {
	RootOfTrust    RootOfTrust     `json:"rootOfTrust"`
	SignedIdentity *SignedIdentity `json:"signedIdentity"`
	// Attestations, ours, are demanded in place of a signature: all of them, by whom the root of trust names.
	Attestations []Attestation `json:"attestations"`
}

// RootOfTrust is a union: the one member that PolicyType names is set.
type RootOfTrust struct {
	PolicyType        string             `json:"policyType"`
	PublicKey         *PublicKey         `json:"publicKey"`
	FulcioCAWithRekor *FulcioCAWithRekor `json:"fulcioCAWithRekor"`
	PKI               *PKI               `json:"pki"`
	TrustedRoot       *TrustedRoot       `json:"trustedRoot"` // ours
	GPGKeys           *GPGKeys           `json:"gpgKeys"`     // ours
}

// The values of policyType.
const (
	TypePublicKey         = "PublicKey"
	TypeFulcioCAWithRekor = "FulcioCAWithRekor"
	TypePKI               = "PKI"
	TypeTrustedRoot       = "TrustedRoot" // ours
	TypeGPGKeys           = "GPGKeys"     // ours
)

// PublicKey trusts a key, or any of several: of the PEM blocks in one field, or of the items of keyDatas, which
// containers-policy.json(5) calls so too. With a Rekor key, the signature must also be in that transparency log.
type PublicKey struct {
	KeyData      []byte   `json:"keyData"`
	KeyPath      string   `json:"keyPath"`  // ours
	KeyDatas     [][]byte `json:"keyDatas"` // ours
	KeyPaths     []string `json:"keyPaths"` // ours
	RekorKeyData []byte   `json:"rekorKeyData"`
	RekorKeyPath string   `json:"rekorKeyPath"` // ours
}

// FulcioCAWithRekor trusts short-lived certificates of a Fulcio CA for one subject, or any of several, at the time at
// which the transparency log promised to include the signature.
type FulcioCAWithRekor struct {
	FulcioCAData   []byte          `json:"fulcioCAData"`
	FulcioCAPath   string          `json:"fulcioCAPath"` // ours
	RekorKeyData   []byte          `json:"rekorKeyData"`
	RekorKeyPath   string          `json:"rekorKeyPath"` // ours
	FulcioSubject  *FulcioSubject  `json:"fulcioSubject"`
	FulcioSubjects []FulcioSubject `json:"fulcioSubjects"` // ours, instead of the one
}

// FulcioSubject is who must have signed: exactly one of SignedEmail, SignedURI and SubjectRegExp, as vouched for by exactly
// one of OIDCIssuer and IssuerRegExp. The expressions (RE2) are named as sigstore's policy-controller names them, and have
// to match all of a name.
type FulcioSubject struct {
	OIDCIssuer   string `json:"oidcIssuer"`
	IssuerRegExp string `json:"issuerRegExp"` // ours
	SignedEmail  string `json:"signedEmail"`
	// SignedURI, ours, is the URI a workload's certificate carries, such as
	// https://github.com/OWNER/REPO/.github/workflows/build.yml@refs/heads/main.
	SignedURI string `json:"signedURI"`
	// SubjectRegExp, ours, is for URIs that change with each release, and matches e-mail addresses, URIs and user names.
	SubjectRegExp string `json:"subjectRegExp"`
}

// PKI trusts certificates of an own CA that are valid now.
type PKI struct {
	CARootsData         []byte     `json:"caRootsData"`
	CARootsPath         string     `json:"caRootsPath"` // ours
	CAIntermediatesData []byte     `json:"caIntermediatesData"`
	CAIntermediatesPath string     `json:"caIntermediatesPath"` // ours
	Subject             PKISubject `json:"pkiCertificateSubject"`
}

// PKISubject is who the certificate must be for; when both are set, both must match.
type PKISubject struct {
	Email    string `json:"email"`
	Hostname string `json:"hostname"`
}

// TrustedRoot trusts (an addition of ours) a sigstore trusted_root.json: its certificate authorities, transparency logs (of
// both versions), timestamp authorities and certificate transparency logs. Who must have signed is either a subject of
// its certificate authorities or a key; there can be several of either.
type TrustedRoot struct {
	TrustedRootData []byte          `json:"trustedRootData"`
	TrustedRootPath string          `json:"trustedRootPath"`
	FulcioSubject   *FulcioSubject  `json:"fulcioSubject"`
	FulcioSubjects  []FulcioSubject `json:"fulcioSubjects"`
	KeyData         []byte          `json:"keyData"`
	KeyPath         string          `json:"keyPath"`
	KeyDatas        [][]byte        `json:"keyDatas"`
	KeyPaths        []string        `json:"keyPaths"`
}

// GPGKeys trusts (an addition of ours) every key of an OpenPGP keyring, armored or binary.
type GPGKeys struct {
	KeyData []byte `json:"keyData"`
	KeyPath string `json:"keyPath"`
}

// SignedIdentity says how the image reference inside a signature must relate to the image's own.
type SignedIdentity struct {
	MatchPolicy     string           `json:"matchPolicy"`
	ExactRepository *ExactRepository `json:"exactRepository"`
	RemapIdentity   *RemapIdentity   `json:"remapIdentity"`
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
type ExactRepository struct {
	Repository string `json:"repository"`
}

// RemapIdentity replaces a prefix of the image's reference before it is compared.
type RemapIdentity struct {
	Prefix       string `json:"prefix"`
	SignedPrefix string `json:"signedPrefix"`
}
