package server

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// machine is a machine with an agent's key and certificate.
type machine struct {
	v1.AgentServiceClient
	st   *station
	id   string
	key  *ecdsa.PrivateKey
	leaf []byte
	http *http.Client
}

func request(st *station) (*ecdsa.PrivateKey, []byte) {
	st.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(st, err)
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	testkit.Must(st, err)
	return key, csr
}

// machine returns a machine that presents a certificate, as an agent does.
func (st *station) machine(id string, key *ecdsa.PrivateKey, leaf []byte) *machine {
	st.Helper()
	operator, err := mtls.ReadFolder(filepath.Join(st.Dir, "operator"))
	testkit.Must(st, err)
	shown := tls.Certificate{Certificate: [][]byte{leaf}, PrivateKey: key}
	h := st.patient(mtls.AgentTransport(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: mtls.Pool(operator.Roots()...),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
	}))
	return &machine{v1.NewAgentServiceClient(h, st.url, protocol.Client()), st, id, key, leaf, h}
}

// enrol joins with a token. If old is not nil, it proves that it has old's key.
func (st *station) enrol(token string, old *machine) *machine {
	st.Helper()
	key, csr := request(st)
	q := &v1.JoinRequest{Secret: must2(mtls.ParseJoinToken(token)).Secret(), Csr: csr, Name: "machine"}
	if old != nil {
		digest := sha256.Sum256(csr)
		signature, err := ecdsa.SignASN1(rand.Reader, old.key, digest[:])
		testkit.Must(st, err)
		q.OldCertificate, q.OldSignature = old.leaf, signature
	}
	s, err := v1.NewAgentServiceClient(st.nobody(), st.url, protocol.Client()).Join(st.Context(), q)
	testkit.Must(st, err)
	return st.machine(s.Agent, key, s.Certificates[0])
}

// renew returns the machine with a new certificate that it has not used yet.
func (m *machine) renew() (*machine, error) {
	m.st.Helper()
	key, csr := request(m.st)
	s, err := m.Renew(m.st.Context(), &v1.RenewRequest{Csr: csr})
	if err != nil {
		return nil, err
	}
	return m.st.machine(m.id, key, s.Certificates[0]), nil
}

func (m *machine) checkIn() error {
	return second(m.Exchange(m.st.Context(), &v1.ExchangeRequest{}))
}

// copied reports whether operators see that the identity of an agent was copied.
func (st *station) copied(id string) bool {
	st.Helper()
	s, err := st.operator.ListAgents(st.Context(), &v1.ListAgentsRequest{Name: id})
	testkit.Must(st, err)
	if len(s.Agents) != 1 {
		st.Fatalf("%d agents are named %s", len(s.Agents), id)
	}
	return s.Agents[0].Copied != 0
}

// TestCopiedIdentity checks that a copied identity cannot be used in parallel with the original
// without being detected. The older certificate is refused, and operators see that the identity
// was copied.
func TestCopiedIdentity(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	fetch := func(m *machine) int {
		t.Helper()
		r, err := m.http.Get(st.url + "/v1/blobs/" + strings.Repeat("0", 64))
		testkit.Must(t, err)
		testkit.Must(t, r.Body.Close())
		return r.StatusCode
	}
	t.Run("renews beside the original", func(t *testing.T) {
		own := st.enrol(st.token(1), nil)
		thief := st.machine(own.id, own.key, own.leaf)
		testkit.Must(t, own.checkIn())
		testkit.Must(t, thief.checkIn())
		next, err := own.renew()
		testkit.Must(t, err)
		stolen, err := thief.renew() // the original may not have received its answer, so this is allowed
		testkit.Must(t, err)
		testkit.Must(t, own.checkIn())
		testkit.Must(t, next.checkIn())
		if st.copied(own.id) {
			t.Error("an identity counts as copied before two certificates were used")
		}
		// The gateway trusts the original's calls for a second, but not the copy's.
		if code := fetch(stolen); code != http.StatusForbidden {
			t.Errorf("the copy fetches a blob: %d", code)
		}
		st.wantCode("the copy", stolen.checkIn(), connect.CodePermissionDenied)
		if !st.copied(own.id) {
			t.Error("nobody sees that the identity was copied")
		}
		testkit.Must(t, next.checkIn())
		next, err = next.renew()
		testkit.Must(t, err)
		testkit.Must(t, next.checkIn())
		s, err := st.operator.ListAudit(t.Context(), &v1.ListAuditRequest{Action: "identity copied"})
		if err != nil || len(s.Events) != 1 || s.Events[0].Subject != own.id {
			t.Errorf("%v, %v", s, err)
		}
	})
	t.Run("renews after the original", func(t *testing.T) {
		own := st.enrol(st.token(1), nil)
		thief := st.machine(own.id, own.key, own.leaf)
		next, err := own.renew()
		testkit.Must(t, err)
		testkit.Must(t, next.checkIn())
		if code := fetch(own); code != http.StatusNotFound {
			t.Errorf("a call that was in progress during the renewal: %d", code)
		}
		before := st.refused()["copied"]
		_, err = thief.renew()
		st.wantCode("the copy", err, connect.CodePermissionDenied)
		if n := st.refused()["copied"] - before; n != 1 || !st.copied(own.id) {
			t.Errorf("counted %g times, copied %v", n, st.copied(own.id))
		}
		testkit.Must(t, next.checkIn())
	})
}

// TestRejoin checks that an agent that joins again keeps its name and its clients only if it
// proves that it has its old key.
func TestRejoin(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	announce := func(m *machine, want ...string) {
		t.Helper()
		s, err := m.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"a0", "a1"}, StepSeconds: 3600})
		if err != nil || !slices.Equal(s.Refused, want) {
			t.Errorf("%v, %v, want %v refused", s, err, want)
		}
	}
	first := st.enrol(st.token(1), nil)
	announce(first)
	lost := st.enrol(st.token(1), first) // the answer does not arrive
	again := st.enrol(st.token(1), first)
	if lost.id != first.id || again.id != first.id {
		t.Fatalf("joined again as %s and %s, want %s", lost.id, again.id, first.id)
	}
	announce(again)

	forged := st.machine(first.id, must2(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), again.leaf)
	for what, old := range map[string]*machine{"without proof": nil, "with another key": forged, "with a replaced certificate": first} {
		m := st.enrol(st.token(1), old)
		if m.id == first.id {
			t.Errorf("%s: joined as the same agent", what)
		}
		announce(m, "a0", "a1")
	}
	// The proof is valid for only one request.
	key, csr := request(st)
	digest := sha256.Sum256([]byte("another request"))
	signature, err := ecdsa.SignASN1(rand.Reader, again.key, digest[:])
	testkit.Must(t, err)
	s, err := v1.NewAgentServiceClient(st.nobody(), st.url, protocol.Client()).Join(t.Context(), &v1.JoinRequest{
		Secret: must2(mtls.ParseJoinToken(st.token(1))).Secret(), Csr: csr, OldCertificate: again.leaf, OldSignature: signature,
	})
	testkit.Must(t, err)
	if s.Agent == first.id {
		t.Error("joined as the same agent with the signature of another request")
	}
	announce(st.machine(s.Agent, key, s.Certificates[0]), "a0", "a1")

	// A revoked agent joins as a new agent, and its clients stay bound to the old agent until
	// they are freed.
	_, err = st.operator.Revoke(t.Context(), &v1.RevokeRequest{Agent: first.id})
	testkit.Must(t, err)
	anew := st.enrol(st.token(1), again)
	if anew.id == first.id {
		t.Error("a revoked agent has joined again as itself")
	}
	announce(anew, "a0", "a1")
	_, err = st.operator.FreeClients(t.Context(), &v1.FreeClientsRequest{Agent: first.id})
	testkit.Must(t, err)
	announce(anew)
}

// TestTokenBounds checks that a token limits the clients of its agents, that its use is
// recorded at each join, and that it can be revoked.
func TestTokenBounds(t *testing.T) {
	t.Parallel()
	st := newStation(t, nil)
	made, err := st.operator.CreateToken(t.Context(), &v1.CreateTokenRequest{Uses: 3, TtlSeconds: 3600, Clients: 2, Pattern: "m-*"})
	testkit.Must(t, err)
	m := st.enrol(made.Token, nil)
	s, err := m.Announce(t.Context(), &v1.AnnounceRequest{Clients: []string{"m-1", "m-2", "m-3", "x"}, StepSeconds: 3600})
	if err != nil || !slices.Equal(s.Refused, []string{"m-3", "x"}) || !strings.Contains(s.Reason, "m-3 is one too many: the token with which this agent joined allows 2 clients") {
		t.Errorf("%v, %v", s, err)
	}
	with, err := st.operator.ListAgents(t.Context(), &v1.ListAgentsRequest{Token: made.Id})
	if err != nil || len(with.Agents) != 1 || with.Agents[0].Id != m.id || with.Agents[0].Token != made.Id || with.Agents[0].Clients != 2 {
		t.Errorf("%v, %v", with, err)
	}
	_, err = st.operator.RevokeToken(t.Context(), &v1.RevokeTokenRequest{Id: made.Id})
	testkit.Must(t, err)
	list, err := st.operator.ListTokens(t.Context(), &v1.ListTokensRequest{})
	if err != nil || len(list.Tokens) != 1 || list.Tokens[0].Revoked == 0 || list.Tokens[0].Joined != 1 || list.Tokens[0].Uses != 2 {
		t.Errorf("%v, %v", list, err)
	}
	nobody := v1.NewAgentServiceClient(st.nobody(), st.url, protocol.Client())
	// An invalid token is refused before anything else is checked.
	for what, secret := range map[string][]byte{"revoked": must2(mtls.ParseJoinToken(made.Token)).Secret(), "unknown": []byte("unknown")} {
		_, err := nobody.Join(t.Context(), &v1.JoinRequest{Secret: secret, Csr: []byte("not a certificate request")})
		st.wantCode(what, err, connect.CodePermissionDenied)
	}
	for _, q := range []*v1.CreateTokenRequest{{Clients: -1}, {Clients: 1 << 40}, {Pattern: "["}, {Pattern: strings.Repeat("x", 300)}} {
		q.Uses, q.TtlSeconds = 1, 3600
		_, err := st.operator.CreateToken(t.Context(), q)
		st.wantCode("limits that are not valid", err, connect.CodeInvalidArgument)
	}
	testkit.Must(t, m.checkIn())
}
