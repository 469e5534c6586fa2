package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"loadstar/internal/mtls"
)

const serverLife = 90 * 24 * time.Hour

// hostname matches the host names that a certificate can contain, including wildcards.
var hostname = regexp.MustCompile(`^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// TLS returns the server's TLS configuration: TLS 1.3, HTTP/2 or HTTP/1.1, and a certificate
// for the given host names and addresses. The certificate is created and renewed in memory. The
// server also sends the certificates above it, for agents that know only a pin. A client
// certificate is optional; if there is one, this authority must have issued it. It may have
// expired; then Middleware gives its owner no identity.
//
// The configuration is chosen per connection, so changing the returned value has no
// effect.
func (a *Authority) TLS(hosts []string) (*tls.Config, error) {
	s := &ownCertificate{authority: a}
	for _, h := range hosts {
		h = strings.ToLower(h)
		if ip, err := netip.ParseAddr(strings.Trim(h, "[]")); err == nil && ip.Zone() == "" {
			s.template.IPAddresses = append(s.template.IPAddresses, ip.Unmap().AsSlice())
		} else if len(h) <= 253 && hostname.MatchString(h) {
			s.template.DNSNames = append(s.template.DNSNames, h)
		} else {
			return nil, fmt.Errorf("%q is neither a host name nor an address", h)
		}
	}
	if len(hosts) == 0 {
		return nil, errors.New("the server's certificate needs the host names or addresses that agents will use")
	}
	s.template.Subject = pkix.Name{CommonName: "Loadstar server"}
	s.template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if _, err := s.config(nil); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: protocols, Time: func() time.Time { return a.now() },
		GetConfigForClient: s.config,
	}, nil
}

var protocols = []string{"h2", "http/1.1"}

// ownCertificate is the server's certificate, renewed before it expires.
type ownCertificate struct {
	authority *Authority
	template  x509.Certificate

	mu      sync.Mutex
	current *tls.Config   // nil before the first connection
	has     *issuers      // the issuers at the creation of current
	ended   chan struct{} // closed at the end of the renewal in progress; nil if there is none
	failed  error         // error of the last renewal
	after   time.Time     // earliest time of the next renewal
}

const (
	// renewalFor is the time for which a connection waits for a new certificate while the old
	// one is still valid. It is short, because an external signer may be slow or unavailable.
	renewalFor = 500 * time.Millisecond
	// renewalAgain is the time between two attempts to renew.
	renewalAgain = 30 * time.Second
)

// config returns the TLS configuration for a connection. It creates or renews the server's
// certificate if necessary.
func (s *ownCertificate) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	now := s.authority.now()
	s.mu.Lock()
	has := s.authority.has.Load()
	current, changed := s.current, s.has != has
	// If a certificate is not valid yet, it was created when the clock was ahead.
	valid := current != nil && !now.After(current.Certificates[0].Leaf.NotAfter) && !now.Before(current.Certificates[0].Leaf.NotBefore)
	if valid && !changed && !mtls.Due(current.Certificates[0].Leaf, now) {
		s.mu.Unlock()
		return current, nil
	}
	if s.ended == nil && (!valid || !now.Before(s.after)) {
		s.ended = make(chan struct{})
		go s.renew(has)
	}
	ended := s.ended
	s.mu.Unlock()
	if ended == nil {
		return current, nil
	}
	patience := make(<-chan time.Time)
	if valid {
		patience = time.After(renewalFor)
	}
	select {
	case <-ended:
	case <-patience:
		return current, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil && !valid {
		return nil, fmt.Errorf("creating the server's certificate: %w", s.failed)
	}
	return s.current, nil
}

// renew renews the certificate.
func (s *ownCertificate) renew(has *issuers) {
	c, err := s.renewed(has)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed = err; err == nil {
		s.current, s.has, s.after = c, has, time.Time{}
	} else {
		s.after = s.authority.now().Add(renewalAgain)
		s.authority.trouble.Store(&err)
	}
	close(s.ended)
	s.ended = nil
}

func (s *ownCertificate) renewed(has *issuers) (*tls.Config, error) {
	a := s.authority
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := s.template
	by := has.serving(a.now())
	leaf, err := a.sign(by, &template, key.Public(), serverLife)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   protocols,
		Time:         func() time.Time { return a.now() },
		Certificates: []tls.Certificate{{Certificate: ders(append([]*x509.Certificate{leaf}, by.chain...)), PrivateKey: key, Leaf: leaf}},
		// Go's own check would refuse expired certificates, which may still be renewed.
		ClientAuth: tls.RequestClientCert,
		ClientCAs:  mtls.Pool(has.certificates()...),
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return nil
			}
			_, err := a.verify(state.PeerCertificates[0])
			return err
		},
		// Starting with small TLS records speeds up web pages, but only costs time here.
		DynamicRecordSizingDisabled: true,
		// Every connection must present its own certificate. A resumed session would reuse an
		// older certificate.
		SessionTicketsDisabled: true,
	}, nil
}
