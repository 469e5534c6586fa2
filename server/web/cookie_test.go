package web

import (
	"fmt"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/server/access"
)

// port returns the port of the listener.
func (f *fixture) port() string {
	f.Helper()
	_, port, err := net.SplitHostPort(f.web.listener.Addr().String())
	testkit.Must(f, err)
	return port
}

// TestTwoServers checks that two servers on one machine do not sign each other's users out,
// although a browser sends each server's cookies to both.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	jar, err := cookiejar.New(nil)
	testkit.Must(t, err)
	one, two := newFixture(t, nil), newFixture(t, nil)
	for _, f := range []*fixture{one, two} {
		f.http.Jar = jar
		if a := f.ask(http.MethodPost, "api/login", "", `{"code":"`+f.code("anna", access.Viewer)+`"}`); a.StatusCode != http.StatusOK {
			t.Fatal(a.Status)
		}
	}
	u, err := url.Parse(one.url)
	testkit.Must(t, err)
	if all := jar.Cookies(u); len(all) != 2 {
		t.Errorf("the browser has the cookies %v", all)
	}
	for _, f := range []*fixture{one, two} {
		if status, body := f.call("", "Whoami", "{}"); status != http.StatusOK || !strings.Contains(body, "anna") {
			t.Errorf("%d %s", status, body)
		}
	}
	one.ask(http.MethodPost, "api/logout", "", "")
	if status, _ := one.call("", "Whoami", "{}"); status != http.StatusUnauthorized {
		t.Errorf("after the logout: %d", status)
	}
	if status, _ := two.call("", "Whoami", "{}"); status != http.StatusOK {
		t.Errorf("the logout from one server ended the session of the other: %d", status)
	}
}

// TestCookieNames checks that the name of a cookie depends on how browsers reach the page.
func TestCookieNames(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]Config{
		"loadstar_session_PORT":        {Listen: "127.0.0.1:0"},
		"__Host-loadstar_session_PORT": {Listen: "localhost:0", CertFile: "c", KeyFile: "k"},
		"__Host-loadstar_session":      {Listen: "127.0.0.1:0", BehindProxy: true},
		"__Host-loadstar_session ":     {Listen: ":0", CertFile: "c", KeyFile: "k"},
	} {
		w, err := Open(c)
		testkit.Must(t, err)
		_, port, err := net.SplitHostPort(w.listener.Addr().String())
		testkit.Must(t, err)
		if got := w.cookieName(sessionCookie); got != strings.ReplaceAll(strings.TrimSpace(want), "PORT", port) {
			t.Errorf("%+v: %s, want %s", c, got, want)
		}
		testkit.Must(t, w.Close())
	}
	// Browsers accept a __Host- cookie only if it is secure, has the path / and names no domain.
	f := newFixture(t, func(c *Config) { c.BehindProxy = true })
	a := f.ask(http.MethodPost, "api/login", "", `{"code":"`+f.code("anna", access.Viewer)+`"}`)
	if all := a.Cookies(); len(all) != 1 || !all[0].Secure || all[0].Path != "/" || all[0].Domain != "" || all[0].Name != "__Host-loadstar_session" {
		t.Errorf("behind a proxy: %v", all)
	}
}

// TestPortInUse checks that the error for a port that is in use names the flag, and the process
// that uses the port.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	_, err := Open(Config{Listen: "127.0.0.1:" + f.port()})
	want := []string{"--web 127.0.0.1:" + f.port(), "in use"}
	if runtime.GOOS == "linux" {
		want = append(want, fmt.Sprintf("(process %d)", os.Getpid()))
	}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v does not contain %q", err, w)
		}
	}
}

// TestLostRole checks that a user's current role applies to a call, not the role at sign-in, so
// an open page cannot change anything once its user has lost the role.
func TestLostRole(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	cookie := f.open("anna", access.Operator)
	stop := func() (int, string) { return f.call(cookie, "StopRun", `{"run":"none"}`) }
	if status, body := stop(); status != http.StatusNotFound {
		t.Fatalf("an operator: %d %s", status, body)
	}
	_, err := f.ledger.Users.PutUser(t.Context(), "anna", string(access.Viewer), "test", time.Now())
	testkit.Must(t, err)
	if status, body := stop(); status != http.StatusForbidden || !strings.Contains(body, "needs the role operator") {
		t.Errorf("an operator who became a viewer: %d %s", status, body)
	}
	if status, body := f.call(cookie, "ListRuns", "{}"); status != http.StatusOK {
		t.Errorf("a viewer cannot read: %d %s", status, body)
	}
	testkit.Must(t, f.ledger.Users.RemoveUser(t.Context(), "anna", "test", time.Now()))
	for _, method := range []string{"StopRun", "ListRuns"} {
		if status, body := f.call(cookie, method, `{}`); status != http.StatusUnauthorized {
			t.Errorf("%s of a removed user: %d %s", method, status, body)
		}
	}
}
