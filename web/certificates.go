package web

import (
	"crypto/x509"
	"os"
	"slices"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxCertificates bounds the reported certificates of a file, beginning with those that end first.
const maxCertificates = 20

// Certificate is one on which the server's connections depend.
type Certificate struct {
	// Name says where it comes from: a flag, or a file of the data directory.
	Name string `json:"name"`
	// Subject is its subject, as in RFC 2253.
	Subject string `json:"subject,omitempty"`
	// Ends is when it ends; the zero time if it could not be read.
	Ends time.Time `json:"ends,omitzero"`
	// Unknown is why it could not be read.
	Unknown string `json:"unknown,omitempty"`
}

// Certificates returns the certificates that the server serves with, that of the data
// directory's authority, and those of the file clientCA, by which it knows callers, unless that
// is "". It reads the files.
func (c *Credentials) Certificates(clientCA string) (all []Certificate) {
	add := func(name string, pem []byte, err error, only int) {
		var certs []*x509.Certificate
		if err == nil {
			certs, err = certutil.ParseCertsPEM(pem)
		}
		if err != nil {
			all = append(all, Certificate{Name: name, Unknown: err.Error()})
			return
		}
		certs = certs[:min(len(certs), only)]
		slices.SortStableFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
		for _, cert := range certs[:min(len(certs), maxCertificates)] {
			all = append(all, Certificate{Name: name, Subject: printable.Line(cert.Subject.String(), 256), Ends: cert.NotAfter.UTC()})
		}
	}
	ofFile := func(name, file string) {
		pem, err := os.ReadFile(file)
		add(name, pem, err, len(pem))
	}
	if c.TLS.CertFile != "" {
		ofFile("--tls-cert-file", c.TLS.CertFile)
	} else {
		cert, _ := c.serving.CurrentCertKeyContent()
		add("pki/serving.crt", cert, nil, 1) // the authority's follows it
	}
	ofFile("pki/ca.crt", c.CAFile)
	if clientCA != "" {
		ofFile("--client-ca-file", clientCA)
	}
	return all
}
