package fleetload

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sync"

	"loadstar/internal/protocol"
)

// numbers generates updates. The random values are generated once for each length; only the
// first two values differ between pushes. It is safe for concurrent use.
type numbers struct {
	mu      sync.Mutex
	drawn   map[int][]byte // random values, by length
	checked map[string]int // lengths of the blobs whose hash was verified, by name
	known   map[string][sha256.Size]byte
	spare   sync.Pool // of *[]byte
	scratch sync.Pool // contains *[64 << 10]byte
}

func draw(size int) []byte {
	b := make([]byte, 0, size)
	rng := rand.New(rand.NewPCG(1, uint64(size)))
	for range size / 4 {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(0.001*rng.NormFloat64())))
	}
	return b
}

// take returns an update with the given size in bytes, and its checksum. The update depends on
// the agent and the push. The caller returns the bytes with put.
func (n *numbers) take(size, agent int, push uint32) (*[]byte, uint32) {
	b, ok := n.spare.Get().(*[]byte)
	if !ok {
		b = new([]byte)
	}
	*b = append((*b)[:0], n.of(size)...)
	// Write two small values that identify the push, as small as those of a real update.
	for i, x := range []uint32{uint32(agent), push} {
		if 4*i < size {
			binary.LittleEndian.PutUint32((*b)[4*i:], math.Float32bits(float32(x&0xffff)/(1<<24)))
		}
	}
	return b, protocol.Checksum(*b)
}

func (n *numbers) of(size int) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.drawn[size]
	if b == nil {
		b = draw(size)
		if n.drawn == nil {
			n.drawn = map[int][]byte{}
		}
		n.drawn[size] = b
	}
	return b
}

func (n *numbers) put(b *[]byte) { n.spare.Put(b) }

// received returns the hash of a blob as a string and as bytes. It computes the hash of a blob
// once for all agents, because hashing would take CPU time from the server under test. Blobs of
// the same length with the same beginning and end are treated as equal.
func (n *numbers) received(b []byte) (hash string, sum []byte) {
	key := fmt.Sprintf("%d %x %x", len(b), b[:min(len(b), 32)], b[max(0, len(b)-32):])
	n.mu.Lock()
	known, ok := n.known[key]
	n.mu.Unlock()
	if !ok {
		known = sha256.Sum256(b)
		n.mu.Lock()
		if n.known == nil || len(n.known) > 64 {
			n.known = map[string][sha256.Size]byte{}
		}
		n.known[key] = known
		if n.checked == nil || len(n.checked) > 64 {
			n.checked = map[string]int{}
		}
		n.checked[hex.EncodeToString(known[:])] = len(b)
		n.mu.Unlock()
	}
	return hex.EncodeToString(known[:]), known[:]
}

// length returns the length of a blob that some agent has received.
func (n *numbers) length(hash string) (int, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	length, ok := n.checked[hash]
	return length, ok
}

// check reads a blob and returns its length. It checks the hash when it reads a blob for
// the first time, and after that only the length.
func (n *numbers) check(name string, r io.Reader) (int, error) {
	n.mu.Lock()
	length, ok := n.checked[name]
	n.mu.Unlock()
	if ok {
		buffer, had := n.scratch.Get().(*[64 << 10]byte)
		if !had {
			buffer = new([64 << 10]byte)
		}
		defer n.scratch.Put(buffer)
		got, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{limited(r)}, buffer[:])
		if err == nil && got != int64(length) {
			err = fmt.Errorf("got %d bytes, want %d as before", got, length)
		}
		return length, err
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(limited(r)); err != nil {
		return 0, err
	}
	if sum := sha256.Sum256(b.Bytes()); hex.EncodeToString(sum[:]) != name {
		return 0, fmt.Errorf("blob %s has a different hash", name)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.checked == nil || len(n.checked) > 64 {
		n.checked = map[string]int{} // agents do not fetch old versions again
	}
	n.checked[name] = b.Len()
	return b.Len(), nil
}
