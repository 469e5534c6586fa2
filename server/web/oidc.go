package web

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"loadstar/server/access"
)

// OIDC configures sign-in with an OpenID Connect provider, using the authorization code flow
// with PKCE.
type OIDC struct {
	Issuer, ClientID string
	// ClientSecret is empty for a public client.
	ClientSecret string
	// Claim names the claim of the ID token that determines the role. The claim is a string or a
	// list of strings. A name with dots also finds a claim nested inside others.
	Claim string
	// Roles maps values of the claim to roles. If a user has several roles, the highest applies.
	// A user with none of the values is refused.
	Roles map[string]access.Role
}

// Check returns an error if the configuration is unsafe or incomplete.
func (o *OIDC) Check() error {
	u, err := url.Parse(o.Issuer)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())):
		return fmt.Errorf("web.oidc.issuer %q is not the address of a provider: want https://…, or http:// on this machine", o.Issuer)
	case o.ClientID == "":
		return errors.New("web.oidc.client_id is missing: want the ID that the provider has for this server")
	case o.Claim == "":
		return errors.New("web.oidc.claim is empty: want the claim that decides the role, such as groups")
	case len(o.Roles) == 0:
		return fmt.Errorf("web.oidc.roles is missing: without it no user may sign in; want values of the claim %s, such as viewer=staff,admin=it", o.Claim)
	}
	return nil
}

const (
	oidcStart    = "/api/oidc/start"
	oidcCallback = "/api/oidc/callback"
	// attemptFor is the time limit for a person to sign in at the provider.
	attemptFor = 10 * time.Minute
	// providerFor is the time limit of a request to the provider.
	providerFor  = 15 * time.Second
	maxExchanges = 8
	maxParameter = 4 << 10
)

// signer signs people in with a provider.
type signer struct {
	*OIDC
	web       *Web
	exchanges chan struct{}

	mu       sync.Mutex
	provider *oidc.Provider // nil until the provider has answered
	scopes   []string
}

func newSigner(w *Web) *signer {
	return &signer{OIDC: w.OIDC, web: w, exchanges: make(chan struct{}, maxExchanges)}
}

// attempt is the secret of one attempt to sign in, which the browser holds in a cookie. The
// server stores nothing, so strangers cannot fill its memory. State, nonce and verifier are
// different hashes of the secret, so that none reveals another.
type attempt string

func (a attempt) part(name string) string {
	h := sha256.Sum256([]byte(name + " " + string(a)))
	return base64.RawURLEncoding.EncodeToString(h[:])
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// client returns a context for requests to the provider. The context outlives the caller's,
// because the provider keeps it to fetch keys.
func (s *signer) client() context.Context {
	return oidc.ClientContext(context.Background(), &http.Client{Timeout: providerFor})
}

// oauth returns the provider and the configuration for it. It asks the provider for its
// addresses at first use, because the provider may start later than this server.
func (s *signer) oauth() (*oidc.Provider, *oauth2.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.provider == nil {
		p, err := oidc.NewProvider(s.client(), s.Issuer)
		if err != nil {
			return nil, nil, err
		}
		var known struct {
			Scopes []string `json:"scopes_supported"`
		}
		if err := p.Claims(&known); err != nil {
			return nil, nil, err
		}
		s.scopes = []string{oidc.ScopeOpenID}
		// Some providers refuse scopes that they do not know.
		for _, scope := range []string{"profile", "email", s.Claim} {
			if slices.Contains(known.Scopes, scope) {
				s.scopes = append(s.scopes, scope)
			}
		}
		s.provider = p
	}
	return s.provider, &oauth2.Config{
		ClientID: s.ClientID, ClientSecret: s.ClientSecret, Endpoint: s.provider.Endpoint(), Scopes: s.scopes,
		RedirectURL: strings.TrimSuffix(s.web.URL(), "/") + oidcCallback,
	}, nil
}

// start sends a browser to the provider.
func (s *signer) start(rw http.ResponseWriter, r *http.Request) {
	leave, ok := s.enter(rw, r)
	if !ok {
		return
	}
	defer leave()
	_, c, err := s.oauth()
	if err != nil {
		s.web.Log.Warn("cannot reach the OIDC provider", "issuer", s.Issuer, "error", err)
		s.refuse(rw, http.StatusBadGateway, "The sign-in provider is unreachable at the moment. Try again later, or sign in with a link of 'loadstar user login'.")
		return
	}
	a := attempt(oauth2.GenerateVerifier())
	s.cookie(rw, string(a), attemptFor)
	http.Redirect(rw, r, c.AuthCodeURL(a.part("state"), oidc.Nonce(a.part("nonce")), oauth2.S256ChallengeOption(a.part("verifier"))), http.StatusFound)
}

// cookie sets or deletes the cookie of an attempt. The cookie is not strict, because the
// browser must send it with the provider's redirect, which comes from another site.
func (s *signer) cookie(rw http.ResponseWriter, value string, life time.Duration) {
	http.SetCookie(rw, &http.Cookie{
		Name: s.web.cookieName(oidcCookie), Value: value, Path: "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: s.web.secure(),
	})
}

// enter limits attempts, because each one may make a request to the provider.
func (s *signer) enter(rw http.ResponseWriter, r *http.Request) (leave func(), ok bool) {
	if s.web.maySignIn(r) {
		select {
		case s.exchanges <- struct{}{}:
			return func() { <-s.exchanges }, true
		default:
		}
	}
	rw.Header().Set("Retry-After", "1")
	s.refuse(rw, http.StatusTooManyRequests, "Too many people are signing in at the moment. Try again.")
	return nil, false
}

// callback handles the browser's return from the provider, and signs its user in. The session's
// cookie is strict, so the browser does not send it with the redirect to the page, because the
// redirects began on another site. This causes no problem, because the page is the same for all
// users and its calls come from this site.
func (s *signer) callback(rw http.ResponseWriter, r *http.Request) {
	leave, ok := s.enter(rw, r)
	if !ok {
		return
	}
	defer leave()
	q := r.URL.Query()
	had, err := r.Cookie(s.web.cookieName(oidcCookie))
	s.cookie(rw, "", -time.Second) // an attempt can be used once
	if err != nil || len(had.Value) > 64 || !same(q.Get("state"), attempt(had.Value).part("state")) {
		s.refuse(rw, http.StatusBadRequest, "This sign-in was not begun in this browser, or it took more than ten minutes. Sign in again.")
		return
	}
	if said := q.Get("error"); said != "" {
		s.refuse(rw, http.StatusForbidden, "The provider refused the sign-in: "+cut(said+" "+q.Get("error_description"), 300))
		return
	}
	if code := q.Get("code"); code == "" || len(code) > maxParameter {
		s.refuse(rw, http.StatusBadRequest, "The provider sent no code. Sign in again.")
		return
	}
	token, err := s.exchange(q.Get("code"), attempt(had.Value))
	if err != nil {
		s.web.Log.Warn("cannot sign in a user of the OIDC provider", "issuer", s.Issuer, "error", err)
		s.refuse(rw, http.StatusBadGateway, "The provider's answer could not be verified. Sign in again; if the error persists, the server's log contains the reason.")
		return
	}
	role, name, err := s.claims(token)
	if err != nil {
		s.refuse(rw, http.StatusForbidden, err.Error())
		return
	}
	cookie, expires, err := s.web.Access.External(r.Context(), token.Issuer+" "+token.Subject, name, role, time.Now())
	if err != nil {
		code, text := http.StatusServiceUnavailable, "The server cannot answer now. Try again."
		if denied(err) {
			code, text = http.StatusForbidden, sentenceOf(err)
		}
		s.refuse(rw, code, text)
		return
	}
	s.web.signIn(rw, cookie, expires)
	http.Redirect(rw, r, s.web.URL(), http.StatusSeeOther)
}

// exchange exchanges a code for a verified ID token.
func (s *signer) exchange(code string, a attempt) (*oidc.IDToken, error) {
	p, c, err := s.oauth()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.client(), 2*providerFor)
	defer cancel()
	t, err := c.Exchange(ctx, code, oauth2.VerifierOption(a.part("verifier")))
	if err != nil {
		return nil, err
	}
	raw, ok := t.Extra("id_token").(string)
	if !ok {
		return nil, errors.New("the provider sent no ID token")
	}
	id, err := p.Verifier(&oidc.Config{ClientID: s.ClientID}).Verify(ctx, raw)
	if err != nil {
		return nil, err
	}
	if !same(id.Nonce, a.part("nonce")) {
		return nil, errors.New("the nonce of the ID token belongs to another sign-in")
	}
	if id.Subject == "" {
		return nil, errors.New("the ID token has no subject")
	}
	return id, nil
}

// claims returns the role that a token grants, and the name to show.
func (s *signer) claims(token *oidc.IDToken) (role access.Role, name string, err error) {
	var all map[string]json.RawMessage
	if err := token.Claims(&all); err != nil {
		return "", "", fmt.Errorf("the claims of the provider cannot be read: %w", err)
	}
	for _, claim := range []string{"preferred_username", "email", "sub"} {
		if name = text(all[claim]); name != "" {
			break
		}
	}
	if s.Claim == "email" && string(all["email_verified"]) != "true" {
		// Many providers let a user register with another person's email address.
		return "", "", fmt.Errorf("%s has no access: the provider has not verified the email address (the claim email_verified is not true)", cut(name, 64))
	}
	for _, value := range values(all, s.Claim) {
		if r := s.Roles[value]; r.Includes(access.Viewer) && !role.Includes(r) {
			role = r
		}
	}
	if role == "" {
		return "", "", fmt.Errorf("%s has no access: none of the values in the claim %s of the provider gives a role here; ask an admin of this server to add one to web.oidc.roles, or of the provider to add you to a group", cut(name, 64), s.Claim)
	}
	return role, name, nil
}

func text(raw json.RawMessage) (s string) {
	_ = json.Unmarshal(raw, &s) // another type is treated as an empty string
	return s
}

// values returns the strings of a claim. If no claim has the whole name, the parts between
// dots name nested objects.
func values(all map[string]json.RawMessage, claim string) []string {
	raw, ok := all[claim]
	if !ok {
		outer, inner, dotted := strings.Cut(claim, ".")
		var within map[string]json.RawMessage
		if !dotted || json.Unmarshal(all[outer], &within) != nil {
			return nil
		}
		return values(within, inner)
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil {
		return list
	}
	if one := text(raw); one != "" {
		return []string{one}
	}
	return nil
}

// cut shortens a string from the provider to show it on a page.
func cut(s string, most int) string {
	if r := []rune(strings.TrimSpace(s)); len(r) > most {
		return string(r[:most]) + "…"
	}
	return strings.TrimSpace(s)
}

// sentenceOf returns the message of an error without its code.
func sentenceOf(err error) string {
	if c := (*connect.Error)(nil); errors.As(err, &c) {
		return c.Message()
	}
	return err.Error()
}

var refusal = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>Sign-in - Loadstar</title></head>
<body><main><h1>You are not signed in</h1><p>{{.}}</p><p><a href="/">Back to the sign-in page</a></p></main></body>
</html>
`))

// refuse answers with a page, because a person has followed a link.
func (s *signer) refuse(rw http.ResponseWriter, status int, text string) {
	rw.Header().Set("Content-Type", "text/html; charset=utf-8")
	rw.WriteHeader(status)
	_ = refusal.Execute(rw, text) // a failed write means that the browser has disconnected
}
