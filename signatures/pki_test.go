package signatures_test

import (
	"crypto/x509"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func trustPKI(t *testing.T, roots, intermediates *x509.Certificate, subject string) string {
	more := ""
	if intermediates != nil {
		more = "caIntermediatesData: " + signaturestest.B64(signaturestest.CertPEM(t, intermediates)) + ", "
	}
	return fmt.Sprintf("{policyType: PKI, pki: {caRootsData: %s, %spkiCertificateSubject: {%s}}}",
		signaturestest.B64(signaturestest.CertPEM(t, roots)), more, subject)
}

func TestVerifyPKI(t *testing.T) {
	d, elsewhere := signaturestest.NewDeployment(t), signaturestest.NewDeployment(t)
	present := time.Now()
	sign := func(edit func(*x509.Certificate), chain bool) []byte {
		leaf, key := d.Identity(t, "dev@example.com", func(c *x509.Certificate) {
			c.DNSNames = []string{"build.example.com"}
			if edit != nil {
				edit(c)
			}
		})
		b := key.SimpleSigning(t, digest, repository)
		b.Annotations[payload.AnnotationCertificate] = string(signaturestest.CertPEM(t, leaf))
		if chain {
			b.Annotations[payload.AnnotationChain] = string(signaturestest.CertPEM(t, d.Intermediate, d.Root))
		}
		return signaturestest.Marshal(t, b)
	}
	const mail = "email: dev@example.com"
	for _, tc := range []struct {
		name    string
		content []byte
		trust   string
		at      time.Time
		want    string
	}{
		{"chain with the signature", sign(nil, true), trustPKI(t, d.Root, nil, mail), present, trusted},
		{"intermediate in the policy", sign(nil, false), trustPKI(t, d.Root, d.Intermediate, mail), present, trusted},
		{"host name", sign(nil, true), trustPKI(t, d.Root, nil, "hostname: build.example.com"), present, trusted},
		{"both", sign(nil, true), trustPKI(t, d.Root, nil, mail+", hostname: build.example.com"), present, trusted},
		{"one of both", sign(nil, true), trustPKI(t, d.Root, nil, mail+", hostname: other.example.com"), present, "False SubjectMismatch / True"},
		{"another mail", sign(nil, true), trustPKI(t, d.Root, nil, "email: boss@example.com"), present, "False SubjectMismatch / True"},
		{"no intermediate", sign(nil, false), trustPKI(t, d.Root, nil, mail), present, "False NoMatchingKey / Unknown"},
		{"another CA", sign(nil, true), trustPKI(t, elsewhere.Root, nil, mail), present, "False NoMatchingKey / Unknown"},
		{"expired", sign(nil, true), trustPKI(t, d.Root, nil, mail), present.Add(time.Hour), "False CertificateExpired / True"},
		{"expired, of another CA", sign(nil, true), trustPKI(t, elsewhere.Root, nil, mail), present.Add(time.Hour), "False NoMatchingKey / Unknown"},
		{"expired, and no intermediate", sign(nil, false), trustPKI(t, d.Root, nil, mail), present.Add(time.Hour), "False NoMatchingKey / Unknown"},
		{"an expired CA, of another", sign(nil, true), trustPKI(t, elsewhere.Root, nil, mail), present.AddDate(2, 0, 0), "False NoMatchingKey / Unknown"},
		{"an expired CA", sign(nil, true), trustPKI(t, d.Root, nil, mail), present.AddDate(2, 0, 0), "False CertificateExpired / True"},
		{"not for code signing", sign(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }, true), trustPKI(t, d.Root, nil, mail), present, "False NoMatchingKey / Unknown"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := signatures.Verify(signatures.Signature{Type: signatures.TypeSimpleSigning, Content: tc.content}, image,
				signaturestest.Set(t, tc.trust, matchRepository), tc.at)
			wellFormed(t, v)
			want(t, v, tc.want)
			later := signatures.Verify(signatures.Signature{Type: signatures.TypeSimpleSigning, Content: tc.content}, image,
				signaturestest.Set(t, tc.trust, matchRepository), tc.at.Add(time.Second))
			if !slices.Equal(v.Conditions, later.Conditions) {
				// otherwise each sweep would write the Image
				t.Errorf("a second later it is judged %+v, and not %+v", later.Conditions, v.Conditions)
			}
			expired, _ := v.Condition(verdicts.Expired)
			if (expired.Status == corev1.ConditionTrue) != (tc.want == "False CertificateExpired / True") {
				t.Errorf("Expired is %q", expired.Status)
			}
			if v.Trusted() && (v.NotAfter.Before(present) || v.NotAfter.After(present.Add(6*time.Minute))) {
				t.Errorf("NotAfter %v is not the certificate's", v.NotAfter)
			}
		})
	}
}
