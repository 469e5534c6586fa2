package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
)

// Agent is a client of the protocol with the calls that attacks need. Its identity comes
// from Join.
type Agent struct {
	v1.AgentServiceClient
	ID   string
	TLS  *tls.Config // with the agent's certificate, for additional connections
	Key  *ecdsa.PrivateKey
	Leaf *x509.Certificate
	HTTP *http.Client
	Base string // URL of the server
}

// callFor is the time limit of a call by the test bed.
const callFor = 20 * time.Second

// Roots returns the roots that the server's operators trust.
func (s *Server) Roots() (*x509.CertPool, error) {
	text, err := os.ReadFile(filepath.Join(s.Dir, "operator", "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("the operator's ca.pem contains no certificate")
	}
	return pool, nil
}

// Anonymous returns the configuration of a stranger, who knows only the server's root.
func (s *Server) Anonymous() (*tls.Config, error) {
	roots, err := s.Roots()
	return &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, err
}

// Operators returns a client with the operator's credentials from the server's folder.
func (s *Server) Operators() (v1.OperatorServiceClient, error) {
	return s.operatorsFrom(filepath.Join(s.Dir, "operator"))
}

// operatorsFrom returns a client with the operator's credentials from a folder.
func (s *Server) operatorsFrom(dir string) (v1.OperatorServiceClient, error) {
	config, err := s.Anonymous()
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	present(config, pair)
	return v1.NewOperatorServiceClient(mtls.Client(mtls.Transport(config)), "https://"+s.Operator), nil
}

// present makes a client present its certificate regardless of the root that the server
// requests.
func present(config *tls.Config, pair tls.Certificate) {
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
}

// Token creates a join token.
func (s *Server) Token(ctx context.Context, uses int64) (mtls.JoinToken, error) {
	o, err := s.Operators()
	if err != nil {
		return mtls.JoinToken{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	t, err := o.CreateToken(ctx, &v1.CreateTokenRequest{Uses: uses, TtlSeconds: 3600, Note: "attack"})
	if err != nil {
		return mtls.JoinToken{}, fmt.Errorf("create a token: %w", err)
	}
	return mtls.ParseJoinToken(t.Token)
}

// JoinOne creates a token and joins with it.
func (s *Server) JoinOne(ctx context.Context, name string) (*Agent, error) {
	t, err := s.Token(ctx, 1)
	if err != nil {
		return nil, err
	}
	return s.Join(ctx, t, name)
}

// Join joins as an agent does.
func (s *Server) Join(ctx context.Context, t mtls.JoinToken, name string) (*Agent, error) {
	config, err := s.Anonymous()
	if err != nil {
		return nil, err
	}
	key, csr, err := request()
	if err != nil {
		return nil, err
	}
	transport := mtls.AgentTransport(config)
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	r, err := v1.NewAgentServiceClient(mtls.Client(transport), "https://"+s.Host, protocol.Client()).Join(ctx, &v1.JoinRequest{Secret: t.Secret(), Csr: csr, Name: name})
	if err != nil {
		return nil, fmt.Errorf("joining: %w", err)
	}
	return s.agent(r.Agent, key, r.Certificates)
}

// request creates a key and a request for a certificate.
func request() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return key, csr, err
}

// agent returns an agent with the certificates that Join or Renew returned. These are the
// certificates of the agent and of its issuers, except the root, which is not sent.
func (s *Server) agent(id string, key *ecdsa.PrivateKey, certificates [][]byte) (*Agent, error) {
	if len(certificates) < 2 {
		return nil, fmt.Errorf("the server returned %d certificates", len(certificates))
	}
	leaf, err := x509.ParseCertificate(certificates[0])
	if err != nil {
		return nil, err
	}
	config, err := s.Anonymous()
	if err != nil {
		return nil, err
	}
	present(config, tls.Certificate{Certificate: certificates[:len(certificates)-1], PrivateKey: key, Leaf: leaf})
	a := &Agent{ID: id, TLS: config, Key: key, Leaf: leaf, HTTP: mtls.Client(mtls.AgentTransport(config)), Base: "https://" + s.Host}
	a.AgentServiceClient = v1.NewAgentServiceClient(a.HTTP, a.Base, protocol.Client())
	s.fleet.later(func() error { a.HTTP.CloseIdleConnections(); return nil })
	return a, nil
}

// push sends a result and returns its verdict.
func (a *Agent) push(ctx context.Context, q *v1.Result) (*v1.Received, error) {
	r, err := a.Exchange(ctx, &v1.ExchangeRequest{Result: q})
	return r.GetReceived(), err
}

// post sends an encoded message with the given headers, in pairs. The body of the response is
// discarded.
func (a *Agent) post(ctx context.Context, procedure string, body []byte, headers ...string) (*http.Response, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, a.Base+procedure, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	q.Header.Set("Content-Type", "application/proto")
	for pair := range slices.Chunk(headers, 2) {
		q.Header.Set(pair[0], pair[1])
	}
	r, err := a.HTTP.Do(q)
	if err != nil {
		return nil, err
	}
	_, err = io.Copy(io.Discard, r.Body)
	return r, errors.Join(err, r.Body.Close())
}

// Host announces clients with hourly readings and the given inputs.
func (a *Agent) Host(ctx context.Context, inputs []string, clients ...string) (refused []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	r, err := a.Announce(ctx, &v1.AnnounceRequest{Clients: clients, Inputs: inputs, StepSeconds: 3600})
	if err != nil {
		return nil, fmt.Errorf("announcing: %w", err)
	}
	return r.Refused, nil
}

func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%05d", prefix, i)
	}
	return out
}

// joinWith creates a token as requested and joins with it.
func (s *Server) joinWith(ctx context.Context, q *v1.CreateTokenRequest, name string) (*Agent, error) {
	o, err := s.Operators()
	if err != nil {
		return nil, err
	}
	t, err := o.CreateToken(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("create a token: %w", err)
	}
	token, err := mtls.ParseJoinToken(t.Token)
	if err != nil {
		return nil, err
	}
	return s.Join(ctx, token, name)
}
