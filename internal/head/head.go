// Package head contains a server's signed statements about the weights of a run's versions.
// Each head contains the hash of the previous one. A server that shows different weights to two
// agents must sign two contradictory heads. As soon as one of these agents sees the other's
// chain, it has both heads.
package head

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"path/filepath"

	"loadstar/internal/mtls"
)

// Head identifies the weights of a version of a run.
type Head struct {
	Run     string
	Version int64
	Weights string // hash of the blob
	// Previous is the hash of the previous head, or empty for the first head.
	Previous  []byte
	Signature []byte
}

// statement returns the bytes that are signed. They contain the length of each part, so they
// are unambiguous.
func (h *Head) statement() []byte {
	b := []byte("loadstar head 1\n")
	for _, part := range [][]byte{[]byte(h.Run), []byte(h.Weights), h.Previous} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(part)))
		b = append(b, part...)
	}
	return binary.BigEndian.AppendUint64(b, uint64(h.Version))
}

// Hash identifies the head. It does not depend on the signature.
func (h *Head) Hash() []byte {
	sum := sha256.Sum256(h.statement())
	return sum[:]
}

// Sign sets the signature.
func (h *Head) Sign(key ed25519.PrivateKey) { h.Signature = ed25519.Sign(key, h.statement()) }

// Valid reports whether the key made the signature.
func (h *Head) Valid(key ed25519.PublicKey) bool {
	return len(key) == ed25519.PublicKeySize && ed25519.Verify(key, h.statement(), h.Signature)
}

// keyFile is the name of the file with a server's public key in the folder of an agent. The key
// is in hexadecimal.
const keyFile = "head-key"

// WriteKey stores the key of the server that an agent has joined.
func WriteKey(dir string, key ed25519.PublicKey) error {
	if len(key) != ed25519.PublicKeySize {
		return fmt.Errorf("the server's key has %d bytes, want %d", len(key), ed25519.PublicKeySize)
	}
	return mtls.WritePrivate(filepath.Join(dir, keyFile), fmt.Appendf(nil, "%x\n", []byte(key)))
}

// ReadKey reads the key that WriteKey has stored. The error wraps [fs.ErrNotExist] if there is
// none.
func ReadKey(dir string) (ed25519.PublicKey, error) {
	path := filepath.Join(dir, keyFile)
	text, err := mtls.ReadPrivate(path)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%s: want %d hexadecimal digits; remove the file and join again", path, 2*ed25519.PublicKeySize)
	}
	return key, nil
}
