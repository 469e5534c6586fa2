package mtls

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"time"
)

// Pinned returns a TLS configuration for two parties that know each other's public key, without
// an authority. It calls allow with the SHA-256 of the peer's Ed25519 key. The configuration
// works for both sides of a connection. The certificate has no meaning beyond its key.
func Pinned(key ed25519.PrivateKey, allow func(sha [sha256.Size]byte) bool) (*tls.Config, error) {
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true, // VerifyConnection checks the key, and the handshake proves that the peer has it
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) != 1 {
				return errors.New("want one certificate")
			}
			other, ok := s.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			if !ok || !allow(sha256.Sum256(other)) {
				return errors.New("the other side's key is not the one that is pinned")
			}
			return nil
		},
	}, nil
}
