package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// check returns the reason for refusing a reading, or an empty reason.
func (s *Store) check(now time.Time, r Reading) Reason {
	switch {
	case CheckName(r.Client) != nil:
		return BadName
	case r.Time < earliest:
		return Before2015
	case r.Time%s.interval != 0:
		return OffGrid
	case r.Time > now.Add(ahead).Unix()-s.interval:
		return Future
	case r.Time < now.Add(-late).Unix():
		return TooLate
	case r.Quality > Bad || math.Abs(float64(r.KW)) > maxKW:
		return BadValue
	case r.Revision < 0 || r.Revision > maxRevision+1:
		return BadRevision
	}
	return ""
}

// Put stores readings in one transaction. When it returns without an error, the readings are on
// disk. If a step has several readings, the last one is stored, unless they state revisions.
// Notes are stored under their keys in the same transaction; an empty note is deleted.
func (s *Store) Put(now time.Time, readings []Reading, notes map[string][]byte) (Result, error) {
	var (
		result Result
		order  []int // indexes of valid readings, by client and day
	)
	for i, r := range readings {
		if why := s.check(now, r); why != "" {
			result.Refused = append(result.Refused, Refusal{i, why})
		} else {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := readings[a], readings[b]
		return cmp.Or(strings.Compare(x.Client, y.Client), cmp.Compare(x.Time/daySeconds, y.Time/daySeconds))
	})
	if len(order) == 0 && len(notes) == 0 {
		return result, nil
	}
	err := s.file.Update(func(tx *bolt.Tx) error {
		for len(order) > 0 {
			client := readings[order[0]].Client
			n := 1
			for n < len(order) && readings[order[n]].Client == client {
				n++
			}
			if err := s.putClient(tx, client, readings, order[:n], &result); err != nil {
				return err
			}
			order = order[n:]
		}
		return putNotes(tx, notes)
	})
	if err != nil {
		return Result{}, err
	}
	slices.SortFunc(result.Refused, func(a, b Refusal) int { return cmp.Compare(a.Index, b.Index) })
	if result.Accepted+result.Corrected > 0 {
		s.changed()
	}
	return result, nil
}

// Mark changes the quality of stored readings of a client, given the starts of their steps, and
// stores notes in the same transaction. Steps without a value do not change. The readings keep
// their values and revisions.
func (s *Store) Mark(client string, qualities map[int64]Quality, notes map[string][]byte) error {
	changed := false
	err := s.file.Update(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(daysBucket).Bucket([]byte(client))
		if bucket == nil {
			return putNotes(tx, notes)
		}
		days := map[int64]day{}
		for at, quality := range qualities {
			number := at / daySeconds
			d, ok := days[number]
			if !ok {
				data := bucket.Get(dayKey(number))
				if data == nil {
					continue
				}
				stored, err := s.openDay(dayKey(number), data)
				if err != nil {
					return err
				}
				d = slices.Clone(stored)
				days[number] = d
			}
			step := int(at % daySeconds / s.interval)
			if e := d.get(step); e.quality != Missing && e.quality != quality {
				e.quality = quality
				d.set(step, e)
				changed = true
			}
		}
		for number, d := range days {
			if err := putRecord(bucket, dayKey(number), d); err != nil {
				return err
			}
		}
		if changed {
			if err := raise(tx, client); err != nil {
				return err
			}
		}
		return putNotes(tx, notes)
	})
	if err == nil && changed {
		s.changed()
	}
	return err
}

// clientBucket returns the bucket of a client and creates it unless the store has the
// maximum number of clients. It returns nil if the store is full.
func clientBucket(tx *bolt.Tx, client string) (*bolt.Bucket, error) {
	all := tx.Bucket(daysBucket)
	if b := all.Bucket([]byte(client)); b != nil {
		return b, nil
	}
	n := 0
	err := all.ForEachBucket(func([]byte) error {
		n++
		return nil
	})
	if err != nil || n >= maxClients {
		return nil, err
	}
	return all.CreateBucket([]byte(client))
}

// putClient stores the readings of one client; which lists their indexes for each day.
func (s *Store) putClient(tx *bolt.Tx, client string, readings []Reading, which []int, result *Result) error {
	bucket, err := clientBucket(tx, client)
	if err != nil {
		return err
	}
	if bucket == nil {
		for _, i := range which {
			result.Refused = append(result.Refused, Refusal{i, TooManyClients})
		}
		return nil
	}
	_, end, _, err := s.span(bucket)
	if err != nil {
		return err
	}
	past := false
	for len(which) > 0 {
		number := readings[which[0]].Time / daySeconds
		key := dayKey(number)
		d, err := s.dayOf(bucket, key)
		if err != nil {
			return err
		}
		dirty := false
		for len(which) > 0 && readings[which[0]].Time/daySeconds == number {
			r := readings[which[0]]
			which = which[1:]
			step := int(r.Time % daySeconds / s.interval)
			old := d.get(step)
			e, what := merge(old, r)
			result.count(what)
			if e.quality != old.quality || e.revision != old.revision || what != unchanged {
				d.set(step, e)
				dirty = true
			}
			past = past || what == corrected || what == accepted && r.Time < end
		}
		if dirty {
			if err := putRecord(bucket, key, d); err != nil {
				return err
			}
		}
	}
	if past {
		if err := raise(tx, client); err != nil {
			return err
		}
	}
	return s.prune(bucket)
}

// prune removes days of a client that are too old. Age is relative to the client's own newest
// day, and the store always keeps the configured number of days with readings. Therefore, a
// clock that was temporarily wrong, in either direction, does not cause days to be removed.
func (s *Store) prune(bucket *bolt.Bucket) error {
	newest, _ := bucket.Cursor().Last()
	if newest == nil {
		return nil
	}
	var old [][]byte
	n := int64(0)
	cursor := bucket.Cursor()
	for key, _ := cursor.First(); key != nil; key, _ = cursor.Next() {
		if n++; dayNumber(key) <= dayNumber(newest)-s.keepDays {
			old = append(old, slices.Clone(key))
		} else if len(old) == 0 {
			return nil // nothing is too old, so the count is not needed
		}
	}
	old = old[:min(int64(len(old)), max(n-s.keepDays, 0), pruneAtOnce)]
	for _, key := range old {
		if err := bucket.Delete(key); err != nil {
			return err
		}
	}
	return nil
}

// raise increments a client's revision.
func raise(tx *bolt.Tx, client string) error {
	n, err := revision(tx, client)
	if err != nil {
		return err
	}
	return putRecord(tx.Bucket(clientsBucket), []byte(client), binary.LittleEndian.AppendUint64(nil, n+1))
}

func revision(tx *bolt.Tx, client string) (uint64, error) {
	value, err := getRecord(tx.Bucket(clientsBucket), []byte(client))
	if err != nil || value == nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, errors.Join(ErrDamaged, errors.New("a revision does not have 8 bytes"))
	}
	return binary.LittleEndian.Uint64(value), nil
}

// Revision increases when a client's past changes, because a reading is corrected, its quality
// is changed by Mark, or it arrives for a step before the newest one.
func (s *Store) Revision(client string) (n uint64, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		n, err = revision(tx, client)
		return err
	})
	return n, err
}
