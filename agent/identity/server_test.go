package identity

import (
	"context"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	loadstarv1 "loadstar/proto/loadstar/v1"
	"loadstar/server/pki"
)

// fleet is a server that issues certificates to agents over real TLS.
type fleet struct {
	loadstarv1.UnimplementedAgentServiceHandler
	authority *pki.Authority
	dir       string // folder of the authority
	url       string

	mu      sync.Mutex
	ttl     time.Duration
	uses    map[string]int // remaining uses of tokens, by hash
	agents  int
	renewed int
	names   []string
	serials []string // serial numbers of the certificates that callers of Exchange presented
	// Faults that a test injects.
	spoil func(chain [][]byte) ([][]byte, error)
	id    string // replaces the assigned name
	// strict refuses to renew a certificate that has expired.
	strict bool
	hold   chan struct{} // Exchange waits until it is closed
	held   chan struct{} // closed when an Exchange call has begun to wait
}

func newFleet(t testing.TB) *fleet {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	a, err := pki.Open(dir, pki.Keys{})
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{authority: a, dir: dir, ttl: 7 * 24 * time.Hour, uses: map[string]int{}}
	f.url = f.serve(t, f.authority, "127.0.0.1", "::1", "localhost")
	return f
}

// serve starts an HTTPS server with a certificate from the authority and returns its URL.
func (f *fleet) serve(t testing.TB, a *pki.Authority, hosts ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(loadstarv1.NewAgentServiceHandler(f, connect.WithInterceptors(protocol.Server())))
	config, err := a.TLS(hosts)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(a.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if len(r.TLS.PeerCertificates) > 0 {
			r.Header.Set("Serial", r.TLS.PeerCertificates[0].SerialNumber.String())
		}
		mux.ServeHTTP(w, r)
	})))
	s.TLS = config
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

// token creates a join token that the given number of agents can use.
func (f *fleet) token(t testing.TB, uses int) string {
	t.Helper()
	tok, err := mtls.NewJoinToken(f.authority.Pin())
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.uses[hex.EncodeToString(tok.Hash())] = uses
	return tok.Text()
}

func (f *fleet) sign(csr []byte, id string) (chain, roots [][]byte, err error) {
	issued, err := f.authority.Issue(csr, pki.Identity{Role: pki.Agent, ID: id}, f.ttl)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if f.spoil != nil {
		issued.Chain, err = f.spoil(issued.Chain)
	}
	return issued.Chain, issued.Roots, err
}

func (f *fleet) Join(_ context.Context, r *loadstarv1.JoinRequest) (*loadstarv1.JoinResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hash := hex.EncodeToString(mtls.HashToken(r.GetSecret()))
	if f.uses[hash] == 0 {
		return nil, connect.NewError(connect.CodePermissionDenied, errors.New("the token is unknown, used up or expired"))
	}
	f.uses[hash]--
	f.agents++
	id := fmt.Sprintf("agent-%d", f.agents)
	if len(r.OldCertificate) > 0 {
		who, _, err := f.authority.ProvesOld(r.Csr, r.OldCertificate, r.OldSignature)
		if err != nil {
			return nil, err
		}
		id = who.ID
	}
	chain, roots, err := f.sign(r.GetCsr(), id)
	if err != nil {
		return nil, err
	}
	f.names = append(f.names, r.GetName())
	if f.id != "" {
		id = f.id
	}
	return &loadstarv1.JoinResponse{Agent: id, Certificates: chain, Roots: roots, HeadKey: make([]byte, 32)}, nil
}

func (f *fleet) Renew(ctx context.Context, r *loadstarv1.RenewRequest) (*loadstarv1.RenewResponse, error) {
	who, ok := pki.CallerFrom(ctx)
	if !ok || who.Role != pki.Agent {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no agent"))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.strict && time.Now().After(who.Leaf.NotAfter) {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("it has expired"))
	}
	chain, roots, err := f.sign(r.GetCsr(), who.ID)
	if err != nil {
		return nil, err
	}
	f.renewed++
	return &loadstarv1.RenewResponse{Certificates: chain, Roots: roots}, nil
}

func (f *fleet) Exchange(ctx context.Context, _ *loadstarv1.ExchangeRequest) (*loadstarv1.ExchangeResponse, error) {
	if _, ok := pki.From(ctx); !ok {
		return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("no agent"))
	}
	info, _ := connect.CallInfoForHandlerContext(ctx)
	f.mu.Lock()
	f.serials = append(f.serials, info.RequestHeader().Get("Serial"))
	hold := f.hold
	if hold != nil {
		f.hold = nil
		close(f.held)
	}
	f.mu.Unlock()
	if hold != nil {
		<-hold
	}
	return &loadstarv1.ExchangeResponse{NextContactMs: 1}, nil
}

// set calls change while it holds the lock that protects the fields.
func (f *fleet) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// shown returns the serial number of the last caller's certificate.
func (f *fleet) shown() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.serials[len(f.serials)-1]
}

// join joins the server with a new folder. It returns the identity and the folder.
func (f *fleet) join(t testing.TB) (*Identity, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "agent")
	i, err := Join(t.Context(), dir, f.url, f.token(t, 1), "meter cabinet")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.HTTPClient().CloseIdleConnections)
	return i, dir
}

// checkIn makes a call that needs the identity.
func checkIn(t testing.TB, i *Identity) error {
	t.Helper()
	_, err := loadstarv1.NewAgentServiceClient(i.HTTPClient(), i.Server(), protocol.Client()).Exchange(t.Context(), &loadstarv1.ExchangeRequest{})
	return err
}

func serial(c *x509.Certificate) string { return c.SerialNumber.String() }

func wantError(t testing.TB, name string, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want %q", name, want)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v\nwant %q", name, err, w)
		}
	}
}
