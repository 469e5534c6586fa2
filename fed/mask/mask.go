// Package mask hides vectors of integers modulo 2^64 from the party that adds them up.
//
// An agent shares a member key with each keeper. The seed of a mask is a pseudo-random function
// of that key, of the agent's description of the round ([Context]), and of a nonce that is
// fresh for each stored result. A keeper with a different description therefore computes a
// different mask, and the sum is noise. The agent adds the masks of all keepers to its vector.
// Each keeper adds up its own masks of a round, and the server subtracts these sums.
//
// Masks are the same on all platforms. No function in this package allocates memory in
// proportion to a vector's length.
package mask

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"sync"
	"time"
)

// Key is the key that a member and a keeper share for one day.
type Key [32]byte

// Nonce makes the mask of a result different from that of any other result, even if an agent
// trains the same round twice.
type Nonce [16]byte

// Seed is a seed that is expanded to a mask or to random vectors.
type Seed [32]byte

// NewKey returns a random key.
func NewKey() (k Key) {
	_, _ = rand.Read(k[:]) // never fails
	return k
}

// NewNonce returns a random nonce.
func NewNonce() (n Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// Day returns the number of the UTC day. The key depends on the day.
func Day(t time.Time) int64 {
	s := t.Unix()
	day := s / 86400
	if s%86400 < 0 {
		day--
	}
	return day
}

// Next returns the key of the next day. The previous day's key cannot be computed from it.
func (k *Key) Next() (n Key) {
	derive((*[32]byte)(&n), k, []byte("loadstar/v1/next"))
	return n
}

// MAC returns the message authentication code of a message, which proves knowledge of the key.
func (k *Key) MAC(message []byte) (mac [32]byte) {
	derive(&mac, k, []byte("loadstar/v1/mac"), message)
	return mac
}

func derive(out *[32]byte, k *Key, parts ...[]byte) {
	h := hmac.New(sha256.New, k[:])
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(out[:0])
}

// Context describes the round and the result for which an agent computes a mask. Keeper and
// agent must agree on every field.
type Context struct {
	Fleet, Run, Agent      string
	Round, Version         int64
	Plan, Weights, Control string // hashes of blobs as hexadecimal SHA-256; Control may be empty
	Part, Clients          int64
	Length                 int64 // numbers in the vector
	Day                    int64 // day of the key
	Homes                  int64 // number of clients in the run, by which numbers are scaled
	Terms, Limits          [32]byte
}

// Terms are the promises on which an agent relies: the rules in a keeper's statement and the
// privacy settings of the plan. Quorums are in thousandths.
type Terms struct {
	Identity [32]byte // SHA-256 of the keeper's identity
	// Number is the number of the statement. A keeper that has lost its record of releases uses
	// a new number, so it cannot compute its earlier masks, even if members enrol again with
	// their earlier keys.
	Number                   int64
	Least, Quorum, Cell, Age int64 // rules of the keeper
	Invited                  bool
	PlanLeast, PlanQuorum    int64
	Check, Robust            string
	Keepers                  [][32]byte // keepers of the whole run, ascending
}

// Clip contains a task's limits, to which agents limit their clients' updates.
type Clip struct {
	Norm, Control, Loss, Coordinate float64
	Examples                        int64
}

// Block is a part of a vector whose norm is limited to Limit units for each client. Consecutive
// blocks cover the whole vector.
type Block struct{ Length, Limit int64 }

// fields encodes a sequence of fields. Each field is preceded by its length, so different
// sequences have different encodings.
type fields struct{ b []byte }

func (f *fields) text(all ...string) {
	for _, s := range all {
		f.b = binary.LittleEndian.AppendUint64(f.b, uint64(len(s)))
		f.b = append(f.b, s...)
	}
}

func (f *fields) number(all ...int64) {
	for _, x := range all {
		f.b = binary.LittleEndian.AppendUint64(f.b, 8)
		f.b = binary.LittleEndian.AppendUint64(f.b, uint64(x))
	}
}

// Hash returns the hash that a context contains.
func (t *Terms) Hash() [32]byte {
	var f fields
	f.text("loadstar/v1/terms", string(t.Identity[:]))
	f.number(t.Number, t.Least, t.Quorum, t.Cell, t.Age)
	invited := int64(0)
	if t.Invited {
		invited = 1
	}
	f.number(invited, t.PlanLeast, t.PlanQuorum)
	f.text(t.Check, t.Robust)
	f.number(int64(len(t.Keepers)))
	for i := range t.Keepers {
		f.text(string(t.Keepers[i][:]))
	}
	return sha256.Sum256(f.b)
}

// Limits returns the hash of the blocks and the limits, which a context contains. The hash must
// include the limits, because the blocks do not determine all of them. Otherwise, a server
// could give one agent tighter limits than the others, and the sum could still be unmasked.
func Limits(c Clip, blocks []Block) [32]byte {
	var f fields
	f.text("loadstar/v1/limits")
	for _, x := range []float64{c.Norm, c.Control, c.Loss, c.Coordinate} {
		f.number(int64(math.Float64bits(x)))
	}
	f.number(c.Examples)
	for _, b := range blocks {
		f.number(b.Length, b.Limit)
	}
	return sha256.Sum256(f.b)
}

// Append appends the encoded context.
func (c *Context) Append(b []byte) []byte {
	f := fields{b}
	f.text("loadstar/v1/mask", c.Fleet, c.Run, c.Agent)
	f.number(c.Round, c.Version)
	f.text(c.Plan, c.Weights, c.Control)
	f.number(c.Part, c.Clients, c.Length, c.Day, c.Homes)
	f.text(string(c.Terms[:]), string(c.Limits[:]))
	return f.b
}

// Seed returns the seed of a mask. The key must be that of the context's day.
func (k *Key) Seed(c *Context, n Nonce) (s Seed) {
	var room [1024]byte
	derive((*[32]byte)(&s), k, c.Append(room[:0]), n[:])
	return s
}

// Add adds the mask of the seed to v.
func (s *Seed) Add(v []uint64) { s.stream(v, 1) }

// Sub subtracts the mask of the seed from v.
func (s *Seed) Sub(v []uint64) { s.stream(v, -1) }

const chunk = 32 << 10

var (
	zeros   [chunk]byte
	buffers = sync.Pool{New: func() any { return new([chunk]byte) }}
)

// expand calls use with the AES-256-CTR key stream of a seed, in pieces for up to chunk/8
// numbers. The streams of different counters do not overlap.
func (s *Seed) expand(counter byte, length int, use func(at int, stream []byte)) {
	block, err := aes.NewCipher(s[:])
	if err != nil {
		panic(err) // the length of the key is correct
	}
	var iv [aes.BlockSize]byte
	iv[0] = counter
	c := cipher.NewCTR(block, iv[:])
	buf := buffers.Get().(*[chunk]byte)
	for at := 0; at < length; at += chunk / 8 {
		b := buf[:8*min(length-at, chunk/8)]
		c.XORKeyStream(b, zeros[:len(b)])
		use(at, b)
	}
	buffers.Put(buf)
}

func (s *Seed) stream(v []uint64, sign int) {
	s.expand(0, len(v), func(at int, b []byte) {
		part := v[at : at+len(b)/8]
		if sign > 0 {
			for i := range part {
				part[i] += binary.LittleEndian.Uint64(b[8*i:])
			}
			return
		}
		for i := range part {
			part[i] -= binary.LittleEndian.Uint64(b[8*i:])
		}
	})
}

// Sketch is the number of products that estimate a norm.
const Sketch = 32

// Products returns the scalar products, modulo 2^64, of v with the random vectors of a seed.
// Half of the elements of these vectors are 0, and the others are 1 or -1. The zeros are
// necessary: with only 1 and -1, two elements of 2^63 in v would always cancel out.
func (s *Seed) Products(v []uint64) (p [Sketch]uint64) {
	// Each bit of a byte selects one of eight vectors. x is added once to the sum for its byte
	// instead of eight times; the sums are combined at the end.
	var sums [Sketch / 8][256]uint64
	s.expand(1, len(v), func(at int, b []byte) {
		for i, x := range v[at : at+len(b)/8] {
			w := binary.LittleEndian.Uint64(b[8*i:])
			use, sign := uint32(w), uint32(w>>Sketch)
			plus, minus := use&^sign, use&sign
			sums[0][byte(plus)] += x
			sums[0][byte(minus)] -= x
			sums[1][byte(plus>>8)] += x
			sums[1][byte(minus>>8)] -= x
			sums[2][byte(plus>>16)] += x
			sums[2][byte(minus>>16)] -= x
			sums[3][byte(plus>>24)] += x
			sums[3][byte(minus>>24)] -= x
		}
	})
	for i := range p {
		for pattern, x := range sums[i/8] {
			if pattern>>(i%8)&1 == 1 {
				p[i] += x
			}
		}
	}
	return p
}

// Norm estimates the norm of a vector from its products, which are the products of the masked
// vector minus those of the masks. The average error of the estimate is an eighth.
func Norm(products *[Sketch]uint64) float64 {
	var sum float64
	for _, p := range products {
		x := float64(int64(p))
		sum += float64(x * x) // the conversion prevents fused operations, so the bits are the same everywhere
	}
	return math.Sqrt(2 * sum / Sketch)
}
