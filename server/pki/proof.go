package pki

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"

	"loadstar/internal/mtls"
)

// maxCertificate is the maximum size, in bytes, of a certificate that a stranger sends.
const maxCertificate = 1 << 13

// ProvesOld checks that the sender of a certificate request has the key of an older
// certificate of this authority. It returns that certificate's identity and serial number.
// The certificate may have expired. The caller must check that the ledger knows the
// agent and has not revoked it.
func (a *Authority) ProvesOld(csrDER, certificateDER, signature []byte) (who Identity, serial string, err error) {
	if len(certificateDER) > maxCertificate {
		return who, "", fmt.Errorf("the old certificate has %d bytes, want at most %d", len(certificateDER), maxCertificate)
	}
	leaf, err := x509.ParseCertificate(certificateDER)
	if err != nil {
		return who, "", fmt.Errorf("the old certificate: %w", err)
	}
	if err := a.provable(leaf); err != nil {
		return who, "", fmt.Errorf("the old certificate: %w", err)
	}
	who, ok := identity(leaf)
	if !ok || who.Role != Agent {
		return Identity{}, "", errors.New("the old certificate is not an agent's")
	}
	key, ok := leaf.PublicKey.(*ecdsa.PublicKey)
	digest := sha256.Sum256(csrDER)
	if !ok || !ecdsa.VerifyASN1(key, digest[:], signature) {
		return Identity{}, "", errors.New("the signature is not by the key of the old certificate")
	}
	return who, Serial(leaf), nil
}

// provable returns an error unless this authority, or an issuer that it has retired, issued a
// client's certificate. It ignores expiry.
func (a *Authority) provable(leaf *x509.Certificate) error {
	has := a.has.Load()
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: mtls.Pool(append(has.certificates(), has.retired...)...), CurrentTime: leaf.NotAfter,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	return err
}
