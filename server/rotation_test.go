package server

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server/directory"
	"loadstar/server/pki"
)

// expired returns the machine of an agent whose certificate has expired.
func (st *station) expired(id string) *machine {
	st.Helper()
	key, csr := request(st)
	issued, err := st.authority.Issue(csr, pki.Identity{Role: pki.Agent, ID: id}, time.Second)
	testkit.Must(st, err)
	now := time.Now()
	testkit.Must(st, st.ledger.Directory.AddToken(st.Context(), []byte(id), directory.Token{Uses: 1, Expires: now.Add(time.Hour)}, "test", now))
	testkit.Must(st, st.ledger.Directory.Join(st.Context(), []byte(id), directory.Agent{
		ID: id, Expires: issued.Leaf.NotAfter, Credential: directory.Credential{Serial: pki.Serial(issued.Leaf), Issued: issued.Leaf.NotBefore},
	}, now))
	// A certificate's times are in whole seconds.
	time.Sleep(time.Until(issued.Leaf.NotAfter) + 1100*time.Millisecond)
	return st.machine(id, key, issued.Leaf.Raw)
}

// TestGrace checks that within the grace period, an agent can renew an expired certificate, but
// do nothing else with it. After that, it can join again and keeps its name and its clients.
func TestGrace(t *testing.T) {
	t.Parallel()
	announce := func(m *machine) {
		t.Helper()
		s, err := m.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0"}, StepSeconds: 3600})
		if err != nil || len(s.Refused) > 0 {
			t.Errorf("%v, %v", s, err)
		}
	}
	says := func(what string, err error, text string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", what, err, text)
		}
	}
	t.Run("within", func(t *testing.T) {
		st := newStation(t, func(c *Config) { c.Grace = time.Hour })
		old := st.expired("agent")
		err := old.checkIn()
		st.wantCode("a check-in", err, connect.CodeUnauthenticated)
		says("a check-in", err, "renew it, which is possible for 1h")
		st.wantCode("an announcement", second(old.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0"}, StepSeconds: 3600})), connect.CodeUnauthenticated)
		next, err := old.renew()
		testkit.Must(t, err)
		testkit.Must(t, next.checkIn())
		announce(next)
		if n := st.refused()["expired"]; n != 2 {
			t.Errorf("%g calls were refused because the certificate had expired, want 2", n)
		}
		revoked := st.expired("revoked")
		_, err = st.operator.Revoke(t.Context(), &v1.RevokeRequest{Agent: "revoked"})
		testkit.Must(t, err)
		_, err = revoked.renew()
		st.wantCode("a revoked agent", err, connect.CodePermissionDenied)
	})
	t.Run("after", func(t *testing.T) {
		st := newStation(t, func(c *Config) { c.Grace = time.Millisecond })
		old := st.expired("agent")
		_, err := old.renew()
		st.wantCode("a renewal", err, connect.CodeUnauthenticated)
		says("a renewal", err, "join again with a new token")
		again := st.enrol(st.token(1), old)
		if again.id != "agent" {
			t.Errorf("joined again as %s", again.id)
		}
		announce(again)
	})
}

// folder holds a user's certificate and key, as the folder of the command line does.
type folder struct {
	st *station
	mtls.Credentials
}

func (f folder) call() v1.OperatorServiceClient {
	return v1.NewOperatorServiceClient(f.st.http(f.TLS()), f.st.url)
}

func (f folder) whoami() error {
	return second(f.call().Whoami(f.st.Context(), &v1.WhoamiRequest{}))
}

func roots(st *station, ders [][]byte) (all []*x509.Certificate) {
	st.Helper()
	for _, der := range ders {
		all = append(all, must2(x509.ParseCertificate(der)))
	}
	return all
}

// renew returns the folder after a renewal with the same key, and whether the certificate is
// new.
func (f folder) renew() (folder, bool) {
	f.st.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, f.Key)
	testkit.Must(f.st, err)
	r, err := f.call().RenewCertificate(f.st.Context(), &v1.RenewCertificateRequest{Csr: csr})
	testkit.Must(f.st, err)
	trusted := roots(f.st, r.Roots)
	f.Root, f.More = trusted[0], trusted[1:]
	if len(r.Certificates) > 0 {
		f.Leaf = must2(x509.ParseCertificate(r.Certificates[0]))
	}
	return f, len(r.Certificates) > 0
}

// TestUserFollowsARotation checks that a user whose credentials are on another machine gets a
// certificate from the new issuer, with the same expiry, and the new roots, and can continue
// after the previous root is retired. A certificate and those that it was renewed from or to
// are revoked together.
func TestUserFollowsARotation(t *testing.T) {
	t.Parallel()
	st := folk(t)
	st.addUser("anna", "viewer")
	key, csr := request(st)
	r, err := st.operator.IssueCertificate(t.Context(), &v1.IssueCertificateRequest{User: "anna", Csr: csr})
	testkit.Must(t, err)
	first := folder{st, mtls.Credentials{Key: key, Leaf: must2(x509.ParseCertificate(r.Certificates[0])), Root: roots(st, r.Roots)[0]}}
	testkit.Must(t, first.whoami())
	if _, renewed := first.renew(); renewed {
		t.Error("a certificate was renewed without a rotation")
	}
	agent := st.enrol(st.token(1), nil)
	testkit.Must(t, agent.checkIn())

	dir := filepath.Join(st.Dir, pkiDir)
	// change changes the authority and waits until the server uses it.
	change := func(do func() error) {
		t.Helper()
		testkit.Must(t, do())
		want := fmt.Sprint(must2(pki.Issuers(dir)))
		testkit.Eventually(st, "the server uses the new files", func() bool { return fmt.Sprint(st.authority.Issuers()) == want })
	}
	counts := func(want string) {
		t.Helper()
		s, err := st.operator.ListIssuers(t.Context(), &v1.ListIssuersRequest{})
		testkit.Must(t, err)
		got := ""
		for _, i := range s.Issuers {
			got += fmt.Sprintf("%d/%d/%d ", i.Agents, i.Expired, i.Certificates)
		}
		if strings.TrimSpace(got) != want {
			t.Errorf("the issuers have agents, expired ones and certificates %q, want %q", got, want)
		}
	}
	counts("1/0/1 0/0/0")
	change(func() error { return pki.Rotate(dir, pki.Keys{}, pki.Rotation{Root: true}) })
	counts("1/0/1 0/0/0 0/0/0")
	next, renewed := first.renew()
	if !renewed || len(next.Roots()) != 2 || !next.Leaf.NotAfter.Equal(first.Leaf.NotAfter) || next.Leaf.Subject.CommonName != "anna" || !next.Leaf.PublicKey.(*ecdsa.PublicKey).Equal(key.Public()) {
		t.Fatalf("renewed: %v, %d roots, until %v, want until %v", renewed, len(next.Roots()), next.Leaf.NotAfter, first.Leaf.NotAfter)
	}
	testkit.Must(t, next.whoami())
	testkit.Must(t, first.whoami()) // a command that has read the old file
	counts("1/0/0 0/0/1 0/0/0")
	follows, err := agent.renew()
	testkit.Must(t, err)
	testkit.Must(t, follows.checkIn())
	counts("0/0/0 1/0/1 0/0/0")

	change(func() error { return pki.Retire(dir, false) })
	st.operator = v1.NewOperatorServiceClient(st.operatorHTTP(), st.url)
	testkit.Must(t, next.whoami())
	if err := first.whoami(); err == nil {
		t.Error("a certificate of the retired issuer is accepted")
	}
	last, renewed := next.renew()
	if renewed || len(last.Roots()) != 1 {
		t.Errorf("renewed %v, %d roots after the former one was retired", renewed, len(last.Roots()))
	}
	counts("1/0/1 0/0/0")

	change(func() error { return pki.Rotate(dir, pki.Keys{}, pki.Rotation{}) })
	newest, renewed := last.renew()
	if !renewed {
		t.Error("not renewed after the second rotation")
	}
	testkit.Must(t, newest.whoami())
	_, err = st.operator.RevokeCertificate(t.Context(), &v1.RevokeCertificateRequest{Serial: pki.Serial(last.Leaf)})
	testkit.Must(t, err)
	for what, f := range map[string]folder{"the revoked certificate": last, "the one that it was renewed to": newest} {
		if err := f.whoami(); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	if code, text := st.withSession("anna").call(v1.OperatorServiceRenewCertificateProcedure, "{}"); code != "invalid_argument" {
		t.Errorf("renewing with a session: %s, %s", code, text)
	}
}
