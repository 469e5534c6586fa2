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

// TLS returns the server's TLS configuration: TLS 1.3, HTTP/2 or HTTP/1.1, and a
// certificate for the given host names and addresses. The certificate is created and
// renewed in memory. The server also sends the root certificate, for agents that know only
// its pin. A client certificate is optional, but a certificate that a client presents must
// be valid and issued by this authority.
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
	current *tls.Config // nil before the first connection
}

// config returns the TLS configuration for a connection. It creates or renews the server's
// certificate if necessary.
func (s *ownCertificate) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && !mtls.Due(s.current.Certificates[0].Leaf, s.authority.now()) {
		return s.current, nil
	}
	c, err := s.renewed()
	if err == nil {
		s.current = c
	} else if s.current == nil || s.authority.now().After(s.current.Certificates[0].Leaf.NotAfter) {
		return nil, fmt.Errorf("creating the server's certificate: %w", err)
	}
	return s.current, nil
}

func (s *ownCertificate) renewed() (*tls.Config, error) {
	a := s.authority
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := s.template
	leaf, err := a.sign(&template, key.Public(), serverLife)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		NextProtos:   protocols,
		Time:         func() time.Time { return a.now() },
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw, a.root.Raw}, PrivateKey: key, Leaf: leaf}},
		ClientAuth:   tls.VerifyClientCertIfGiven,
		ClientCAs:    mtls.Pool(a.root),
		// Small first TLS records speed up web pages, but only cost time here.
		DynamicRecordSizingDisabled: true,
		// Every connection must present its own certificate. A resumed session would reuse
		// an older one.
		SessionTicketsDisabled: true,
	}, nil
}
