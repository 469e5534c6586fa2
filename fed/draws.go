package fed

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"math/rand/v2"
)

// Draws is the source of the random numbers that select a client's examples. Equal arguments
// give the same sequence, so a repeated turn has the same result.
type Draws interface {
	// Turn returns the source for one purpose in a client's turn.
	Turn(purpose string, t *Task, c ClientID) *rand.Rand
	// Division returns the source for a division of a client's n examples. The source is the
	// same in all rounds of a run.
	Division(t *Task, n int, c ClientID) *rand.Rand
}

// Seeded derives its sources from a plan's seed. Anyone who has the plan can predict the draws,
// so only the simulator and, for its own data, the server use Seeded.
type Seeded uint64

// Turn implements [Draws].
func (s Seeded) Turn(purpose string, t *Task, c ClientID) *rand.Rand {
	return Rand(uint64(s), purpose, t.Round, c)
}

// Division implements [Draws]. The source is the same for all clients with the same number of
// examples.
func (s Seeded) Division(_ *Task, n int, _ ClientID) *rand.Rand {
	return Rand(uint64(s), "query", n, "")
}

// Secret derives its sources from a secret of the agent and from everything on which training
// depends. A server cannot compute the draws, and cannot make a client repeat them with another
// plan, with other weights or in another run.
type Secret struct {
	Key  [32]byte
	Plan [32]byte // hash of the plan with all its settings
}

// Turn implements [Draws].
func (s *Secret) Turn(purpose string, t *Task, c ClientID) *rand.Rand {
	b := s.message(purpose, t, c)
	for _, x := range []uint64{
		uint64(t.Round), uint64(t.Version), math.Float64bits(t.Limits.Norm), math.Float64bits(t.Limits.Control),
		uint64(t.Limits.Examples), math.Float64bits(t.Limits.Loss), math.Float64bits(t.Limits.Coordinate),
	} {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return s.source(b, t.Shared, t.Control)
}

// Division implements [Draws].
func (s *Secret) Division(t *Task, n int, c ClientID) *rand.Rand {
	return s.source(binary.LittleEndian.AppendUint64(s.message("division", t, c), uint64(n)))
}

// message returns the first part of the source's input.
func (s *Secret) message(purpose string, t *Task, c ClientID) []byte {
	b := append(make([]byte, 0, 256), s.Plan[:]...)
	for _, text := range []string{purpose, t.Run, string(c)} {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(text))), text...)
	}
	return b
}

// source returns the source for a message that is followed by weights.
func (s *Secret) source(message []byte, weights ...[]float32) *rand.Rand {
	mac := hmac.New(sha256.New, s.Key[:])
	mac.Write(message)
	chunk := make([]byte, 0, 4096)
	for _, w := range weights {
		chunk = binary.LittleEndian.AppendUint64(chunk[:0], uint64(len(w)))
		for _, f := range w {
			if len(chunk) > cap(chunk)-4 {
				mac.Write(chunk)
				chunk = chunk[:0]
			}
			chunk = binary.LittleEndian.AppendUint32(chunk, math.Float32bits(f))
		}
		mac.Write(chunk)
	}
	return rand.New(rand.NewChaCha8([32]byte(mac.Sum(nil))))
}
