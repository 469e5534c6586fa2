package server

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/web"
)

// person is a user with a way to call the server.
type person struct {
	st   *station
	http *http.Client
	base string // the address before the procedure
}

// call sends a request as JSON. It returns the error's code and message, or "ok" and the body.
func (p *person) call(procedure, body string) (code, text string) {
	p.st.Helper()
	r, err := p.http.Post(p.base+procedure, "application/json", strings.NewReader(body))
	testkit.Must(p.st, err)
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	testkit.Must(p.st, err)
	if r.StatusCode == http.StatusOK {
		return "ok", string(b)
	}
	var said struct{ Code, Message string }
	if json.Unmarshal(b, &said) != nil {
		return r.Status, string(b)
	}
	return said.Code, said.Message
}

// folk starts a server with a dashboard.
func folk(t *testing.T) *station {
	return newStation(t, func(c *Config) { c.Web = &web.Config{Listen: "127.0.0.1:0"} })
}

func (st *station) addUser(name, role string) {
	st.Helper()
	_, err := st.operator.PutUser(st.Context(), &v1.PutUserRequest{Name: name, Role: role})
	testkit.Must(st, err)
}

// withCertificate returns a user who calls with a new certificate, and its serial number.
func (st *station) withCertificate(name string) (*person, string) {
	st.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(st, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	testkit.Must(st, err)
	r, err := st.operator.IssueCertificate(st.Context(), &v1.IssueCertificateRequest{User: name, Csr: csr})
	testkit.Must(st, err)
	leaf, err := x509.ParseCertificate(r.Certificates[0])
	testkit.Must(st, err)
	local, err := mtls.ReadFolder(filepath.Join(st.Dir, "operator"))
	testkit.Must(st, err)
	c := mtls.Credentials{Key: key, Leaf: leaf, Root: local.Root}
	testkit.Must(st, c.Check())
	return &person{st, st.http(c.TLS()), st.url}, fmt.Sprintf("%032x", leaf.SerialNumber)
}

// withSession returns a user who calls from a browser.
func (st *station) withSession(name string) *person {
	st.Helper()
	r, err := st.operator.CreateLogin(st.Context(), &v1.CreateLoginRequest{User: name})
	testkit.Must(st, err)
	jar, err := cookiejar.New(nil)
	testkit.Must(st, err)
	p := &person{st, &http.Client{Jar: jar}, strings.TrimSuffix(r.Page, "/") + "/api"}
	st.Cleanup(p.http.CloseIdleConnections)
	if code, text := p.call("/login", fmt.Sprintf("{%q:%q}", "code", r.Code)); code != "ok" {
		st.Fatal(code, text)
	}
	if code, _ := p.call("/login", fmt.Sprintf("{%q:%q}", "code", r.Code)); code != "unauthenticated" {
		st.Errorf("a login link worked twice: %s", code)
	}
	return p
}

// mayCall lists, independently of the code, what each role may call in addition to the previous
// roles.
var mayCall = map[string]string{
	"viewer":   "ListVersions Whoami GetFleet ListAgents ListClients GetClient ListTurns ListFindings ListRuns GetRun WatchRun ListAudit ListReleases ListReports CreateLogin ListSessions EndSession RenewCertificate",
	"operator": "CreateToken ListTokens ListIssuers RevokeToken Revoke FreeClients RollBackRun ListPlans ExplainPlan StartRun StopRun CreateRelease WithdrawRelease",
	"admin":    "ListUsers PutUser RemoveUser IssueCertificate ListCertificates RevokeCertificate",
}

// TestEveryCallOfEveryRole checks that the operators' API refuses every call exactly to the
// roles that may not make it, whether the user has a certificate or a session.
func TestEveryCallOfEveryRole(t *testing.T) {
	t.Parallel()
	st := folk(t)
	methods := v1.File_loadstar_v1_operator_proto.Services().ByName("OperatorService").Methods()
	allowed := ""
	for _, role := range []string{"viewer", "operator", "admin"} {
		allowed += " " + mayCall[role] + " "
		st.addUser("the-"+role, role)
		certified, _ := st.withCertificate("the-" + role)
		for via, p := range map[string]*person{"certificate": certified, "web": st.withSession("the-" + role)} {
			for i := range methods.Len() {
				m := methods.Get(i)
				name := string(m.Name())
				if m.IsStreamingServer() {
					continue // below
				}
				may := strings.Contains(allowed, " "+name+" ")
				code, text := p.call("/loadstar.v1.OperatorService/"+name, "{}")
				if name == "CreateLogin" && via == "web" {
					if !strings.HasPrefix(text, "a session cannot create a login link") {
						t.Errorf("%s of a %s by %s: %s %s", name, role, via, code, text)
					}
					continue
				}
				if refused := code == "permission_denied" || code == "unauthenticated"; refused == may {
					t.Errorf("%s of a %s by %s: %s %s", name, role, via, code, text)
				}
				if want := fmt.Sprintf("%s needs the role %s, and the-%s has the role %s; an admin can change it: loadstar user role the-%s %s", name, leastOf(name), role, role, role, leastOf(name)); !may && text != want {
					t.Errorf("%s of a %s by %s: %q, want %q", name, role, via, text, want)
				}
			}
			if code, text := p.call("/loadstar.v1.OperatorService/NoSuchCall", "{}"); code == "ok" {
				t.Error(role, via, text)
			}
		}
		o := v1.NewOperatorServiceClient(certified.http, st.url)
		st.wantCode(role+": WatchRun", watchError(o, t.Context()), connect.CodeNotFound)
	}
	for i := range methods.Len() {
		if name := string(methods.Get(i).Name()); leastOf(name) == "" {
			t.Errorf("nobody may call %s", name)
		}
	}
	// Strangers and agents may make no call.
	for name, h := range map[string]*http.Client{"nobody": st.nobody(), "an agent": st.join("a0").http} {
		for i := range methods.Len() {
			p := &person{st, h, st.url}
			if code, text := p.call("/loadstar.v1.OperatorService/"+string(methods.Get(i).Name()), "{}"); code != "permission_denied" {
				t.Errorf("%s, %s: %s %s", name, methods.Get(i).Name(), code, text)
			}
		}
	}
	// A browser without a session may make no call.
	p := st.withSession("the-admin")
	p.http.Jar = nil
	for i := range methods.Len() {
		if code, text := p.call("/loadstar.v1.OperatorService/"+string(methods.Get(i).Name()), "{}"); code != "unauthenticated" {
			t.Errorf("no session, %s: %s %s", methods.Get(i).Name(), code, text)
		}
	}
}

func leastOf(call string) string {
	for role, calls := range mayCall {
		if strings.Contains(" "+calls+" ", " "+call+" ") {
			return role
		}
	}
	return ""
}

// TestOthers checks that acting for other users requires the role admin, even where viewers may
// act for themselves.
func TestOthers(t *testing.T) {
	t.Parallel()
	st := folk(t)
	const service = "/loadstar.v1.OperatorService/"
	st.addUser("anna", "operator")
	st.addUser("bert", "viewer")
	anna, bert := st.withSession("anna"), st.withSession("bert")
	certified, _ := st.withCertificate("anna")
	sessions := func(p *person) (all []struct{ Id, User string }) {
		var answer struct{ Sessions []struct{ Id, User string } }
		_, text := p.call(service+"ListSessions", "{}")
		testkit.Must(t, json.Unmarshal([]byte(text), &answer))
		return answer.Sessions
	}
	berts := sessions(bert)
	if len(berts) != 1 || berts[0].User != "bert" {
		t.Fatal(berts)
	}
	for _, p := range []*person{anna, certified} {
		if s := sessions(p); len(s) != 1 || s[0].User != "anna" {
			t.Error(s)
		}
		for call, body := range map[string]string{"CreateLogin": `{"user":"bert"}`, "EndSession": fmt.Sprintf(`{"id":%q}`, berts[0].Id)} {
			if code, text := p.call(service+call, body); code != "permission_denied" || !strings.Contains(text, "needs the role admin, and anna has the role operator") {
				t.Error(call, code, text)
			}
		}
	}
	// A session cannot create another one, because the thief of a session would then keep access
	// after the logout.
	if code, text := bert.call(service+"CreateLogin", "{}"); code != "permission_denied" || !strings.Contains(text, "loadstar user login") {
		t.Error(code, text)
	}
	if code, text := certified.call(service+"CreateLogin", "{}"); code != "ok" {
		t.Error(code, text)
	}
	if code, _ := certified.call(service+"CreateLogin", `{"ttlSeconds":"90000"}`); code != "invalid_argument" {
		t.Error(code)
	}
	// An admin can see and end all sessions. Ending one takes effect with the next call.
	all, err := st.operator.ListSessions(t.Context(), &v1.ListSessionsRequest{})
	testkit.Must(t, err)
	if len(all.Sessions) != 2 {
		t.Error(all)
	}
	// The login links that were created in the meantime end as well.
	links := func() (n int) {
		t.Helper()
		db, err := sql.Open("sqlite", "file:"+filepath.Join(st.Dir, ledgerFile)+"?mode=ro")
		testkit.Must(t, err)
		defer db.Close()
		testkit.Must(t, db.QueryRow("SELECT count(*) FROM logins WHERE person = 'bert'").Scan(&n))
		return n
	}
	if _, err := st.operator.CreateLogin(t.Context(), &v1.CreateLoginRequest{User: "bert"}); err != nil || links() == 0 {
		t.Error(err)
	}
	_, err = st.operator.EndSession(t.Context(), &v1.EndSessionRequest{Id: berts[0].Id})
	testkit.Must(t, err)
	if n := links(); n > 0 {
		t.Errorf("%d login links are left", n)
	}
	if code, _ := bert.call(service+"Whoami", "{}"); code != "unauthenticated" {
		t.Error(code)
	}
	if code, _ := anna.call(service+"Whoami", "{}"); code != "ok" {
		t.Error(code)
	}
}

// TestLosingAccess checks that changing a role, revoking a certificate and removing a user take
// effect with the next call, even on open connections, and end streams.
func TestLosingAccess(t *testing.T) {
	t.Parallel()
	st := folk(t)
	const service = "/loadstar.v1.OperatorService/"
	a := st.join("a0")
	run := st.start(small)
	weights := a.task(run, 0).Weights
	st.addUser("anna", "operator")
	certified, serial := st.withCertificate("anna")
	other, _ := st.withCertificate("anna")
	browser := st.withSession("anna")
	can := func(p *person, call, want string) {
		t.Helper()
		if code, text := p.call(service+call, "{}"); code != want {
			t.Errorf("%s: %s %s, want %s", call, code, text, want)
		}
	}
	blob := func(p *person, want int) {
		t.Helper()
		r, err := p.http.Get(st.url + "/v1/blobs/" + weights)
		testkit.Must(t, err)
		r.Body.Close()
		if r.StatusCode != want {
			t.Errorf("weights: %s, want %d", r.Status, want)
		}
	}
	for _, p := range []*person{certified, other, browser} {
		can(p, "CreateToken", "invalid_argument") // the role is sufficient
	}
	st.addUser("anna", "viewer")
	for _, p := range []*person{certified, other, browser} {
		can(p, "CreateToken", "permission_denied")
		can(p, "Whoami", "ok")
	}
	blob(certified, http.StatusOK)
	watch := func(p *person) chan error {
		ended := make(chan error, 1)
		s, err := v1.NewOperatorServiceClient(p.http, st.url).WatchRun(t.Context(), &v1.WatchRunRequest{Run: run})
		testkit.Must(t, err)
		if !s.Receive() {
			t.Fatal(s.Err())
		}
		go func() {
			for s.Receive() {
			}
			ended <- s.Err()
			s.Close()
		}()
		return ended
	}
	first, second := watch(certified), watch(other)
	events, err := browser.http.Get(browser.base + "/events?topics=runs")
	testkit.Must(t, err)
	defer events.Body.Close()
	if events.StatusCode != http.StatusOK {
		t.Fatal(events.Status)
	}
	_, err = st.operator.RevokeCertificate(t.Context(), &v1.RevokeCertificateRequest{Serial: serial[:10]})
	testkit.Must(t, err)
	can(certified, "Whoami", "unauthenticated")
	blob(certified, http.StatusUnauthorized)
	can(other, "Whoami", "ok")
	can(browser, "Whoami", "unauthenticated") // the thief of the key may have opened the session
	st.wantCode("watching", <-first, connect.CodeUnauthenticated)
	var rest bytes.Buffer
	if _, err := io.Copy(&rest, events.Body); err != nil { // returns when the stream ends
		t.Error(err)
	}
	browser = st.withSession("anna")
	if events, err = browser.http.Get(browser.base + "/events?topics=runs"); err != nil || events.StatusCode != http.StatusOK {
		t.Fatal(events, err)
	}
	defer events.Body.Close()
	_, err = st.operator.RemoveUser(t.Context(), &v1.RemoveUserRequest{Name: "anna"})
	testkit.Must(t, err)
	can(other, "Whoami", "unauthenticated")
	can(browser, "Whoami", "unauthenticated")
	st.wantCode("watching", <-second, connect.CodeUnauthenticated)
	if _, err := io.Copy(&rest, events.Body); err != nil { // returns when the stream ends
		t.Error(err)
	}
	// A user who is added again does not get back the old certificates and sessions.
	st.addUser("anna", "admin")
	for _, p := range []*person{certified, other, browser} {
		can(p, "Whoami", "unauthenticated")
	}
}

// forget deletes all certificates from the ledger.
func forget(t *testing.T, st *station) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(st.Dir, ledgerFile)+"?_pragma=busy_timeout(10000)")
	testkit.Must(t, err)
	defer db.Close()
	_, err = db.Exec("DELETE FROM certificates")
	testkit.Must(t, err)
}

// TestOldFolder checks that the server records a certificate that an older server wrote to its
// folder, and accepts no other certificate of the user local.
func TestOldFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begin := func() *station { return newStation(t, func(c *Config) { c.Dir = dir }) }
	st := begin()
	had, err := mtls.ReadFolder(filepath.Join(dir, "operator"))
	testkit.Must(t, err)
	// As after an upgrade, the certificate is in the folder but not in the ledger.
	forget(t, st)
	_, err = st.operator.ListRuns(t.Context(), &v1.ListRunsRequest{})
	st.wantCode("an unknown certificate", err, connect.CodeUnauthenticated)
	if !strings.Contains(err.Error(), "restart that gateway, which then records it") {
		t.Error(err)
	}
	st.stop()
	st = begin()
	if now, err := mtls.ReadFolder(filepath.Join(dir, "operator")); err != nil || !now.Leaf.Equal(had.Leaf) {
		t.Error("another certificate", err)
	}
	_, err = st.operator.ListRuns(t.Context(), &v1.ListRunsRequest{})
	testkit.Must(t, err)
	// Another gateway with the same authority and ledger has its own folder.
	second, err := st.authority.WriteOperator(filepath.Join(t.TempDir(), "operator"), time.Hour, func(string) (bool, error) { return false, nil })
	testkit.Must(t, err)
	if second.Equal(had.Leaf) {
		t.Error("the same certificate")
	}
	// After a restart, which writes a new certificate, a revoked certificate of the user local
	// is still refused.
	serial := fmt.Sprintf("%032x", had.Leaf.SerialNumber)
	_, err = st.operator.RevokeCertificate(t.Context(), &v1.RevokeCertificateRequest{Serial: serial})
	testkit.Must(t, err)
	st.stop()
	st = begin()
	old := v1.NewOperatorServiceClient(st.http(had.TLS()), st.url)
	_, err = old.ListRuns(t.Context(), &v1.ListRunsRequest{})
	st.wantCode("a revoked certificate", err, connect.CodeUnauthenticated)
	who, err := st.operator.Whoami(t.Context(), &v1.WhoamiRequest{})
	if err != nil || who.Name != "local" || who.Role != "admin" {
		t.Error(who, err)
	}
}
