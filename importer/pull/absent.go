package pull

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// shown is what a repository has shown to a session.
type shown struct {
	mu   sync.Mutex
	last []string // the identifiers of the last manifests that it has shown, at most maxShown
	// ticks orders callers and proofs: a proof counts for a caller only if it was requested after
	// the caller's 404. A singleflight would also share a proof that began before.
	ticks  int
	proved int // the tick at which the last successful proof began; 0 if there is none

	proving sync.Mutex // held while a proof is requested
}

// maxShown bounds shown.last: the tag of the present request, and another.
const maxShown = 2

// Saw notes the tag or digest of a manifest that the repository has shown.
func (s *Session) Saw(identifier string) {
	s.shown.mu.Lock()
	defer s.shown.mu.Unlock()
	if !slices.Contains(s.shown.last, identifier) {
		s.shown.last = append([]string{identifier}, s.shown.last[:min(len(s.shown.last), maxShown-1)]...)
	}
}

// believed returns err, the error of a request for what a repository has, unless it says that the
// repository lacks that and the registry may only hide it: then the error is Unauthorized, with
// Hidden. Many registries answer a wrong or expired credential, or one without rights, that there
// is no such repository, or no such manifest, and what stands before a registry answers 404 for
// what it does not forward. So 404 is believed
//
//   - if the registry names the manifest as what is unknown (MANIFEST_UNKNOWN), and hides nothing:
//     it asks nobody for credentials, or its token says that the repository may be read;
//   - or if it shows, after that, the list of the repository's tags, or a manifest that it has shown
//     before;
//   - or if it lacks also the list, hides nothing, and still answers as a registry does.
//
// identifier is the tag or digest that was asked for; "" for the list of tags.
func (s *Session) believed(ctx context.Context, identifier string, err error) error {
	answer, ok := errors.AsType[*transport.Error](err)
	if s.client == nil || !ok || answer.StatusCode != http.StatusNotFound || ReasonOf(err) != "" {
		return err
	}
	open := !s.asks || s.tokens.grants(s.Repository.RepositoryStr())
	if open && slices.ContainsFunc(answer.Errors, func(d transport.Diagnostic) bool { return d.Code == transport.ManifestUnknownErrorCode }) {
		return err
	}
	proof := s.proof(ctx, identifier)
	if proof == nil {
		return err
	}
	why := Describe(s.Source.Reference, proof)
	if why.Temporary() || why.Reason == Canceled {
		return proof
	}
	if open && why.Reason == NotFound {
		challenge, pingErr := s.client.ping(ctx, s.Repository.Registry, s.insecure)
		switch away := (*Error)(nil); {
		case pingErr == nil && (s.asks || challenge.Scheme == ""):
			return err
		case pingErr != nil:
			if away = Describe(s.Source.Reference, pingErr); !away.Temporary() && away.Reason != Canceled {
				away.Reason, away.Message = Unexpected, "the host answers that it has nothing at all, as what stands before a registry does: "+away.Message
			}
			return away
		}
	}
	_, said := classifyAnswer(answer, s.Repository.RegistryStr())
	switch {
	case s.stranger:
		said += "; the registry asks for credentials and has got none, so it may hide what it has: log in with docker login or podman login, or check the credentials"
	default:
		said += "; the registry shows nothing of the repository to these credentials, so it may hide what it has: check that they are valid, and may read the repository and list its tags"
	}
	return &Error{Reason: Unauthorized, Hidden: true, Message: said, cause: err}
}

// proof returns nil if the registry shows anything of the repository now; else the error of the
// list of its tags. Of several callers at a time, one sends the requests.
func (s *Session) proof(ctx context.Context, lacking string) error {
	tick := func() int {
		s.shown.mu.Lock()
		defer s.shown.mu.Unlock()
		s.shown.ticks++
		return s.shown.ticks
	}
	came := tick()
	s.shown.proving.Lock()
	defer s.shown.proving.Unlock()
	s.shown.mu.Lock()
	proved, last := s.shown.proved, s.shown.last
	s.shown.mu.Unlock()
	if proved > came {
		return nil
	}
	began := tick()
	show := func(path string) error {
		ctx := WithBudget(ctx, manifest.MaxManifestSize, s.Limits.Request, JobOf(ctx))
		resp, err := s.Registry.Do(ctx, http.MethodGet, s.Registry.Path(path), strings.Join(manifest.AcceptedMediaTypes(), ", "))
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	err := show("tags/list?n=1")
	for _, identifier := range last {
		if err != nil && identifier != lacking && show("manifests/"+identifier) == nil {
			err = nil
		}
	}
	if err == nil {
		s.shown.mu.Lock()
		s.shown.proved = began
		s.shown.mu.Unlock()
	}
	return err
}

// grants reports whether the last token contains the right to pull from a repository, as the tokens
// of distribution's token servers do
// (https://distribution.github.io/distribution/spec/auth/jwt/).
func (t *tokens) grants(repository string) bool {
	if t == nil {
		return false
	}
	t.mu.Lock()
	token := ""
	if t.answer != nil {
		token = t.answer.token
	}
	t.mu.Unlock()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	var claims struct {
		Access []struct {
			Type, Name string
			Actions    []string
		} `json:"access"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return false
	}
	for _, a := range claims.Access {
		if a.Type == "repository" && a.Name == repository && (slices.Contains(a.Actions, "pull") || slices.Contains(a.Actions, "*")) {
			return true
		}
	}
	return false
}
