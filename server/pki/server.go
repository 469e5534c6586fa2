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

// hostname is what a certificate can name: labels with dots between, the first of
// which may be a star.
var hostname = regexp.MustCompile(`^(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$`)

// TLS returns the server's side of connections: TLS 1.3, HTTP/2 or HTTP/1.1, under a
// certificate for these host names and addresses that is made and renewed in memory.
// The root is sent along, for agents that know its pin alone. A client may show no
// certificate; one that it shows has to be of this authority and of this time.
//
// The settings are chosen for each connection: to change what TLS returned has no
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

// ownCertificate is the server's certificate, which it makes anew in time.
type ownCertificate struct {
	authority *Authority
	template  x509.Certificate

	mu      sync.Mutex
	current *tls.Config // nil before the first
}

// config returns the settings with a certificate that is not due.
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
		return nil, fmt.Errorf("making the server's certificate: %w", err)
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
		// Records of one size, as agents': short ones at first are for pages that people wait for.
		DynamicRecordSizingDisabled: true,
		// Every connection shows its certificate itself: none goes on with an older one's.
		SessionTicketsDisabled: true,
	}, nil
}
