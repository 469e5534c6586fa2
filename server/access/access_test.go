package access

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newGate(t testing.TB) *Gate {
	t.Helper()
	l, err := ledger.Open(context.Background(), "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	testkit.Must(t, err)
	t.Cleanup(func() { testkit.Must(t, l.Close()) })
	return New(l.Users, slog.New(slog.DiscardHandler))
}

func TestRoles(t *testing.T) {
	for i, a := range roles {
		for j, b := range roles {
			if a.Includes(b) != (i >= j) {
				t.Errorf("%s includes %s: %v", a, b, a.Includes(b))
			}
		}
		if got, err := ParseRole(string(a)); got != a || err != nil {
			t.Error(got, err)
		}
	}
	for _, r := range []Role{"", "root", "Admin", "admin "} {
		if _, err := ParseRole(string(r)); err == nil || r.Includes(Viewer) || r.Includes(r) || Admin.Includes(r) {
			t.Errorf("%q is a role", r)
		}
	}
}

// TestEveryCallHasARole checks that the list of minimum roles contains exactly the calls of the
// service.
func TestEveryCallHasARole(t *testing.T) {
	methods := v1.File_loadstar_v1_operator_proto.Services().ByName("OperatorService").Methods()
	if methods.Len() != len(least) {
		t.Errorf("%d calls, %d roles", methods.Len(), len(least))
	}
	for i := range methods.Len() {
		procedure := "/" + v1.OperatorServiceName + "/" + string(methods.Get(i).Name())
		role, ok := Least(procedure)
		if !ok || !role.Includes(role) {
			t.Errorf("%s: %q", procedure, role)
		}
		for _, has := range roles {
			err := Allow(With(t.Context(), Caller{Name: "anna", Role: has, Via: ViaWeb}), procedure)
			if (err == nil) != has.Includes(role) {
				t.Errorf("%s as %s: %v", procedure, has, err)
			}
		}
		if err := Allow(t.Context(), procedure); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s of nobody: %v", procedure, err)
		}
		if err := Allow(With(t.Context(), Caller{}), procedure); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s without a role: %v", procedure, err)
		}
	}
	for _, p := range []string{"", "/", "GetRun", "/loadstar.v1.OperatorService/", "/loadstar.v1.OperatorService/GetRun/", "/x/GetRun", "/loadstar.v1.AgentService/Join"} {
		if err := Allow(With(t.Context(), Caller{Name: "anna", Role: Admin}), p); connect.CodeOf(err) != connect.CodeUnimplemented {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func TestNames(t *testing.T) {
	for name, want := range map[string]bool{
		"anna": true, "a": true, "7": true, "a.b-c_d": true, strings.Repeat("a", 64): true,
		"": false, "Anna": false, "anna ": false, "-a": false, ".a": false, "a/b": false, "oidc:anna": false, "a@b": false, "ä": false, strings.Repeat("a", 65): false, "a\n": false,
	} {
		if err := CheckName(name); (err == nil) != want {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSessions(t *testing.T) {
	g, ctx, now := newGate(t), t.Context(), time.Now()
	code, expires, err := g.CreateLogin(ctx, "local", time.Minute, "test", now)
	testkit.Must(t, err)
	if !expires.Equal(now.Add(time.Minute)) || len(code) != 43 {
		t.Error(expires, code)
	}
	for _, wrong := range []string{"", "x", code[1:], code + "A", strings.ToUpper(code), newSecret().String(), code[:42] + "=", code[:21] + "\n" + code[21:]} {
		if _, _, err := g.Login(ctx, wrong, now); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	cookie, until, err := g.Login(ctx, code, now)
	testkit.Must(t, err)
	if cookie == code || !until.Equal(now.Add(12*time.Hour)) {
		t.Error(cookie, until)
	}
	if _, _, err := g.Login(ctx, code, now); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a code worked twice: %v", err)
	}
	// A code is not a cookie.
	if _, err := g.Session(ctx, code, now); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
	c, err := g.Session(ctx, cookie, now)
	testkit.Must(t, err)
	if c.Name != "local" || c.Role != Admin || c.String() != "user local via web" || c.Session == "" {
		t.Errorf("%+v", c)
	}
	if _, err := c.Again(ctx); err != nil {
		t.Error(err)
	}
	if _, err := g.Session(ctx, cookie, now.Add(12*time.Hour)); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a session did not end: %v", err)
	}
	testkit.Must(t, g.Logout(ctx, cookie))
	testkit.Must(t, g.Logout(ctx, cookie))
	testkit.Must(t, g.Logout(ctx, "nonsense"))
	for _, err := range []error{second(g.Session(ctx, cookie, now)), second(c.Again(ctx)), second(Caller{Name: "forged", Role: Admin, Via: ViaWeb}.Again(ctx))} {
		if connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Error(err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestUnavailable checks that if the ledger does not respond, a caller is neither admitted nor
// told that access is denied.
func TestUnavailable(t *testing.T) {
	g := newGate(t)
	cookie := newSecret().String()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.Session(ctx, cookie, time.Now()); err == nil || connect.CodeOf(err) == connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// TestCertificatesPass checks that requests without an operator's certificate are passed on
// without a caller.
func TestCertificatesPass(t *testing.T) {
	g := newGate(t)
	h := g.Certificates(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := From(r.Context()); ok {
			t.Errorf("%v came without a certificate", c)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusTeapot {
		t.Error(w.Code)
	}
}

func TestCertificateRefusals(t *testing.T) {
	g, ctx, now := newGate(t), t.Context(), time.Now()
	_, err := g.users.PutUser(ctx, "anna", "viewer", "test", now)
	testkit.Must(t, err)
	testkit.Must(t, g.users.AddCertificate(ctx, directory.Certificate{Serial: "aaaa", User: "anna", Issued: now, Expires: now.Add(time.Hour)}, "test"))
	testkit.Must(t, g.users.RecordLocal(ctx, directory.Certificate{Serial: "bbbb", User: "local", Issued: now, Expires: now.Add(time.Hour)}, now))
	c, err := g.certificate(ctx, "aaaa", "anna", now)
	testkit.Must(t, err)
	if c.String() != "user anna via certificate" || c.Role != Viewer || c.Session != "" {
		t.Errorf("%+v", c)
	}
	if _, err := c.Again(ctx); err != nil {
		t.Error(err)
	}
	refused := func(what, serial, name string, at time.Time, want string) {
		t.Helper()
		_, err := g.certificate(ctx, serial, name, at)
		if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("expired", "aaaa", "anna", now.Add(time.Hour), "has expired")
	refused("somebody else's", "aaaa", "local", now, "belongs to user anna")
	refused("unknown", "cccc", "anna", now, "ask an admin for a new one")
	refused("unknown of local", "cccc", "local", now, "restart that gateway")
	_, err = g.users.RevokeCertificate(ctx, "aaaa", "test", now)
	testkit.Must(t, err)
	_, err = g.users.RevokeCertificate(ctx, "bbbb", "test", now)
	testkit.Must(t, err)
	refused("revoked", "aaaa", "anna", now, "was revoked; ask an admin")
	refused("revoked of local", "bbbb", "local", now, "was revoked; restart the server")
	if _, err := c.Again(ctx); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Error(err)
	}
}

// TestConcurrently signs many browsers in and out at the same time, with calls in between.
func TestConcurrently(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than a second")
	}
	g, ctx := newGate(t), t.Context()
	var wg sync.WaitGroup
	for i := range 6 {
		name := fmt.Sprint("user", i%3)
		_, err := g.users.PutUser(ctx, name, "viewer", "test", time.Now())
		testkit.Must(t, err)
		wg.Go(func() {
			for range 8 {
				code, _, err := g.CreateLogin(ctx, name, time.Minute, "test", time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				cookie, _, err := g.Login(ctx, code, time.Now())
				if err != nil {
					t.Error(err)
					return
				}
				if c, err := g.Session(ctx, cookie, time.Now()); err != nil || c.Name != name {
					t.Error(c, err)
				}
				if err := g.Logout(ctx, cookie); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if all, err := g.users.Sessions(ctx, "", 100, time.Now()); err != nil || len(all) != 0 {
		t.Error(all, err)
	}
}

func TestExternalNames(t *testing.T) {
	for name, want := range map[string]string{
		"Anna": "oidc:anna", "anna@grid.example": "oidc:anna@grid.example", "a b": "oidc:a-b", "": "oidc:nameless", "ä\x00/": "oidc:---",
		strings.Repeat("x", 100): "oidc:" + strings.Repeat("x", 48), "oidc:x": "oidc:oidc-x",
	} {
		if got := externalName(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	g := newGate(t)
	if _, _, err := g.External(t.Context(), "s", "n", "root", time.Now()); err == nil {
		t.Error("an unknown role")
	}
}

// FuzzSecret checks the decoder of login codes and cookies, which strangers can reach. Every
// secret that it accepts has exactly one encoding.
func FuzzSecret(f *testing.F) {
	f.Add("")
	f.Add(newSecret().String())
	f.Add(strings.Repeat("A", 43))
	f.Add(strings.Repeat("_", 42) + "=")
	f.Fuzz(func(t *testing.T, text string) {
		s, ok := parseSecret(text)
		if ok && s.String() != text {
			t.Errorf("%q and %q are the same", text, s)
		}
		if !ok && s != (secret{}) {
			t.Errorf("%q: refused with %q", text, s)
		}
	})
}

// FuzzExternalName checks that the name of a provider's user can never be mistaken for another
// kind of user, and never contains a line break.
func FuzzExternalName(f *testing.F) {
	f.Add("local")
	f.Add("ﬀ\u202e\r\n")
	f.Fuzz(func(t *testing.T, name string) {
		got := externalName(name)
		if rest, ok := strings.CutPrefix(got, "oidc:"); !ok || rest == "" || len(got) > 64 || strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789._-@") != "" || CheckName(got) == nil {
			t.Errorf("%q: %q", name, got)
		}
	})
}
