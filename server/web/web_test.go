package web

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"loadstar/internal/connlimit"
	"loadstar/internal/testkit"
	"loadstar/server/access"
)

// TestHeaders checks that every response has the headers that prevent a browser from loading or
// displaying foreign content.
func TestHeaders(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for _, path := range []string{"", "api/info", "api/none", "api/events"} {
		a := f.ask(http.MethodGet, path, "", "")
		for name, want := range map[string]string{
			"Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
			"Referrer-Policy":         "no-referrer", "X-Content-Type-Options": "nosniff", "Cross-Origin-Opener-Policy": "same-origin",
		} {
			if got := a.Header.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("/%s: %s is %q", path, name, got)
			}
		}
		if strings.HasPrefix(path, "api/") && a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("/%s may be stored: %q", path, a.Header.Get("Cache-Control"))
		}
	}
	a := f.ask(http.MethodGet, "", "", "")
	if page, err := io.ReadAll(a.Body); err != nil || a.StatusCode != http.StatusOK || !strings.Contains(strings.ToLower(string(page)), "<html") && !strings.Contains(strings.ToLower(string(page)), "<!doctype") {
		t.Errorf("%s, %v: %.200s", a.Status, err, page)
	}
}

// TestConfig checks that an address that other machines can reach needs encryption.
func TestConfig(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"without encryption": {Listen: ":7445"},
		"0.0.0.0:7445":       {Listen: "0.0.0.0:7445"},
		"give web.cert_file": {Listen: "192.0.2.1:0"},
		"both web.cert_file": {Listen: "127.0.0.1:0", CertFile: "c"},
		"HOST:PORT":          {Listen: "7445"},
		"of a page":          {Listen: "127.0.0.1:0", URL: "example.org"},
	} {
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
	}
	for _, c := range []Config{{Listen: "127.0.0.1:0"}, {Listen: "localhost:0"}, {Listen: ":0", BehindProxy: true}, {Listen: ":0", CertFile: "c", KeyFile: "k"}} {
		if err := c.Check(); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestHost checks that a foreign name for the machine's own address is refused, because an
// attacker's page could use it, but not behind a proxy, which has its own names.
func TestHost(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	for host, want := range map[string]int{
		"127.0.0.1": 200, "localhost:9999": 200, "LocalHost": 200, "[::1]:80": 200, "127.0.0.2": 200,
		"evil.example": 421, "evil.example:7445": 421, "127.0.0.1.evil.example": 421, "localhost.evil.example": 421, "192.0.2.1": 421, "0.0.0.0": 421,
	} {
		if a := f.ask(http.MethodGet, "api/info", "", "", "Host", host); a.StatusCode != want {
			t.Errorf("%s: %s, want %d", host, a.Status, want)
		}
	}
	proxied := newFixture(t, func(c *Config) { c.BehindProxy = true })
	if a := proxied.ask(http.MethodGet, "api/info", "", "", "Host", "loadstar.example.org"); a.StatusCode != http.StatusOK {
		t.Errorf("behind a proxy: %s", a.Status)
	}
}

// TestSession checks that a code opens one session, and that a logout ends it.
func TestSession(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(c *Config) { c.Notice, c.Links = "GENERATED", []Link{{"Docs", "https://example.org"}} })
	info := func(cookie string) (x information) {
		t.Helper()
		testkit.Must(t, json.NewDecoder(f.ask(http.MethodGet, "api/info", cookie, "").Body).Decode(&x))
		return x
	}
	if x := info(""); x.SignedIn || len(x.Methods) != 1 || x.Methods[0] != "login" || x.Notice != "GENERATED" || x.Links[0].Title != "Docs" || x.ReadOnly {
		t.Errorf("%+v", x)
	}
	right := `{"code":"` + f.code("anna", access.Viewer) + `"}`
	if a := f.ask(http.MethodPost, "api/login", "", `{"code":"wrong"}`); a.StatusCode != http.StatusUnauthorized || len(a.Cookies()) != 0 {
		t.Errorf("a wrong code: %s %v", a.Status, a.Cookies())
	} else if code, message := f.problem(a); code != "unauthenticated" || !strings.Contains(message, "login") {
		t.Errorf("%s %s", code, message)
	}
	a := f.ask(http.MethodPost, "api/login", "", right)
	if a.StatusCode != http.StatusOK || len(a.Cookies()) != 1 {
		t.Fatalf("%s %v", a.Status, a.Cookies())
	}
	c := a.Cookies()[0]
	if c.Name != "loadstar_session_"+f.port() || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || time.Until(c.Expires) < 11*time.Hour {
		t.Errorf("%v", c)
	}
	if a := f.ask(http.MethodPost, "api/login", "", right); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("the code again: %s", a.Status)
	}
	if !info(c.Value).SignedIn || info("other").SignedIn {
		t.Error("the cookie does not sign in, or another does")
	}
	if status, body := f.call(c.Value, "ListRuns", "{}"); status != http.StatusOK || body != "{}" {
		t.Errorf("%d %s", status, body)
	}
	out := f.ask(http.MethodPost, "api/logout", c.Value, "")
	if gone := out.Cookies(); out.StatusCode != http.StatusOK || len(gone) != 1 || gone[0].Value != "" || gone[0].Expires.After(time.Now()) {
		t.Errorf("%s %v", out.Status, gone)
	}
	if status, _ := f.call(c.Value, "ListRuns", "{}"); status != http.StatusUnauthorized {
		t.Errorf("after the logout: %d", status)
	}
}

// TestOtherSites checks that another site cannot make a browser change anything, sign in or
// sign out.
func TestOtherSites(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	cookie := f.open("anna", access.Admin)
	call := "api/loadstar.v1.OperatorService/StopRun"
	for _, path := range []string{call, "api/login", "api/logout"} {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}, {"Origin", "http://127.0.0.1:1"},
		} {
			if a := f.ask(http.MethodPost, path, cookie, `{}`, header...); a.StatusCode != http.StatusForbidden {
				t.Errorf("%s with %v: %s", path, header, a.Status)
			}
		}
	}
	if a := f.ask(http.MethodPost, call, cookie, `{"run":"none"}`, "Sec-Fetch-Site", "same-origin"); a.StatusCode != http.StatusNotFound {
		t.Errorf("the page itself: %s", a.Status)
	}
	if a := f.ask(http.MethodPost, call, cookie, `{}`, "Content-Type", "text/plain"); a.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a form's content type: %s", a.Status)
	}
	if a := f.ask(http.MethodGet, call+"?message=%7B%7D&encoding=json&connect=v1", cookie, ""); a.StatusCode != http.StatusNotFound && a.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("a call by GET: %s", a.Status)
	}
}

// TestBounds checks that the requests of strangers are limited.
func TestBounds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	cookie := f.open("anna", access.Admin)
	if status, body := f.call(cookie, "StartRun", `{"plan":"`+strings.Repeat("x", 3<<20)+`"}`); status < 400 {
		t.Errorf("a long plan: %d %s", status, body)
	}
	if a := f.ask(http.MethodPost, "api/login", "", `{"code":"`+strings.Repeat("x", 8<<10)+`"}`); a.StatusCode != http.StatusBadRequest {
		t.Errorf("a long code: %s", a.Status)
	}
	if status, _ := f.call("", "ListRuns", "{}"); status != http.StatusUnauthorized {
		t.Errorf("without a session: %d", status)
	}
}

// TestSignInsByAddress checks that a stranger who tries many codes cannot prevent others from
// signing in. Behind a proxy, the limit applies to the address that the proxy reports, not to
// the addresses that the caller has listed before it.
func TestSignInsByAddress(t *testing.T) {
	t.Parallel()
	for _, proxied := range []bool{false, true} {
		f := newFixture(t, func(c *Config) { c.BehindProxy = proxied })
		f.web.logins = connlimit.NewRates(1e-9, 3, 10)
		header := func(string) []string { return nil }
		if proxied {
			header = func(address string) []string {
				return []string{"X-Forwarded-For", fmt.Sprintf("192.0.2.%d, %s", rand.IntN(200), address)}
			}
		}
		for i := range 5 {
			a := f.ask(http.MethodPost, "api/login", "", `{"code":"x"}`, header("198.51.100.1")...)
			if refused := a.StatusCode == http.StatusTooManyRequests && a.Header.Get("Retry-After") == "1"; refused != (i >= 3) {
				t.Errorf("proxied %t, attempt %d: %s", proxied, i, a.Status)
			}
		}
		if !proxied {
			f.http.Transport.(*http.Transport).DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext
			f.http.CloseIdleConnections()
		}
		right := `{"code":"` + f.code("anna", access.Viewer) + `"}`
		if a := f.ask(http.MethodPost, "api/login", "", right, header("198.51.100.2")...); a.StatusCode != http.StatusOK {
			t.Errorf("proxied %t: another address: %s", proxied, a.Status)
		}
		if most := f.web.Limited.Most(); len(most) != 1 || most[0].Reason != access.LimitedSignIns || most[0].Times != 2 {
			t.Errorf("%+v", most)
		}
	}
}

// TestConnections checks that strangers who keep connections open block neither newcomers nor
// signed-in users.
func TestConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("opens a thousand connections")
	}
	f, api := watched(t)
	cookie := f.open("anna", access.Viewer)
	stream := f.look(cookie, "fleet", "")
	stream.want("fleet", `"1"`)
	for range maxConnections + 10 {
		c, err := net.Dial("tcp", f.web.listener.Addr().String())
		testkit.Must(t, err)
		defer c.Close()
		_, err = c.Write([]byte("GET /api/info HTTP/1.1\r\nHost: localhost\r\n\r\n"))
		testkit.Must(t, err)
	}
	if a := f.ask(http.MethodGet, "api/info", "", ""); a.StatusCode != http.StatusOK {
		t.Errorf("a newcomer: %s", a.Status)
	}
	if status, _ := f.call(cookie, "ListRuns", "{}"); status != http.StatusOK {
		t.Errorf("a user: %d", status)
	}
	api.set(2)
	stream.want("fleet", `"2"`) // the stream is still open
}

// TestStrictTransport checks that browsers that have reached the page over HTTPS once never
// fall back to HTTP. The header is not sent for the machine's own names, which other servers
// share.
func TestStrictTransport(t *testing.T) {
	t.Parallel()
	proxied := newFixture(t, func(c *Config) { c.BehindProxy = true })
	if got := proxied.ask(http.MethodGet, "", "", "", "Host", "loadstar.example.org").Header.Get("Strict-Transport-Security"); got != "max-age=31536000" {
		t.Errorf("%q", got)
	}
	for _, f := range []*fixture{proxied, newFixture(t, nil)} {
		if got := f.ask(http.MethodGet, "", "", "", "Host", "localhost").Header.Get("Strict-Transport-Security"); got != "" {
			t.Errorf("on this machine: %q", got)
		}
	}
}
