package state

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"loadstar/internal/mtls"
)

// SecretFile is the name of the file that holds the agent's secret, in hexadecimal.
const SecretFile = "secret"

// Secret returns the secret from which the agent draws its clients' examples. The agent never
// sends it. If the folder has none, Secret creates one. With a new secret, the agent retrains
// lost turns on other examples, which does no harm.
func Secret(dir string) (secret [32]byte, err error) {
	path := filepath.Join(dir, SecretFile)
	if secret, err = ReadSecret(path); errors.Is(err, fs.ErrNotExist) {
		rand.Read(secret[:]) // never fails
		return secret, mtls.WritePrivate(path, fmt.Appendf(nil, "%x\n", secret))
	}
	return secret, err
}

// ReadSecret reads a file that Secret has written.
func ReadSecret(path string) (secret [32]byte, err error) {
	text, err := mtls.ReadPrivate(path)
	if err != nil {
		return secret, err
	}
	b, err := hex.DecodeString(string(bytes.TrimSpace(text)))
	if err != nil || len(b) != len(secret) {
		return secret, fmt.Errorf("%s: want %d hexadecimal digits; remove the file, so that the agent creates a new one", path, 2*len(secret))
	}
	return [32]byte(b), nil
}
