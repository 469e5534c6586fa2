package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"testing"
	"time"
)

func TestProvesOld(t *testing.T) {
	a, other := open(t), open(t)
	old := credentials(t, a, Identity{Agent, "7f3a"}, time.Hour)
	csr := request(t, newKey(t), &x509.CertificateRequest{})
	sign := func(key *ecdsa.PrivateKey, csr []byte) []byte {
		digest := sha256.Sum256(csr)
		s, err := ecdsa.SignASN1(rand.Reader, key, digest[:])
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a.now = func() time.Time { return time.Now().AddDate(1, 0, 0) } // the old certificate has expired
	who, serial, err := a.ProvesOld(csr, old.Leaf.Raw, sign(old.Key, csr))
	if err != nil || who != (Identity{Agent, "7f3a"}) || serial != Serial(old.Leaf) {
		t.Errorf("%v, %s, %v", who, serial, err)
	}
	stranger := credentials(t, other, Identity{Agent, "7f3a"}, time.Hour)
	user := credentials(t, other, Identity{Operator, "local"}, time.Hour)
	for name, c := range map[string]struct{ certificate, signature []byte }{
		"another key":          {old.Leaf.Raw, sign(newKey(t), csr)},
		"another request":      {old.Leaf.Raw, sign(old.Key, append([]byte{0}, csr...))},
		"no signature":         {old.Leaf.Raw, nil},
		"of another authority": {stranger.Leaf.Raw, sign(stranger.Key, csr)},
		"of a user":            {user.Leaf.Raw, sign(user.Key, csr)},
		"damaged":              {old.Leaf.Raw[1:], sign(old.Key, csr)},
		"too long":             {make([]byte, maxCertificate+1), nil},
	} {
		if who, _, err := a.ProvesOld(csr, c.certificate, c.signature); err == nil || who != (Identity{}) {
			t.Errorf("%s: %v, %v", name, who, err)
		}
	}
}
