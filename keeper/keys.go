package keeper

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/mask"
	"loadstar/internal/boltfile"
	"loadstar/internal/disk"
)

// The buckets of keys.db. A backup must not contain any of them.
var (
	keysBucket    = []byte("keys")
	sealingBucket = []byte("sealing")
	secretBucket  = []byte("secret")
	secretKey     = []byte("directions")
	lastKey       = []byte("last")
)

// lastRow announces a release before the release is in keeper.db, so that the keeper notices if
// keeper.db was restored from a backup.
type lastRow struct {
	Releases int64      `json:"releases"`
	Run      string     `json:"run"`
	Round    int64      `json:"round"`
	Row      releaseRow `json:"row"`
}

// keyRow is a member's key for a day. The keys of later days can be computed from it.
type keyRow struct {
	Serial int64  `json:"serial"`
	Day    int64  `json:"day"`
	Key    []byte `json:"key"`
}

// sealingRow is the private key of a statement. It decrypts all enrolments that were sealed for
// it, from which the member keys of all later days can be computed. The keeper therefore erases
// it like the member keys. Otherwise, a thief could unmask the rounds of all days since these
// enrolments.
type sealingRow struct {
	ID   int64  `json:"id"`
	Key  []byte `json:"key"`
	Used int64  `json:"used,omitempty"` // day of the first enrolment that it has opened; 0 if there is none
}

// ring contains the keys. They are also in memory, because a release needs all of them.
type ring struct {
	path    string
	file    *boltfile.File
	keys    map[string]keyRow
	sealing map[int64]sealingRow
	secret  []byte
	last    lastRow
	day     int64 // the keys are for this day or later
}

func (r *ring) open(path string, random io.Reader) (err error) {
	r.path = path
	if r.file, err = boltfile.Open(path); err != nil {
		return err
	}
	r.keys, r.sealing = map[string]keyRow{}, map[int64]sealingRow{}
	return r.file.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{keysBucket, sealingBucket, secretBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		found, err := boltfile.Get(tx.Bucket(secretBucket), secretKey, &r.secret)
		if err != nil {
			return err
		}
		if !found {
			r.secret = make([]byte, 32)
			if _, err := io.ReadFull(random, r.secret); err != nil {
				return err
			}
			if err := boltfile.Put(tx.Bucket(secretBucket), secretKey, r.secret); err != nil {
				return err
			}
		}
		r.last = lastRow{}
		if _, err := boltfile.Get(tx.Bucket(secretBucket), lastKey, &r.last); err != nil {
			return err
		}
		return errors.Join(
			boltfile.Each(tx.Bucket(keysBucket), func(name []byte, k *keyRow) error {
				if len(k.Key) != len(mask.Key{}) {
					return fmt.Errorf("%w: a key has %d bytes", boltfile.ErrDamaged, len(k.Key))
				}
				r.keys[string(name)] = *k
				return nil
			}),
			boltfile.Each(tx.Bucket(sealingBucket), func(_ []byte, s *sealingRow) error {
				r.sealing[s.ID] = *s
				return nil
			}))
	})
}

func (r *ring) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

// put stores keys of members.
func (r *ring) put(keys map[string]keyRow) error {
	err := r.file.Update(func(tx *bolt.Tx) error {
		for name, k := range keys {
			if err := boltfile.Put(tx.Bucket(keysBucket), []byte(name), &k); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		maps.Copy(r.keys, keys)
	}
	return err
}

// addSealing stores the private key of a new statement.
func (r *ring) addSealing(row sealingRow) error {
	err := r.file.Update(func(tx *bolt.Tx) error {
		return boltfile.Put(tx.Bucket(sealingBucket), fmt.Append(nil, row.ID), &row)
	})
	if err == nil {
		r.sealing[row.ID] = row
	}
	return err
}

// useSealing records that a sealing key has opened an enrolment.
func (r *ring) useSealing(id, day int64) error {
	row := r.sealing[id]
	if row.Used != 0 {
		return nil
	}
	row.Used = day
	return r.addSealing(row)
}

// on returns the key for a day.
func (k *keyRow) on(day int64) (key mask.Key, ok bool) {
	if day < k.Day || day-k.Day > longestAhead {
		return key, false
	}
	key = mask.Key(k.Key)
	for range day - k.Day {
		key = key.Next()
	}
	return key, true
}

// longestAhead limits the number of days for which keys are derived after a keeper was off.
const longestAhead = 10_000

// rotate replaces all keys for days before the given day with the keys of that day. bbolt
// leaves removed data in the file, so the keys move to a new file, and the old file is
// overwritten. Storage that remaps blocks, such as an SSD, may still contain the old keys, so
// this is only a best effort.
func (r *ring) rotate(day int64, members map[string]*memberRow, gate func(string)) error {
	old := func(k keyRow) bool { return k.Day < day }
	over := func(s sealingRow) bool { return s.Used != 0 && s.Used < day }
	if !slices.ContainsFunc(slices.Collect(maps.Values(r.keys)), old) && !slices.ContainsFunc(slices.Collect(maps.Values(r.sealing)), over) {
		r.day = day
		return nil
	}
	maps.DeleteFunc(r.sealing, func(_ int64, s sealingRow) bool { return over(s) })
	next := map[string]keyRow{}
	for name, k := range r.keys {
		if m := members[name]; m == nil || m.Serial != k.Serial {
			continue // the member was removed, or its enrolment was not completed
		}
		if k.Day < day {
			key, ok := k.on(day)
			if !ok {
				continue // no keeper is that old, so the clock was wrong
			}
			k = keyRow{k.Serial, day, key[:]}
		}
		next[name] = k
	}
	r.keys = next
	if err := r.move(gate); err != nil {
		return err
	}
	r.day = day
	return nil
}

// move writes the keys in memory to a new file, which replaces the current one.
func (r *ring) move(gate func(string)) error {
	fresh := r.path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := r.write(fresh, r.keys); err != nil {
		return err
	}
	gate("before rotation")
	return errors.Join(r.replace(fresh, gate), r.open(r.path, nil))
}

// replace closes the file, replaces it with another file, and overwrites the old file.
func (r *ring) replace(fresh string, gate func(string)) error {
	old, err := os.OpenFile(r.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer old.Close()
	if err := errors.Join(r.file.Close(), os.Rename(fresh, r.path), disk.SyncDir(filepath.Dir(r.path))); err != nil {
		return err
	}
	gate("within rotation")
	if err := overwrite(old); err != nil {
		return err
	}
	gate("after rotation")
	return nil
}

// write stores keys in a new file.
func (r *ring) write(path string, keys map[string]keyRow) error {
	f, err := boltfile.Open(path)
	if err != nil {
		return err
	}
	err = f.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{keysBucket, sealingBucket, secretBucket} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		for name, k := range keys {
			if err := boltfile.Put(tx.Bucket(keysBucket), []byte(name), &k); err != nil {
				return err
			}
		}
		for id, row := range r.sealing {
			if err := boltfile.Put(tx.Bucket(sealingBucket), fmt.Append(nil, id), &row); err != nil {
				return err
			}
		}
		return errors.Join(boltfile.Put(tx.Bucket(secretBucket), secretKey, r.secret), boltfile.Put(tx.Bucket(secretBucket), lastKey, &r.last))
	})
	return errors.Join(err, f.Close())
}

// announce stores the next release.
func (r *ring) announce(last lastRow) error {
	err := r.file.Update(func(tx *bolt.Tx) error { return boltfile.Put(tx.Bucket(secretBucket), lastKey, &last) })
	if err == nil {
		r.last = last
	}
	return err
}

// erase removes all keys, including those of statements, and draws a new secret.
func (r *ring) erase(random io.Reader) error {
	r.keys, r.sealing, r.last, r.secret = map[string]keyRow{}, map[int64]sealingRow{}, lastRow{}, make([]byte, 32)
	if _, err := io.ReadFull(random, r.secret); err != nil {
		return err
	}
	return r.move(func(string) {})
}

// overwrite replaces the content of a file that no longer has a name with zeros.
func overwrite(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	zeros := make([]byte, 1<<16)
	for at := int64(0); at < info.Size(); at += int64(len(zeros)) {
		if _, err := f.WriteAt(zeros[:min(int64(len(zeros)), info.Size()-at)], at); err != nil {
			return err
		}
	}
	return f.Sync()
}

// rotate replaces keys that are older than yesterday's, once a day.
func (s *store) rotate() error {
	day := s.options.today() - 1
	if day <= s.ring.day {
		return nil
	}
	if err := s.ring.rotate(day, s.members, s.options.step); err != nil {
		return fmt.Errorf("replacing the keys of earlier days: %w", err)
	}
	return s.update("forget", func(c *change) error { return c.forget(day) })
}

// forget removes judged results whose keys no longer exist, because their rounds cannot be
// released.
func (c *change) forget(day int64) error {
	b := c.tx.Bucket(checksBucket)
	var old [][]byte
	err := boltfile.Each(b, func(key []byte, r *checkRow) error {
		if r.Day < day {
			old = append(old, append([]byte(nil), key...))
		}
		return nil
	})
	for _, key := range old {
		err = errors.Join(err, b.Delete(key))
	}
	c.checks -= len(old)
	return err
}

func sum(parts ...[]byte) []byte {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}
