package demo

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	v1 "loadstar/proto/loadstar/v1"
	"loadstar/series"
)

// wire is the transport of an agent. It counts the bytes of all bodies that the agent
// sends, searches them for readings, and can cut off the agent.
type wire struct {
	base    http.RoundTripper
	looking *lookout

	bytes   atomic.Int64 // bytes of all bodies
	found   atomic.Int64 // readings found
	unread  atomic.Int64 // bodies that could not be searched, because they are encoded
	dead    atomic.Bool
	dieAt   atomic.Int64 // round at whose first result the agent dies, or -1
	once    sync.Once
	onDeath func()
}

var errDead = errors.New("this agent was killed")

// RoundTrip implements http.RoundTripper.
func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.Clone(r.Context()) // a transport must not change the request
	if w.dead.Load() || w.dies(q) {
		if r.Body != nil {
			_ = r.Body.Close() // the body was not sent
		}
		return nil, errDead
	}
	if q.Body == nil || q.Body == http.NoBody {
		return w.base.RoundTrip(q)
	}
	if e := q.Header.Get("Content-Encoding"); e != "" && e != "identity" {
		w.unread.Add(1)
	}
	again := q.GetBody
	q.Body = &watched{ReadCloser: q.Body, wire: w}
	if again != nil {
		q.GetBody = func() (io.ReadCloser, error) {
			b, err := again()
			return &watched{ReadCloser: b, wire: w}, err
		}
	}
	return w.base.RoundTrip(q)
}

// CloseIdleConnections makes http.Client.CloseIdleConnections work with this transport.
func (w *wire) CloseIdleConnections() {
	if c, ok := w.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// dies reports whether the agent dies with this request, and if so, marks it as dead. It may
// replace the body with a copy.
func (w *wire) dies(r *http.Request) bool {
	round := w.dieAt.Load()
	if round < 0 || r.Body == nil || !strings.HasSuffix(r.URL.Path, "/Exchange") {
		return false
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return false // the transport will report it
	}
	r.Body, r.GetBody = io.NopCloser(bytes.NewReader(data)), nil
	var q v1.ExchangeRequest
	if proto.Unmarshal(data, &q) != nil || q.Result == nil || q.Result.Round < round {
		return false
	}
	w.dead.Store(true)
	w.once.Do(func() { go w.onDeath() })
	return true
}

// watched is a body that is searched while it is sent. It may be closed during a read.
type watched struct {
	io.ReadCloser
	wire *wire
	mu   sync.Mutex
	rest []byte // bytes that were read but not searched yet, because a pair may span two reads
}

func (b *watched) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.wire.bytes.Add(int64(n))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rest = append(b.rest, p[:n]...)
	if done := len(b.rest) - window + 1; done > 0 {
		b.wire.found.Add(b.wire.looking.search(b.rest, done))
		b.rest = append(b.rest[:0], b.rest[done:]...)
	}
	return n, err
}

// Close searches the last bytes.
func (b *watched) Close() error {
	b.mu.Lock()
	b.wire.found.Add(b.wire.looking.search(b.rest, len(b.rest)))
	b.rest = nil
	b.mu.Unlock()
	return b.ReadCloser.Close()
}

// window is the length of the longest pattern, which is two numbers of 8 bytes.
const window = 16

// lookout finds pairs of consecutive readings in bytes. A single reading has only four bytes,
// which occur by chance among millions of weights. A pair of different readings does not.
type lookout struct {
	seen32, seen64 []uint64 // bits by hash, so that most bytes need only one lookup
	pairs32        map[uint64]struct{}
	pairs64        map[[2]uint64]struct{}
}

const lookoutBits = 22

func slot(x uint64) uint64 { return x * 0x9e3779b97f4a7c15 >> (64 - lookoutBits) }

// newLookout returns a lookout for all readings of a dataset, as numbers of 4 and of 8 bytes in
// the byte order of the protocol.
func newLookout(d *series.Dataset) *lookout {
	l := &lookout{
		seen32: make([]uint64, 1<<lookoutBits/64), seen64: make([]uint64, 1<<lookoutBits/64),
		pairs32: map[uint64]struct{}{}, pairs64: map[[2]uint64]struct{}{},
	}
	for i := range d.Len() {
		load := d.Meter(i).Load
		for k := 1; k < len(load); k++ {
			a, b := load[k-1], load[k]
			// Zeros and repeated values do not indicate readings, and missing readings have no
			// value.
			if a == b || a == 0 || b == 0 || series.Missing(a) || series.Missing(b) {
				continue
			}
			p32 := uint64(math.Float32bits(a)) | uint64(math.Float32bits(b))<<32
			l.pairs32[p32] = struct{}{}
			mark(l.seen32, p32)
			p64 := [2]uint64{math.Float64bits(float64(a)), math.Float64bits(float64(b))}
			l.pairs64[p64] = struct{}{}
			mark(l.seen64, p64[0])
		}
	}
	return l
}

func mark(seen []uint64, x uint64) { s := slot(x); seen[s/64] |= 1 << (s % 64) }

// search returns the number of pairs that begin in the first bytes of b, at any offset.
func (l *lookout) search(b []byte, first int) (found int64) {
	for i := range min(first, len(b)-7) {
		x := binary.LittleEndian.Uint64(b[i:])
		s := slot(x)
		bit := uint64(1) << (s % 64)
		if l.seen32[s/64]&bit != 0 {
			if _, ok := l.pairs32[x]; ok {
				found++
			}
		}
		if l.seen64[s/64]&bit != 0 && i+window <= len(b) {
			if _, ok := l.pairs64[[2]uint64{x, binary.LittleEndian.Uint64(b[i+8:])}]; ok {
				found++
			}
		}
	}
	return found
}
