package cli

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/access/roles"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// verbRoles are those of Tidewaiter that are made for a verb. Where a right is missing they are
// named before others.
var verbRoles = map[string]string{"import": "tidewaiter:importer", "prune": "tidewaiter:pruner"}

// Explain returns what to print for an error of a verb, and a hint, "" if there is none. Errors of
// API servers and of connections to them are put into words. The rest of the error stays, and so
// does an error of a registry.
func Explain(verb string, err error) (text, hint string) {
	text = err.Error()
	if given, ok := errors.AsType[*HintError](err); ok {
		hint = given.Hint
	}
	say := func(of error, words, advice string) {
		if before := of.Error(); before != "" && strings.Contains(text, before) {
			text = strings.Replace(text, before, words, 1)
		} else {
			text = words
		}
		hint = cmp.Or(hint, advice)
	}
	var asked *url.Error
	var answer apierrors.APIStatus
	switch {
	case pull.ReasonOf(err) != "": // it is of a registry, and says so itself
	case errors.As(err, &asked):
		words, advice := connection(asked)
		say(asked, words, advice)
	case errors.As(err, &answer):
		words, advice := status(verb, answer.Status())
		of, _ := answer.(error)
		say(of, words, advice)
	default:
		var body metav1.Status // a raw answer
		if i := strings.IndexByte(text, '{'); i >= 0 && json.Unmarshal([]byte(strings.TrimSpace(text[i:])), &body) == nil && body.Kind == "Status" {
			words, advice := status(verb, body)
			text, hint = text[:i]+words, cmp.Or(hint, advice)
		} else if before, ok := strings.CutSuffix(strings.TrimSpace(text), "404 page not found"); ok {
			text, hint = before+notTidewaiter, cmp.Or(hint, otherServer)
		}
	}
	return strings.TrimSpace(text), hint
}

const (
	notTidewaiter = "the server does not have this resource: it is not a tidewaiter server, or it is an older one"
	otherServer   = "kubectl config current-context shows the context in use; --server, --kubeconfig and --data-dir select another server"
)

// connection explains why a server could not be asked.
func connection(e *url.Error) (words, advice string) {
	host := e.URL
	if u, err := url.Parse(e.URL); err == nil && u.Host != "" {
		host = u.Host
	}
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var dns *net.DNSError
	switch {
	case errors.As(e, &unknown):
		return fmt.Sprintf("the certificate of %s is signed by an unknown authority", host), "give the authority's certificate with --certificate-authority FILE; a tidewaiter server keeps it in pki/ca.crt of its data directory"
	case errors.As(e, &name):
		names := append(slices.Clone(name.Certificate.DNSNames), addresses(name.Certificate)...)
		return fmt.Sprintf("the certificate of %s is not for %s, only for %s", host, name.Host, strings.Join(names, ", ")), "use one of these names, or add one: tidewaiter serve --tls-san " + name.Host
	case errors.As(e, &invalid) && invalid.Reason == x509.Expired:
		until := invalid.Cert.NotAfter
		return fmt.Sprintf("the certificate of %s is valid only from %s to %s", host, invalid.Cert.NotBefore.UTC().Format(time.RFC3339), until.UTC().Format(time.RFC3339)), "is a clock wrong?"
	case errors.Is(e, syscall.ECONNREFUSED):
		return fmt.Sprintf("no server answers at %s: the connection was refused", host), "start it (tidewaiter serve), or name another with --server or --kubeconfig"
	case errors.As(e, &dns):
		return fmt.Sprintf("host %s not found", dns.Name), "name the server with --server or --kubeconfig"
	case errors.Is(e, http.ErrSchemeMismatch), strings.Contains(e.Err.Error(), "server gave HTTP response to HTTPS client"):
		return fmt.Sprintf("%s speaks plain HTTP: it is not a tidewaiter server", host), otherServer
	case errors.Is(e, context.Canceled):
		return "interrupted", ""
	case e.Timeout():
		return fmt.Sprintf("%s does not answer in time", host), "check the address, and that no firewall blocks the connection"
	}
	return fmt.Sprintf("asking %s: %v", host, e.Err), ""
}

func addresses(c *x509.Certificate) (all []string) {
	for _, ip := range c.IPAddresses {
		all = append(all, ip.String())
	}
	return all
}

// status explains the answer of an API server.
func status(verb string, s metav1.Status) (words, advice string) {
	switch {
	case s.Code == http.StatusUnauthorized:
		return "the server rejected the credential: none was given, or it is wrong, has expired, or belongs to another server", "give another with --token-file or --kubeconfig; `kubectl create token ACCOUNT` creates a new token"
	case s.Code == http.StatusForbidden:
		return s.Message, rightsFor(verb, s.Message)
	case s.Code == http.StatusNotFound && (strings.Contains(s.Message, "could not find the requested resource") || strings.Contains(s.Message, "page not found")):
		return notTidewaiter, otherServer
	}
	if _, of, ok := strings.Cut(s.Message, ` "" is invalid: `); ok { // a review, which has no name
		return of, ""
	}
	return cmp.Or(s.Message, string(s.Reason), fmt.Sprintf("the server answered with status %d", s.Code)), ""
}

// Kubernetes' words for a missing right (k8s.io/apiserver/pkg/endpoints/handlers/responsewriters).
var (
	cannotResource = regexp.MustCompile(`User "([^"]*)" cannot (\S+) resource "([^"]+)" in API group "([^"]*)"`)
	inNamespace    = regexp.MustCompile(` in the namespace "([^"]+)"`)
	cannotPath     = regexp.MustCompile(`User "([^"]*)" cannot (\S+) path "([^"]+)"`)
)

// rightsFor names the role of Tidewaiter that has the right that a message says is missing.
func rightsFor(verb, message string) string {
	var has func(rbacv1.PolicyRule) bool
	contains := func(all []string, one string) bool { return slices.Contains(all, one) || slices.Contains(all, "*") }
	who := ""
	if m := cannotResource.FindStringSubmatch(message); m != nil {
		who = m[1]
		has = func(r rbacv1.PolicyRule) bool {
			return contains(r.Verbs, m[2]) && contains(r.APIGroups, m[4]) && contains(r.Resources, m[3])
		}
	} else if m := cannotPath.FindStringSubmatch(message); m != nil {
		who = m[1]
		has = func(r rbacv1.PolicyRule) bool { return contains(r.Verbs, m[2]) && contains(r.NonResourceURLs, m[3]) }
	} else {
		return ""
	}
	best, least := "view", -1 // of Kubernetes' own, view reads pods and the like
	for _, role := range roles.Tidewaiter() {
		if !slices.ContainsFunc(role.Rules, has) {
			continue
		}
		if role.Name == verbRoles[verb] {
			best, least = role.Name, 0
			break
		}
		if n := power(role.Rules); least < 0 || n < least {
			best, least = role.Name, n
		}
	}
	if least < 0 && !strings.Contains(message, ` cannot list `) && !strings.Contains(message, ` cannot get `) {
		best = "cluster-admin"
	}
	to := "--user=" + who
	if account, ok := strings.CutPrefix(who, "system:serviceaccount:"); ok {
		to = "--serviceaccount=" + account
	}
	binding := "clusterrolebinding NAME"
	if m := inNamespace.FindStringSubmatch(message); m != nil && best != verbRoles[verb] { // which needs more than this right
		binding = "rolebinding NAME --namespace=" + m[1]
	}
	return fmt.Sprintf("the role %s allows it; an administrator can grant it: kubectl create %s --clusterrole=%s %s", best, binding, best, to)
}

// power compares roles: what a role may change counts before what it may read.
func power(rules []rbacv1.PolicyRule) int {
	n := len(rules)
	for _, r := range rules {
		for _, verb := range r.Verbs {
			if !slices.Contains([]string{"get", "list", "watch"}, verb) {
				n += 1000 * (len(r.Resources) + len(r.NonResourceURLs))
			}
		}
	}
	return n
}

// Refused is the error for what the server does not show, with the role that allows it if that is
// because of a right that the caller lacks.
func Refused(message string) error {
	err := errors.New(message)
	if hint := rightsFor("", message); hint != "" {
		return WithHint(err, "%s", hint)
	}
	return err
}

// UnusedAddress explains why a server cannot listen, and what to do.
func UnusedAddress(err error) (hint string, explained error) {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "listen" {
		return "", err
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "stop that program, or choose another port with --secure-port; 0 picks a free one", fmt.Errorf("%s is in use by another program", op.Addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "--bind-address 0.0.0.0 listens on all addresses; --advertise-url names one that clients use", fmt.Errorf("%s is not an address of this machine", op.Addr)
	case errors.Is(err, os.ErrPermission):
		return "ports below 1024 need a privilege; choose another with --secure-port", fmt.Errorf("this user may not listen on %s", op.Addr)
	}
	return "", err
}
