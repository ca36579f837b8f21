package console

import (
	"strings"
	"testing"
)

// Where an image comes from is said in sentences, with who says so: a certificate that a policy
// trusts, one that none does, or nobody but the image.
func TestImageSaysWhereItComesFrom(t *testing.T) {
	answers := hostileAnswers()
	signed := func(subject, trusted string, claims m) m {
		return m{"type": "Cosign", "issuedTo": m{"commonName": subject}, "conditions": l{m{"type": "Trusted", "status": trusted}}, "signedClaims": claims}
	}
	workflow := m{"fulcio.issuer": "https://token.actions.githubusercontent.com", "fulcio.sourceRepositoryURI": "https://github.com/acme/app", "fulcio.sourceRepositoryDigest": "3f2c1aa9d0", "rekor.integratedTime": "2026-11-12T09:00:00Z"}
	built := m{"predicateType": slsaProvenance + "v1"}
	for key, value := range workflow {
		built[key] = value
	}
	answers["GET "+imagesPath+"/"+digestA] = m{
		"metadata": m{"name": digestA}, "signatures": l{
			signed("https://github.com/acme/app/w.yml", "True", workflow), signed("https://github.com/acme/app/w.yml", "True", built), signed("https://github.com/acme/app/w.yml", "True", built),
			signed("https://example.com/b", "False", m{"fulcio.issuer": "https://ci.example.com", "fulcio.sourceRepositoryURI": "https://example.com/<b>app"}), signed("ann", "True", m{}),
		},
		"dockerImageMetadata": m{"Config": m{"Labels": m{labelSource: "https://github.com/acme/app.git", labelRevision: "3f2", labelCreated: "2026-11-11T00:00:00Z"}}},
	}
	answers["POST "+reviewsPath] = answered(func(string) m { return m{"state": "Found", "meaning": m{"digest": digestA}} })
	b := newBrowser(t, answers)
	b.signIn("good")
	body := b.do("GET", Root+"image?ref="+digestA, nil).Body.String()
	for _, want := range []string{
		"Signed by GitHub Actions from github.com/acme/app at 3f2c1aa on 12 November 2026", "Built by GitHub Actions from github.com/acme/app at 3f2c1aa on 12 November 2026", "by the certificate of https://github.com/acme/app/w.yml, which a policy trusts",
		"Signed by ci.example.com from example.com/&lt;b&gt;app", "by the certificate of https://example.com/b, which no policy trusts", "Built from github.com/acme/app at 3f2 on 11 November 2026", "by its own labels",
	} {
		if strings.Count(body, want) == 0 {
			t.Errorf("the page does not say %q:\n%s", want, body)
		}
	}
	if n := strings.Count(body, "Built by GitHub Actions"); n != 1 {
		t.Errorf("a sentence is there %d times", n)
	}
}
