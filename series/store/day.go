package store

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// bbolt has no checksums of its own. Every value starts with a version and ends with a checksum
// that includes its key, so that a value stored under the wrong key is also detected.
const (
	recordVersion  = 1
	recordOverhead = 1 + 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(key, data []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, data)
}

// seal adds a version and a checksum to a value.
func seal(key, value []byte) []byte {
	data := make([]byte, 0, len(value)+recordOverhead)
	data = append(data, recordVersion)
	data = append(data, value...)
	return binary.LittleEndian.AppendUint32(data, checksum(key, data))
}

// unseal returns a value without its version and checksum. The value is a slice of data.
func unseal(key, data []byte) ([]byte, error) {
	n := len(data) - 4
	if n < 1 || binary.LittleEndian.Uint32(data[n:]) != checksum(key, data[:n]) {
		return nil, fmt.Errorf("%w: a value does not match its checksum", ErrDamaged)
	}
	if data[0] != recordVersion {
		return nil, fmt.Errorf("a value was written by a newer Loadstar (version %d, this one reads %d): upgrade", data[0], recordVersion)
	}
	return data[1:n], nil
}

func putRecord(b *bolt.Bucket, key, value []byte) error { return b.Put(key, seal(key, value)) }

// getRecord returns a copy of the value under a key, or nil if there is none.
func getRecord(b *bolt.Bucket, key []byte) ([]byte, error) {
	data := b.Get(key)
	if data == nil {
		return nil, nil
	}
	value, err := unseal(key, data)
	return slices.Clone(value), err
}

// entryBytes is the size of a step in a day: the load as a float32, and a byte with 2 bits
// of quality and 6 bits that count the corrections.
const entryBytes = 5

const maxRevision = 63

// entry is one step of a day.
type entry struct {
	kw       float32
	quality  Quality
	revision int
}

// absent reports whether no reading has arrived for the step.
func (e entry) absent() bool { return e.quality == Missing && e.revision == 0 }

func nan() float32 { return math.Float32frombits(0x7fc00000) }

// day is the content of one value: the steps of a UTC day of one client.
type day []byte

// newDay returns a day without readings.
func newDay(steps int) day {
	d := make(day, steps*entryBytes)
	for i := range steps {
		d.set(i, entry{nan(), Missing, 0})
	}
	return d
}

func (d day) get(step int) entry {
	b := d[step*entryBytes:]
	return entry{
		kw:      math.Float32frombits(binary.LittleEndian.Uint32(b)),
		quality: Quality(b[4] & 3), revision: int(b[4] >> 2),
	}
}

func (d day) set(step int, e entry) {
	b := d[step*entryBytes:]
	binary.LittleEndian.PutUint32(b, math.Float32bits(e.kw))
	b[4] = byte(e.quality) | byte(e.revision)<<2
}

func dayKey(n int64) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }

func dayNumber(key []byte) int64 { return int64(binary.BigEndian.Uint32(key)) }

// openDay returns the steps of a stored day. They are valid until the transaction ends.
func (s *Store) openDay(key, data []byte) (day, error) {
	value, err := unseal(key, data)
	if err != nil {
		return nil, err
	}
	if len(value) != s.steps*entryBytes || len(key) != 4 {
		return nil, fmt.Errorf("%w: a day has %d bytes, want %d", ErrDamaged, len(value), s.steps*entryBytes)
	}
	return value, nil
}

// dayOf returns a copy of the steps of a client's day, which has no readings if the day is not
// stored.
func (s *Store) dayOf(client *bolt.Bucket, key []byte) (day, error) {
	d := newDay(s.steps)
	data := client.Get(key)
	if data == nil {
		return d, nil
	}
	stored, err := s.openDay(key, data)
	copy(d, stored)
	return d, err
}

// outcome is what merge did with a reading.
type outcome uint8

const (
	unchanged outcome = iota
	accepted
	corrected
)

// merge returns the entry of a step after the arrival of a reading. If readings state their
// revisions, the result does not depend on the order in which they arrive.
func merge(old entry, r Reading) (entry, outcome) {
	e := entry{r.KW, r.Quality, 0}
	if math.IsNaN(float64(r.KW)) || r.Quality == Missing {
		e.kw, e.quality = nan(), Missing
	}
	if e.kw == 0 {
		e.kw = 0 // minus zero would have different bits
	}
	same := old.quality == e.quality && (old.kw == e.kw || e.quality == Missing)
	if r.Revision == 0 {
		switch {
		case e.quality == Missing || same: // a missing value does not replace a stored one
			return old, unchanged
		case old.absent():
			return e, accepted
		}
		e.revision = min(old.revision+1, maxRevision)
		return e, corrected
	}
	e.revision = r.Revision - 1
	switch {
	case old.absent() && e.absent():
		return old, unchanged
	case old.absent():
		return e, accepted
	case e.revision < old.revision || e.revision == old.revision && (same || !better(e, old)):
		return old, unchanged
	case same:
		return e, unchanged
	}
	return e, corrected
}

// better decides between two readings with the same revision. A sender should not send both.
// The rule only makes the result independent of the order of arrival.
func better(a, b entry) bool {
	if a.quality != b.quality {
		return b.quality == Missing || a.quality != Missing && a.quality < b.quality
	}
	return a.kw > b.kw
}
