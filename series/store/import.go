package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/series"
)

// Import stores the readings and the weather of a dataset for times without stored values. It
// also stores the key, so that a dataset is imported only once, and reports whether it imported
// the dataset. It imports only the part of the dataset that is newer than the store's retention
// period and ends no later than now. Impossible readings are stored as Bad.
func (s *Store) Import(key string, d *series.Dataset, now time.Time) (bool, error) {
	mark := append([]byte("imported "), key...)
	done := false
	err := s.file.View(func(tx *bolt.Tx) error {
		done = tx.Bucket(metaBucket).Get(mark) != nil
		return nil
	})
	if done || err != nil {
		return false, err
	}
	if d.Seconds() != s.interval {
		return false, fmt.Errorf("the steps of the history are %s, but those of the store are %s; prepare the history with the same interval", d.Interval, time.Duration(s.interval)*time.Second)
	}
	for i := range d.Len() {
		if err := s.importMeter(d.Meter(i), now); err != nil {
			return false, fmt.Errorf("import meter %s: %w", d.Meter(i).ID, err)
		}
	}
	if err := s.importWeather(d); err != nil {
		return false, fmt.Errorf("import weather: %w", err)
	}
	err = s.file.Update(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(mark, []byte{1}) })
	if err == nil {
		s.changed()
	}
	return err == nil, err
}

// importMeter stores a meter's readings in one transaction.
func (s *Store) importMeter(m series.Meter, now time.Time) error {
	if err := CheckName(m.ID); err != nil {
		return err
	}
	if m.Start%s.interval != 0 {
		return fmt.Errorf("its steps do not start at multiples of %d s in UTC", s.interval)
	}
	if over := len(m.Load) - int(s.keepDays)*s.steps; over > 0 {
		m.Load = m.Load[over:]
		m.Start += int64(over) * s.interval
	}
	if m.Start < earliest {
		return fmt.Errorf("it starts at %s, before 2015", time.Unix(m.Start, 0).UTC().Format(time.DateOnly))
	}
	if n := (now.Add(ahead).Unix() - m.Start) / s.interval; n < int64(len(m.Load)) {
		m.Load = m.Load[:max(n, 0)]
	}
	bad := series.Impossible(m.Load, s.steps)
	return s.file.Update(func(tx *bolt.Tx) error {
		bucket, err := clientBucket(tx, m.ID)
		if err != nil {
			return err
		}
		if bucket == nil {
			return fmt.Errorf("the store has %d clients and accepts no more", maxClients)
		}
		for i := 0; i < len(m.Load); {
			number := (m.Start + int64(i)*s.interval) / daySeconds
			key := dayKey(number)
			d, err := s.dayOf(bucket, key)
			if err != nil {
				return err
			}
			dirty := false
			for ; i < len(m.Load) && (m.Start+int64(i)*s.interval)/daySeconds == number; i++ {
				step := int((m.Start + int64(i)*s.interval) % daySeconds / s.interval)
				if v := m.Load[i]; v == v && v >= -maxKW && v <= maxKW && d.get(step).absent() {
					quality := OK
					if _, found := slices.BinarySearch(bad, i); found {
						quality = Bad
					}
					d.set(step, entry{v, quality, 0})
					dirty = true
				}
			}
			if dirty {
				if err := putRecord(bucket, key, d); err != nil {
					return err
				}
			}
		}
		return raise(tx, m.ID)
	})
}

func (s *Store) importWeather(d *series.Dataset) error {
	w := d.Weather
	if len(w.Names) == 0 {
		return nil
	}
	_, to := d.Span()
	now := time.Unix(to, 0)
	var rows []WeatherRow
	for i := range w.Columns[0] {
		at := w.Start + int64(i)*s.interval
		if at >= to || at < to-s.keepDays*daySeconds {
			continue
		}
		r := WeatherRow{Time: at, Issued: at}
		for _, c := range w.Columns {
			r.Values = append(r.Values, c[i])
		}
		rows = append(rows, r)
	}
	for part := range slices.Chunk(rows, 5000) {
		if _, err := s.PutWeather(now, w.Names, part); err != nil {
			return err
		}
	}
	return nil
}

// repair removes all values that do not match their checksums. Damage to bbolt's own pages
// cannot be repaired; Open returns an error.
func (s *Store) repair() error {
	type place struct{ bucket, client, key []byte }
	var bad []place
	err := s.file.View(func(tx *bolt.Tx) error {
		if _, err := weatherNames(tx); err != nil {
			return err
		}
		note := func(bucket, client, key []byte, what string) {
			bad = append(bad, place{slices.Clone(bucket), slices.Clone(client), slices.Clone(key)})
			s.lost = append(s.lost, what)
		}
		for _, name := range [][]byte{clientsBucket, notesBucket, weatherBucket} {
			err := tx.Bucket(name).ForEach(func(key, data []byte) error {
				value, err := unseal(key, data)
				if err == nil && string(name) == string(weatherBucket) {
					_, err = decodeOutlooks(value)
				}
				if err != nil && !errors.Is(err, ErrDamaged) {
					return err // a newer version wrote it
				}
				if err != nil || string(name) == string(weatherBucket) && len(key) != 8 {
					note(name, nil, key, fmt.Sprintf("%s: %q", name, key))
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		all := tx.Bucket(daysBucket)
		return all.ForEachBucket(func(client []byte) error {
			return all.Bucket(client).ForEach(func(key, data []byte) error {
				if _, err := s.openDay(key, data); !errors.Is(err, ErrDamaged) {
					return err // nil, or the error that a newer version wrote it
				}
				day := "a day"
				if len(key) == 4 {
					day = time.Unix(int64(binary.BigEndian.Uint32(key))*daySeconds, 0).UTC().Format(time.DateOnly)
				}
				note(daysBucket, client, key, fmt.Sprintf("readings of client %s on %s", client, day))
				return nil
			})
		})
	})
	if err != nil || len(bad) == 0 {
		return err
	}
	return s.file.Update(func(tx *bolt.Tx) error {
		for _, p := range bad {
			bucket := tx.Bucket(p.bucket)
			if p.client != nil {
				bucket = bucket.Bucket(p.client)
			}
			if err := bucket.Delete(p.key); err != nil {
				return err
			}
		}
		return nil
	})
}
