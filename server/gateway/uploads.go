package gateway

import (
	"errors"
	"sync"
	"time"

	v1 "loadstar/proto/loadstar/v1"
)

// uploads holds incomplete results in memory. An agent that continues at another gateway
// must send its result from the start.
type uploads struct {
	most int64

	mu      sync.Mutex
	bytes   int64
	byAgent map[string]*upload // an agent has one upload at a time
}

type upload struct {
	checksum uint32
	numbers  []byte // received so far
	size     int64
	begun    time.Time
	touched  time.Time // last progress
}

// slow reports whether an upload has received so little on average that it would take longer
// than slowUpload, or less than leastRate.
func (x *upload) slow(now time.Time) bool {
	rate := max(leastRate, float64(x.size)/slowUpload.Seconds())
	return float64(len(x.numbers)) < rate*(now.Sub(x.begun)-slowest).Seconds()
}

const (
	uploadFor  = 2 * time.Minute
	slowUpload = 10 * time.Minute
)

var errUploads = errors.New("too many results are being uploaded; try again later")

func newUploads(most int64) *uploads { return &uploads{most: most, byAgent: map[string]*upload{}} }

// add stores a chunk of a result. It returns the numbers if they are complete, and
// otherwise the offset of the next chunk. The caller owns the numbers, and must call done when
// it no longer needs them.
func (u *uploads) add(agent string, r *v1.Result, now time.Time) (whole []byte, done func(), next int64, err error) {
	if r.Offset == 0 && int64(len(r.Chunk)) == r.Size {
		return r.Chunk, func() {}, 0, nil // the call's own limits apply
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	x := u.byAgent[agent]
	if x == nil || x.checksum != r.Checksum || x.size != r.Size {
		if x != nil {
			u.remove(agent)
		}
		if len(r.Chunk) == 0 && r.Size <= chunkBytes {
			return nil, nil, 0, nil // the next call has the whole result
		}
		if !u.room(r.Size, now) {
			return nil, nil, 0, errUploads
		}
		x = &upload{checksum: r.Checksum, size: r.Size, numbers: make([]byte, 0, r.Size), begun: now, touched: now}
		u.byAgent[agent] = x
		u.bytes += r.Size
	}
	if r.Offset != int64(len(x.numbers)) {
		return nil, nil, int64(len(x.numbers)), nil
	}
	if len(r.Chunk) > 0 {
		x.touched = now
	}
	x.numbers = append(x.numbers, r.Chunk...)
	if int64(len(x.numbers)) < x.size {
		return nil, nil, int64(len(x.numbers)), nil
	}
	delete(u.byAgent, agent)
	return x.numbers, func() { u.release(x.size) }, 0, nil
}

func (u *uploads) release(bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes -= bytes
}

// room reports whether there is memory for another upload. It discards slow uploads if
// necessary. It reserves memory for the whole result, so every upload that has begun can
// be completed.
func (u *uploads) room(bytes int64, now time.Time) bool {
	if u.bytes+bytes > u.most {
		for agent, x := range u.byAgent {
			if x.slow(now) {
				u.remove(agent)
			}
		}
	}
	return u.bytes+bytes <= u.most
}

func (u *uploads) remove(agent string) {
	u.bytes -= u.byAgent[agent].size
	delete(u.byAgent, agent)
}

// expire discards uploads that have made no progress for uploadFor.
func (u *uploads) expire(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for agent, x := range u.byAgent {
		if now.Sub(x.touched) > uploadFor {
			u.remove(agent)
		}
	}
}
