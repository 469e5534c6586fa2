package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"

	"filippo.io/age"

	"loadstar/internal/mtls"
)

// Keys determines how an authority's private keys are stored. The zero value means plain
// files that only their owner can read.
type Keys struct {
	// Passphrase encrypts the files with keys, unless it is empty.
	Passphrase string
	// Signers hold the keys of issuers whose files contain only certificates. If there are
	// signers, a new issuer uses the first signer's key.
	Signers []*Signer

	certificatesOnly bool
}

// sealedType is the PEM type of age's armor, so that age itself can open a file.
const sealedType = "AGE ENCRYPTED FILE"

// errKey means that a key cannot be used, though its file is intact.
var errKey = errors.New("cannot use the key")

// scryptLog2 is the work factor of the passphrase. Deriving a key takes about a second on a
// server. Tests lower the work factor.
var scryptLog2 = 18

// seal encodes a private key in PEM for a file, and encrypts it if there is a passphrase.
func (k Keys) seal(key *ecdsa.PrivateKey) ([]byte, error) {
	text, err := (&mtls.Bundle{Key: key}).PEM()
	if err != nil || k.Passphrase == "" {
		return text, err
	}
	to, err := age.NewScryptRecipient(k.Passphrase)
	if err != nil {
		return nil, err
	}
	to.SetWorkFactor(scryptLog2)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, to)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: sealedType, Bytes: out.Bytes()}), nil
}

// unseal decrypts the key at the beginning of a file. If only certificates are needed, it
// removes the encrypted key instead.
func unseal(text []byte, k Keys) (plain []byte, sealed bool, err error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != sealedType {
		return text, false, nil
	}
	switch {
	case k.certificatesOnly:
		return rest, true, nil
	case k.Passphrase == "":
		return nil, true, fmt.Errorf("%w: it is encrypted; give its passphrase with --pki-passphrase-file, or as keys.passphrase_file in server.yaml", errKey)
	}
	by, err := age.NewScryptIdentity(k.Passphrase)
	if err != nil {
		return nil, true, err
	}
	r, err := age.Decrypt(bytes.NewReader(block.Bytes), by)
	if no := (*age.NoIdentityMatchError)(nil); errors.As(err, &no) {
		return nil, true, fmt.Errorf("%w: the passphrase is wrong", errKey)
	} else if err != nil {
		return nil, true, err
	}
	key, err := io.ReadAll(r)
	return append(key, rest...), true, err
}

// newKey returns the key of a new issuer.
func (k Keys) newKey() (crypto.Signer, error) {
	if len(k.Signers) > 0 {
		return k.Signers[0], nil
	}
	return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
}

// signer returns the external signer of a public key.
func (k Keys) signer(public crypto.PublicKey) (crypto.Signer, error) {
	for _, s := range k.Signers {
		if s.public.Equal(public) {
			return s, nil
		}
	}
	if len(k.Signers) == 0 {
		return nil, fmt.Errorf("%w: the file contains none; give the external signer that has it with --pki-signer, or in keys.signers of server.yaml", errKey)
	}
	return nil, fmt.Errorf("%w: none of the external signers (--pki-signer, or keys.signers in server.yaml) has it", errKey)
}
