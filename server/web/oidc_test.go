package web

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/oauth2-proxy/mockoidc"
	"github.com/prometheus/client_golang/prometheus"

	"loadstar/internal/connlimit"
	"loadstar/internal/testkit"
	"loadstar/server/access"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/operator"
)

// signing is a dashboard with a real ledger, and a provider that speaks OpenID Connect over
// HTTP.
type signing struct {
	*testing.T
	provider *mockoidc.MockOIDC
	ledger   *ledger.Ledger
	gate     *access.Gate
	page     string
}

func newSigning(t *testing.T, change func(*OIDC)) *signing {
	t.Helper()
	if testing.Short() {
		t.Skip("starts an OpenID Connect provider")
	}
	p, err := mockoidc.Run()
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, p.Shutdown()) })
	l, err := ledger.Open(t.Context(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, l.Close()) })
	log := slog.New(slog.DiscardHandler)
	g := access.New(l.Users, log)
	c := &OIDC{
		Issuer: p.Issuer(), ClientID: p.ClientID, ClientSecret: p.ClientSecret, Claim: "groups",
		Roles: map[string]access.Role{"staff": access.Viewer, "grid": access.Operator, "it": access.Admin},
	}
	if change != nil {
		change(c)
	}
	// The page and the provider are on different sites, as usual.
	w, err := Open(Config{Listen: "localhost:0", OIDC: c})
	testkit.Must(t, err)
	w.logins = connlimit.NewRates(1000, 1000, 10) // the test signs in faster than people
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		registry := prometheus.NewRegistry()
		done <- w.Run(ctx, Services{API: operator.New(operator.Config{Ledger: l, Access: g, Log: log}), Access: g, Log: log, Limited: access.NewLimitReport(log, registry)})
	}()
	t.Cleanup(func() { cancel(); testkit.Must(t, <-done) })
	return &signing{t, p, l, g, strings.TrimSuffix(w.URL(), "/")}
}

// browser is a client that keeps cookies and follows redirects.
func (s *signing) browser() *http.Client {
	s.Helper()
	jar, err := cookiejar.New(nil)
	testkit.Must(s, err)
	h := &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
	return h
}

// user sets the user who signs in next at the provider.
func (s *signing) user(subject, name string, groups ...string) {
	s.provider.QueueUser(&mockoidc.MockUser{Subject: subject, PreferredUsername: name, Groups: groups})
}

func (s *signing) get(h *http.Client, at string) (*http.Response, string) {
	s.Helper()
	r, err := h.Get(at)
	testkit.Must(s, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	testkit.Must(s, err)
	return r, string(b)
}

// whoami returns the name and role of the browser's user, or the code of the refusal.
func (s *signing) whoami(h *http.Client) string {
	s.Helper()
	r, err := h.Post(s.page+"/api/loadstar.v1.OperatorService/Whoami", "application/json", strings.NewReader("{}"))
	testkit.Must(s, err)
	defer r.Body.Close()
	var x struct{ Name, Role, Code string }
	testkit.Must(s, json.NewDecoder(r.Body).Decode(&x))
	return strings.TrimSpace(x.Name + " " + x.Role + x.Code)
}

// signIn signs a browser in and returns the last page.
func (s *signing) signIn(h *http.Client) (int, string) {
	s.Helper()
	r, body := s.get(h, s.page+oidcStart)
	return r.StatusCode, body
}

func TestOIDC(t *testing.T) {
	s := newSigning(t, nil)
	h := s.browser()
	if got := s.whoami(h); got != "unauthenticated" {
		t.Fatal(got)
	}
	if _, body := s.get(h, s.page+"/api/info"); !strings.Contains(body, `"methods":["login","oidc"]`) {
		t.Error(body)
	}
	s.user("1", "Anna", "other", "staff")
	if code, body := s.signIn(h); code != http.StatusOK || !strings.Contains(body, "<html") {
		t.Error(code, body)
	}
	if got := s.whoami(h); got != "oidc:anna viewer" {
		t.Error(got)
	}
	// The provider decides the role at each sign-in, even for open sessions. Of several roles,
	// the highest applies.
	again := s.browser()
	s.user("1", "Anna", "staff", "it", "grid")
	s.signIn(again)
	for _, b := range []*http.Client{h, again} {
		if got := s.whoami(b); got != "oidc:anna admin" {
			t.Error(got)
		}
	}
	// Another person with the same name gets another name, but not the role or the sessions of
	// the first person.
	twin := s.browser()
	s.user("2", "anna", "staff")
	s.signIn(twin)
	if got := s.whoami(twin); !strings.HasPrefix(got, "oidc:anna-") || !strings.HasSuffix(got, " viewer") {
		t.Error(got)
	}
	if got := s.whoami(h); got != "oidc:anna admin" {
		t.Error(got)
	}
	// The name cannot be that of a local user.
	for _, name := range []string{"local", "LOCAL", "../local", "local\n", "löcal", "user local via certificate", ""} {
		b := s.browser()
		s.user("sub "+name, name, "staff")
		s.signIn(b)
		got := s.whoami(b)
		if !strings.HasPrefix(got, "oidc:") || strings.ContainsAny(strings.TrimSuffix(got, " viewer"), " /\nö") {
			t.Errorf("%q: %q", name, got)
		}
	}
	u, err := s.ledger.Users.User(t.Context(), "local")
	if err != nil || u.Role != "admin" || u.Source != directory.SourceServer {
		t.Error(u, err)
	}
	// Without one of the values there is no access, and the page gives the reason.
	b := s.browser()
	s.user("3", "<b>eve</b>", "guests")
	code, body := s.signIn(b)
	if code != http.StatusForbidden || !strings.Contains(body, "none of the values in the claim groups") || strings.Contains(body, "<b>eve") {
		t.Error(code, body)
	}
	if got := s.whoami(b); got != "unauthenticated" {
		t.Error(got)
	}
	// A removed user no longer has a session.
	testkit.Must(t, s.ledger.Users.RemoveUser(t.Context(), "oidc:anna", "test", time.Now()))
	if got := s.whoami(h); got != "unauthenticated" {
		t.Error(got)
	}
}

// TestOIDCCallback checks that the callback accepts only the response to a sign-in that the
// same browser began, and only once.
func TestOIDCCallback(t *testing.T) {
	s := newSigning(t, nil)
	// begin returns a browser that has been to the provider, and the address to which the
	// provider sent it.
	begin := func() (*http.Client, string) {
		t.Helper()
		h := s.browser()
		var last string
		h.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
			if strings.HasPrefix(r.URL.String(), s.page+oidcCallback) {
				last = r.URL.String()
				return http.ErrUseLastResponse
			}
			return nil
		}
		s.user("1", "anna", "it")
		s.signIn(h)
		if last == "" {
			t.Fatal("the provider did not answer")
		}
		h.CheckRedirect = nil
		return h, last
	}
	with := func(at, name, value string) string {
		u, err := url.Parse(at)
		testkit.Must(t, err)
		q := u.Query()
		q.Set(name, value)
		u.RawQuery = q.Encode()
		return u.String()
	}
	refused := func(what string, h *http.Client, at string, want int) {
		t.Helper()
		if r, body := s.get(h, at); r.StatusCode != want || !strings.Contains(body, "You are not signed in") {
			t.Errorf("%s: %s %s", what, r.Status, body)
		}
		if got := s.whoami(h); got != "unauthenticated" {
			t.Errorf("%s: %s", what, got)
		}
	}
	h, at := begin()
	refused("another browser", s.browser(), at, http.StatusBadRequest)
	refused("another state", h, with(at, "state", "x"), http.StatusBadRequest)
	refused("the attempt again", h, at, http.StatusBadRequest)
	_, at = begin()
	other, _ := begin()
	refused("somebody else's code", other, at, http.StatusBadRequest)
	h, at = begin()
	refused("another code", h, with(at, "code", "x"), http.StatusBadGateway)
	h, at = begin()
	refused("no code", h, with(at, "code", ""), http.StatusBadRequest)
	h, at = begin()
	refused("an error", h, with(at, "error", "access_denied"), http.StatusForbidden)
	// The verifier proves to the provider that the code was requested by this server.
	h, at = begin()
	u, err := url.Parse(s.page + oidcCallback)
	testkit.Must(t, err)
	mine := h.Jar.Cookies(u)[0].Value
	thief := &signer{OIDC: &OIDC{Issuer: s.provider.Issuer(), ClientID: s.provider.ClientID, ClientSecret: s.provider.ClientSecret}, web: &Web{Config: Config{URL: s.page + "/"}}}
	stolen, err := url.Parse(at)
	testkit.Must(t, err)
	if _, err := thief.exchange(stolen.Query().Get("code"), "guess"); err == nil {
		t.Error("the provider did not check the verifier")
	}
	if len(mine) < 43 {
		t.Error(mine)
	}
	// A session's cookie is strict and hidden from scripts, and an attempt's cookie is deleted.
	h, at = begin()
	h.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	r, _ := s.get(h, at)
	set := fmt.Sprint(r.Header.Values("Set-Cookie"))
	if !strings.Contains(set, sessionCookie+"_"+u.Port()+"=") || !strings.Contains(set, "HttpOnly; SameSite=Strict") || !strings.Contains(set, oidcCookie+"_"+u.Port()+"=; Path=/; Max-Age=0") || r.Header.Get("Location") != s.page+"/" {
		t.Error(set, r.Header)
	}
	if got := s.whoami(h); got != "oidc:anna admin" {
		t.Error(got)
	}
}

// TestOIDCUnreachable checks that an unreachable provider does not prevent the dashboard from
// starting.
func TestOIDCUnreachable(t *testing.T) {
	s := newSigning(t, func(c *OIDC) { c.Issuer = "http://127.0.0.1:1/oidc" })
	if code, body := s.signIn(s.browser()); code != http.StatusBadGateway || !strings.Contains(body, "unreachable") {
		t.Error(code, body)
	}
}

// TestOIDCUnverifiedEmail checks that an email address grants a role only if the provider has
// verified it, because a user may register with another person's address.
func TestOIDCUnverifiedEmail(t *testing.T) {
	s := newSigning(t, func(o *OIDC) {
		o.Claim, o.Roles = "email", map[string]access.Role{"boss@utility.example": access.Admin}
	})
	for _, verified := range []bool{false, true} {
		h := s.browser()
		s.provider.QueueUser(&mockoidc.MockUser{Subject: fmt.Sprint(verified), Email: "boss@utility.example", EmailVerified: verified, PreferredUsername: "boss"})
		code, body := s.signIn(h)
		if want := map[bool]int{false: http.StatusForbidden, true: http.StatusOK}[verified]; code != want || !verified && !strings.Contains(body, "email_verified") {
			t.Errorf("verified %t: %d %s", verified, code, body)
		}
		if got := s.whoami(h); verified != strings.HasSuffix(got, " admin") {
			t.Errorf("verified %t: %s", verified, got)
		}
	}
}

func TestOIDCClaims(t *testing.T) {
	all := map[string]json.RawMessage{}
	testkit.Must(t, json.Unmarshal([]byte(`{"groups":["a","b"],"role":"c","realm":{"roles":["d"],"e.f":"g"},"n":7,"mixed":["a",1],"https://x.example/groups":["h"]}`), &all))
	for claim, want := range map[string]string{
		"groups": "[a b]", "role": "[c]", "realm.roles": "[d]", "realm.e.f": "[g]", "https://x.example/groups": "[h]",
		"n": "[]", "mixed": "[]", "none": "[]", "role.x": "[]", "realm": "[]", "realm.": "[]", "": "[]",
	} {
		if got := fmt.Sprint(values(all, claim)); got != want {
			t.Errorf("%s: %s, want %s", claim, got, want)
		}
	}
}

func TestOIDCCheck(t *testing.T) {
	good := OIDC{Issuer: "https://id.example", ClientID: "x", Claim: "groups", Roles: map[string]access.Role{"a": access.Viewer}}
	testkit.Must(t, good.Check())
	for want, spoil := range map[string]func(*OIDC){
		"web.oidc.issuer":    func(o *OIDC) { o.Issuer = "http://id.example" },
		"web.oidc.client_id": func(o *OIDC) { o.ClientID = "" },
		"web.oidc.claim":     func(o *OIDC) { o.Claim = "" },
		"web.oidc.roles":     func(o *OIDC) { o.Roles = nil },
	} {
		bad := good
		spoil(&bad)
		if err := bad.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
