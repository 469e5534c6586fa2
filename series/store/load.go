package store

import (
	"bytes"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"loadstar/series"
)

// maxSpan is the maximum span of one call, ten years.
const maxSpan = 3660 * daySeconds

// each calls do for the steps in [from, to) whose days are stored, with the index of each step.
func (s *Store) each(client string, from, to int64, do func(i int, e entry)) error {
	if from%s.interval != 0 || to%s.interval != 0 || from < 0 || to < from || to-from > maxSpan {
		return fmt.Errorf("steps from %d to %d: want a span of at most ten years aligned to %d s", from, to, s.interval)
	}
	return s.file.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(daysBucket).Bucket([]byte(client))
		if bucket == nil || to == from {
			return nil
		}
		last := dayKey((to - 1) / daySeconds)
		cursor := bucket.Cursor()
		for key, data := cursor.Seek(dayKey(from / daySeconds)); key != nil && bytes.Compare(key, last) <= 0; key, data = cursor.Next() {
			d, err := s.openDay(key, data)
			if err != nil {
				return fmt.Errorf("client %s: %w", client, err)
			}
			first := dayNumber(key) * daySeconds
			begin, end := max(from, first), min(to, first+daySeconds)
			for step := (begin - first) / s.interval; step < (end-first)/s.interval; step++ {
				do(int((first+step*s.interval-from)/s.interval), d.get(int(step)))
			}
		}
		return nil
	})
}

// load returns the steps in [from, to), with NaN for readings that are worse than the given
// quality.
func (s *Store) load(client string, from, to int64, worst Quality) (series.Meter, error) {
	m := series.Meter{ID: client, Start: from, Load: make([]float32, max(0, min(to-from, maxSpan))/s.interval)}
	for i := range m.Load {
		m.Load[i] = nan()
	}
	err := s.each(client, from, to, func(i int, e entry) {
		if e.quality <= worst {
			m.Load[i] = e.kw
		}
	})
	return m, err
}

// Load returns the steps in [from, to), which must be on the grid: readings that are OK or
// Estimated, and NaN elsewhere.
func (s *Store) Load(client string, from, to int64) (series.Meter, error) {
	return s.load(client, from, to, Estimated)
}

// Values returns the values of the steps in [from, to) with their qualities. Unlike
// [Store.Load], Values includes readings that are Bad.
func (s *Store) Values(client string, from, to int64) ([]float32, []Quality, error) {
	m, err := s.load(client, from, to, Bad)
	if err != nil {
		return nil, nil, err
	}
	q, err := s.Qualities(client, from, to)
	return m.Load, q, err
}

// Qualities returns the quality of the steps in [from, to).
func (s *Store) Qualities(client string, from, to int64) ([]Quality, error) {
	q := make([]Quality, max(0, min(to-from, maxSpan))/s.interval)
	for i := range q {
		q[i] = Missing
	}
	err := s.each(client, from, to, func(i int, e entry) { q[i] = e.quality })
	return q, err
}

// Dataset returns the steps in [from, to) of the named clients as a dataset with the settings
// of site. Readings that are worse than the given quality are left out. This quality is OK for
// training and Estimated for forecasts.
func (s *Store) Dataset(site series.Dataset, clients []string, from, to int64, worst Quality) (*series.Dataset, error) {
	meters := make([]series.Meter, len(clients))
	for i, c := range clients {
		var err error
		if meters[i], err = s.load(c, from, to, worst); err != nil {
			return nil, err
		}
		meters[i].Static = make([]float32, len(site.StaticNames))
		for j := range meters[i].Static {
			meters[i].Static[j] = nan()
		}
	}
	return series.NewDataset(site, meters)
}

// Span returns the start of a client's first step with a usable value and the end of the last
// such step.
func (s *Store) Span(client string) (first, end int64, ok bool, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(daysBucket).Bucket([]byte(client))
		if bucket == nil {
			return nil
		}
		first, end, ok, err = s.span(bucket)
		return err
	})
	return first, end, ok, err
}

func (s *Store) span(bucket *bolt.Bucket) (first, end int64, ok bool, err error) {
	cursor := bucket.Cursor()
	find := func(key, data []byte, next func() ([]byte, []byte), step, by int) (int64, error) {
		for ; key != nil; key, data = next() {
			d, err := s.openDay(key, data)
			if err != nil {
				return -1, err
			}
			for i := step; i >= 0 && i < s.steps; i += by {
				if d.get(i).quality <= Estimated {
					return dayNumber(key)*daySeconds + int64(i)*s.interval, nil
				}
			}
		}
		return -1, nil
	}
	key, data := cursor.First()
	if first, err = find(key, data, cursor.Next, 0, 1); err != nil || first < 0 {
		return 0, 0, false, err
	}
	key, data = cursor.Last()
	if end, err = find(key, data, cursor.Prev, s.steps-1, -1); err != nil {
		return 0, 0, false, err
	}
	return first, end + s.interval, true, nil
}
