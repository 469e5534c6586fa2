package fed

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// Rand returns the random source for one purpose in one round by one client. purpose and client
// may be empty, and round may be 0. Equal arguments give the same sequence of random numbers,
// no matter which other sources are in use.
func Rand(seed uint64, purpose string, round int, client ClientID) *rand.Rand {
	b := make([]byte, 0, 64)
	b = binary.LittleEndian.AppendUint64(b, seed)
	b = binary.LittleEndian.AppendUint64(b, uint64(round))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(purpose)))
	b = append(b, purpose...)
	b = append(b, client...)
	h := sha256.Sum256(b)
	return rand.New(rand.NewPCG(binary.LittleEndian.Uint64(h[:]), binary.LittleEndian.Uint64(h[8:])))
}
