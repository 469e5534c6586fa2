// Package store keeps the readings of an agent's clients on disk, together with forecasts and
// observations of the weather. Readings are on a grid: a time is the start of a step in Unix
// seconds, and step n starts at n times the interval.
//
// The store is one bbolt file. Each day of a client is one value. [Store.Put] is one
// transaction, so its readings survive a crash once it has returned. A later reading of a step
// replaces an earlier one, and the store counts the replacements.
package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// Errors that callers distinguish.
var (
	// ErrLocked means that another process uses the file.
	ErrLocked = boltfile.ErrLocked
	// ErrDamaged means that the file's content is not what the store wrote.
	ErrDamaged = boltfile.ErrDamaged
)

// Quality describes a reading.
type Quality uint8

// The qualities, from best to worst.
const (
	OK        Quality = iota // measured
	Estimated                // partly measured
	Missing                  // no value
	Bad                      // a value that cannot be right; it is stored but not used
)

// Reading is the mean power of a client in one step.
type Reading struct {
	Client  string
	Time    int64 // start of the step, Unix seconds
	KW      float32
	Quality Quality
	// Revision orders the readings of a step. Revisions start at 1, and the reading with the
	// highest revision is used, regardless of the order of arrival. If Revision is 0, the
	// reading that arrives last is used.
	Revision int
}

// Config describes the grid and the limits of a store.
type Config struct {
	// Interval is the length of a step. It is fixed when the file is created.
	Interval time.Duration
	// Clock is the local time of the clients, which determines the weather at the same clock
	// time on other days.
	Clock *time.Location
	// Keep is how long readings are kept. If it is 0, they are kept for 800 days.
	Keep time.Duration
}

// Reason is the reason for refusing a reading.
type Reason string

const (
	BadName        Reason = "name"             // the client's name is empty, too long or contains control characters
	TooManyClients Reason = "too-many-clients" // the store has as many clients as it can hold
	OffGrid        Reason = "off-grid"         // the time is not the start of a step
	TooLate        Reason = "too-late"         // the step is older than 45 days
	Future         Reason = "future"           // the step ends more than 5 minutes ahead
	Before2015     Reason = "before-2015"      // the clock of the sender was not set
	BadValue       Reason = "value"            // the value is not a finite number, or too large
	BadRevision    Reason = "revision"         // the revision is negative or too large
)

// Refusal describes a reading that was not stored.
type Refusal struct {
	Index  int // index in the readings passed to Put
	Reason Reason
}

// Result is the outcome of Put.
type Result struct {
	Accepted  int // stored in a step that had no reading
	Corrected int // stored in place of another reading
	Unchanged int // already stored, or older than the stored reading
	Refused   []Refusal
}

func (r *Result) count(what outcome) {
	switch what {
	case accepted:
		r.Accepted++
	case corrected:
		r.Corrected++
	case unchanged:
		r.Unchanged++
	}
}

// Limits on what the store holds.
const (
	maxClients = 4096
	maxName    = 255  // bytes
	maxNote    = 4096 // bytes
	maxKW      = 1e7
	late       = 45 * 24 * time.Hour
	ahead      = 5 * time.Minute
	daySeconds = 24 * 3600
	// pruneAtOnce is the maximum number of a client's days that one transaction removes.
	pruneAtOnce = 16
)

// earliest is 2015-01-01. An earlier time is assumed to come from a clock that was not set.
var earliest = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// The buckets, with the types of their keys and values. Numbers in keys are big-endian, so
// that bbolt sorts them.
var (
	metaBucket    = []byte("meta")
	clientsBucket = []byte("clients")  // client -> revision
	daysBucket    = []byte("readings") // client -> bucket: UTC day -> day
	notesBucket   = []byte("notes")    // key -> note
	weatherBucket = []byte("weather")  // time -> outlooks
)

var (
	formatKey   = []byte("format")
	intervalKey = []byte("interval")
	namesKey    = []byte("weather names")
)

// format is the version of the file format. Open refuses files with another version.
const format = "1"

// Store is an open file. It is safe for concurrent use.
type Store struct {
	file     *boltfile.File
	interval int64 // seconds
	steps    int   // per day
	clock    *time.Location
	keepDays int64
	lost     []string

	changes  atomic.Uint64
	mu       sync.Mutex
	watchers []chan<- struct{}
}

// Open opens a store, and creates it and its folder if necessary. It checks everything in
// the file. A value that does not match its checksum is removed and listed by [Store.Lost],
// so one bad sector of a disk loses one day of one client.
func Open(path string, c Config) (*Store, error) {
	seconds := int64(c.Interval / time.Second)
	if c.Interval%time.Minute != 0 || seconds <= 0 || daySeconds%seconds != 0 {
		return nil, fmt.Errorf("interval %s: want whole minutes that divide a day", c.Interval)
	}
	c.Keep = cmp.Or(c.Keep, 800*24*time.Hour)
	if c.Keep < 2*late {
		return nil, fmt.Errorf("readings are kept for %s: want at least %s", c.Keep, 2*late)
	}
	if c.Clock == nil {
		c.Clock = time.UTC
	}
	file, err := boltfile.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Store{
		file: file, interval: seconds, steps: int(daySeconds / seconds), clock: c.Clock,
		keepDays: int64((c.Keep + daySeconds*time.Second - 1) / (daySeconds * time.Second)),
	}
	if err := file.Update(s.create); err != nil {
		_ = file.Close() // nothing was written
		return nil, err
	}
	if err := s.repair(); err != nil {
		_ = file.Close() // the first error is more useful
		return nil, err
	}
	return s, nil
}

// create creates the buckets of a new file, and refuses a file of another format or grid.
func (s *Store) create(tx *bolt.Tx) error {
	for _, name := range [][]byte{metaBucket, clientsBucket, daysBucket, notesBucket, weatherBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	switch got := meta.Get(formatKey); {
	case got == nil:
		if err := meta.Put(formatKey, []byte(format)); err != nil {
			return err
		}
	case string(got) != format:
		return fmt.Errorf("written by a newer Loadstar (format %s, this one reads up to %s): upgrade", got, format)
	}
	switch got := meta.Get(intervalKey); {
	case got == nil:
		return meta.Put(intervalKey, binary.BigEndian.AppendUint64(nil, uint64(s.interval)))
	case len(got) != 8:
		return fmt.Errorf("%w: the interval has %d bytes", ErrDamaged, len(got))
	default:
		if was := int64(binary.BigEndian.Uint64(got)); was != s.interval {
			return fmt.Errorf("the steps of the store are %d s, but %d s are requested; set the interval back, or move the file away to start a new one", was, s.interval)
		}
	}
	return nil
}

// Close closes the file. All readings from calls of Put are already on disk.
func (s *Store) Close() error { return s.file.Close() }

// Lost lists the values that Open found damaged and removed.
func (s *Store) Lost() []string { return s.lost }

// Notify makes the store send to c after each transaction that changed readings. The store does
// not wait. If c is full, it sends nothing.
func (s *Store) Notify(c chan<- struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers = append(s.watchers, c)
}

// Changes counts the transactions that changed readings since the store was opened.
func (s *Store) Changes() uint64 { return s.changes.Load() }

func (s *Store) changed() {
	s.changes.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.watchers {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// CheckName checks that a name is valid for a client.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("the name has %d bytes, want 1 to %d", len(name), maxName)
	case !utf8.ValidString(name):
		return errors.New("the name is not UTF-8")
	}
	for _, r := range name {
		if !unicode.IsPrint(r) {
			return errors.New("the name contains a character that cannot be printed")
		}
	}
	return nil
}

// Clients returns the names of all clients that have readings, sorted.
func (s *Store) Clients() ([]string, error) {
	var names []string
	err := s.file.View(func(tx *bolt.Tx) error {
		return tx.Bucket(daysBucket).ForEachBucket(func(name []byte) error {
			names = append(names, string(name))
			return nil
		})
	})
	slices.Sort(names)
	return names, err
}

// Note returns the note with a key, or nil.
func (s *Store) Note(key string) (note []byte, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		var err error
		note, err = getRecord(tx.Bucket(notesBucket), []byte(key))
		return err
	})
	return note, err
}

// putNotes stores notes and deletes empty ones.
func putNotes(tx *bolt.Tx, notes map[string][]byte) error {
	bucket := tx.Bucket(notesBucket)
	for key, note := range notes {
		if len(note) == 0 {
			if err := bucket.Delete([]byte(key)); err != nil {
				return err
			}
			continue
		}
		if len(note) > maxNote {
			return fmt.Errorf("the note %q has %d bytes, at most %d are stored", key, len(note), maxNote)
		}
		if err := putRecord(bucket, []byte(key), note); err != nil {
			return err
		}
	}
	return nil
}
