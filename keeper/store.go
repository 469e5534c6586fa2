package keeper

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

// The buckets of keeper.db.
var (
	metaBucket     = []byte("meta")
	membersBucket  = []byte("members")
	codesBucket    = []byte("codes")
	plansBucket    = []byte("plans")
	releasesBucket = []byte("releases")
	checksBucket   = []byte("checks")
	logBucket      = []byte("log")
	metaKey        = []byte("meta")
)

// meta contains the data that exists once per keeper.
type meta struct {
	Fleet     string `json:"fleet"`
	Epoch     int64  `json:"epoch"`
	Serial    int64  `json:"serial"`   // number of the last enrolled key
	Releases  int64  `json:"releases"` // number of rounds ever released
	Cells     int64  `json:"cells"`
	Log       int64  `json:"log"`  // number of log entries
	Head      []byte `json:"head"` // hash of the newest log entry
	Day       int64  `json:"day"`  // day to which Count refers
	Count     int64  `json:"count"`
	Statement []byte `json:"statement,omitempty"` // signed
}

// memberRow is a member, without its key.
type memberRow struct {
	Serial  int64  `json:"serial"` // number of its key; 0 without a key
	Cell    int64  `json:"cell"`
	Since   int64  `json:"since"`
	Revoked bool   `json:"revoked,omitempty"`
	Code    []byte `json:"code,omitempty"` // SHA-256 of its invitation
}

type codeRow struct {
	Uses  int64  `json:"uses"` // remaining uses
	Until int64  `json:"until"`
	Note  string `json:"note,omitempty"`
}

type releaseRow struct {
	Request []byte  `json:"request"` // SHA-256 of the only request that the keeper answers
	Answer  []byte  `json:"answer"`  // SHA-256 of the sum of masks
	At      int64   `json:"at"`
	Agents  int64   `json:"agents"`
	Chosen  []int64 `json:"chosen,omitempty"`
}

type checkRow struct {
	Request  []byte  `json:"request"`  // SHA-256 of the judged result, with its context
	Products []byte  `json:"products"` // SHA-256 of the products
	Accepted bool    `json:"accepted"`
	Sketch   []int64 `json:"sketch,omitempty"` // products of the update; only if keepers choose results
	Day      int64   `json:"day"`
	reduced  []uint64
}

// Entry is an entry of the keeper's log. Each entry contains the hash of the previous entry, so
// that a missing entry is detected.
type Entry struct {
	Number   int64     `json:"number"`
	At       time.Time `json:"at"`
	Kind     string    `json:"kind"`
	Text     string    `json:"text"`
	Previous []byte    `json:"previous,omitempty"`
}

// state is the data that the keeper reads when it opens keeper.db.
type state struct {
	meta    meta
	members map[string]*memberRow
	checks  int // number of judged results
	current *v1.KeeperStatement
}

// store contains the keeper's durable data, on disk and in memory.
type store struct {
	options Options
	pin     member.Pin
	db      *boltfile.File
	ring    ring
	state
	stale bool // a write has failed, so memory and disk may differ
}

// load reads and checks every record.
func (s *store) load() error {
	next := state{members: map[string]*memberRow{}}
	err := s.db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{metaBucket, membersBucket, codesBucket, plansBucket, releasesBucket, checksBucket, logBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		found, err := boltfile.Get(tx.Bucket(metaBucket), metaKey, &next.meta)
		if err != nil {
			return err
		}
		if !found {
			if tx.Bucket(logBucket).Stats().KeyN > 0 {
				return fmt.Errorf("%w: it has a log without its head", boltfile.ErrDamaged)
			}
			next.meta = meta{Fleet: s.options.Fleet, Cells: 1}
			if err := boltfile.Put(tx.Bucket(metaBucket), metaKey, &next.meta); err != nil {
				return err
			}
		}
		return next.read(tx)
	})
	if err != nil {
		return err
	}
	if next.meta.Fleet != s.options.Fleet {
		return fmt.Errorf("the folder is of a keeper of fleet %q, not %q", next.meta.Fleet, s.options.Fleet)
	}
	s.state = next
	if err := s.repeat(); err != nil {
		return err
	}
	return s.readStatement()
}

// repeat compares keeper.db with the release that keys.db announces. If only this release is
// missing, the keeper died between the two writes, so repeat stores the release. If keeper.db
// lacks more than that, it was restored from a backup. All keys are then erased, because it is
// unknown what was released with them.
func (s *store) repeat() error {
	last := s.ring.last
	switch missing := last.Releases - s.state.meta.Releases; {
	case missing < 1:
		return nil
	case missing == 1:
		return s.update("repeat", func(c *change) error { return c.release(&last) })
	}
	s.options.Log.Warn("keeper.db is older than keys.db: it was restored from a backup. All members must enrol again")
	if err := s.ring.erase(s.options.random); err != nil {
		return err
	}
	return s.update("erase", func(c *change) error { return c.log("erase", "keeper.db is older than keys.db: all keys were removed") })
}

func (s *state) read(tx *bolt.Tx) error {
	err := boltfile.Each(tx.Bucket(membersBucket), func(name []byte, r *memberRow) error {
		s.members[string(name)] = r
		return nil
	})
	return errors.Join(err,
		boltfile.Each(tx.Bucket(codesBucket), func([]byte, *codeRow) error { return nil }),
		boltfile.Each(tx.Bucket(plansBucket), func([]byte, *string) error { return nil }),
		boltfile.Each(tx.Bucket(releasesBucket), func([]byte, *releaseRow) error { return nil }),
		boltfile.Each(tx.Bucket(checksBucket), func([]byte, *checkRow) error { s.checks++; return nil }),
		s.readLog(tx, nil))
}

// readLog checks the chain of the log, and calls do with each entry.
func (s *state) readLog(tx *bolt.Tx, do func(*Entry)) error {
	var count int64
	var head []byte
	err := boltfile.Each(tx.Bucket(logBucket), func(_ []byte, e *Entry) error {
		if count++; e.Number != count || string(e.Previous) != string(head) {
			return fmt.Errorf("%w: entry %d of the log does not follow the one before it", boltfile.ErrDamaged, count)
		}
		head = e.hash()
		if do != nil {
			do(e)
		}
		return nil
	})
	if err == nil && (count != s.meta.Log || string(head) != string(s.meta.Head)) {
		err = fmt.Errorf("%w: the log has %d entries, want %d, or another end", boltfile.ErrDamaged, count, s.meta.Log)
	}
	return err
}

func (e *Entry) hash() []byte {
	data, _ := json.Marshal(e) // never fails for these fields
	sum := sha256.Sum256(data)
	return sum[:]
}

// change is a write transaction. It works on a copy of the state, which replaces the state when
// the transaction is on disk.
type change struct {
	tx      *bolt.Tx
	meta    meta
	members map[string]*memberRow // changed members; nil means removed
	checks  int
	at      time.Time
}

// update makes a change and its log entry durable. step names the change for crash tests.
func (s *store) update(step string, do func(c *change) error) error {
	c := &change{meta: s.state.meta, members: map[string]*memberRow{}, checks: s.state.checks, at: s.options.Now().UTC()}
	s.options.step("before " + step)
	refused := false
	err := s.db.Update(func(tx *bolt.Tx) error {
		c.tx = tx
		if err := do(c); err != nil {
			refused = true
			return err
		}
		for name, r := range c.members {
			if err := boltfile.Put(tx.Bucket(membersBucket), []byte(name), r); err != nil {
				return err
			}
		}
		if err := boltfile.Put(tx.Bucket(metaBucket), metaKey, &c.meta); err != nil {
			return err
		}
		s.options.step("within " + step)
		return nil
	})
	if err != nil {
		s.stale = !refused
		return err
	}
	s.options.step("after " + step)
	s.state.meta, s.state.checks = c.meta, c.checks
	maps.Copy(s.state.members, c.members)
	return nil
}

// log adds an entry to the log, in the same transaction as the change that the entry describes.
func (c *change) log(kind, format string, a ...any) error {
	c.meta.Log++
	e := Entry{Number: c.meta.Log, At: c.at, Kind: kind, Text: fmt.Sprintf(format, a...), Previous: c.meta.Head}
	if err := boltfile.Put(c.tx.Bucket(logBucket), binary.BigEndian.AppendUint64(nil, uint64(e.Number)), &e); err != nil {
		return err
	}
	c.meta.Head = e.hash()
	return nil
}

func runKey(run string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(run))), run...)
}

func roundKey(run string, round int64) []byte {
	return binary.BigEndian.AppendUint64(runKey(run), uint64(round))
}

func checkKey(q *v1.MaskedRound, r *v1.MaskedResult) []byte {
	return binary.BigEndian.AppendUint64(append(roundKey(q.Run, q.Round), runKey(r.Agent)...), uint64(r.Part))
}

// newest returns the newest released round of a run, or -1.
func (s *store) newest(run string) (round int64, err error) {
	round = -1
	prefix := runKey(run)
	err = s.db.View(func(tx *bolt.Tx) error {
		c := tx.Bucket(releasesBucket).Cursor()
		key, _ := c.Seek(roundKey(run, -1)) // round -1 has the largest key, which no actual round has
		if key == nil {
			key, _ = c.Last()
		} else {
			key, _ = c.Prev()
		}
		if len(key) == len(prefix)+8 && slices.Equal(key[:len(prefix)], prefix) {
			round = int64(binary.BigEndian.Uint64(key[len(prefix):]))
		}
		return nil
	})
	return round, err
}

func (s *store) released(run string, round int64) (r *releaseRow, err error) {
	r = new(releaseRow)
	found := false
	err = s.db.View(func(tx *bolt.Tx) (err error) {
		found, err = boltfile.Get(tx.Bucket(releasesBucket), roundKey(run, round), r)
		return err
	})
	if !found {
		r = nil
	}
	return r, err
}
