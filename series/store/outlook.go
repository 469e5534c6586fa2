package store

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/series"
)

// Mark is the origin of a step's weather.
type Mark uint8

// The marks, from best to worst.
const (
	Known       Mark = iota // observed, or from a weather forecast of the last 48 hours
	Persisted               // value at the same clock time one to three days before
	Climatology             // mean for the month and hour in the store
	Unknown                 // there is no value
)

const (
	// outlookAge is the maximum age of a forecast that is used for a time after the cutoff.
	outlookAge = 48 * 3600
	// hourHold is how long a value applies. If the next value follows within tableHold, the
	// value applies until that time, because some weather has values only every three hours.
	hourHold  = 3600
	tableHold = 3 * 3600
	// persistDays is the maximum number of days to go back to find weather at the same clock
	// time.
	persistDays = 3
)

// weatherAt is the stored weather of one time.
type weatherAt struct {
	time     int64
	outlooks []outlook
}

// value returns the newest value that was known at a time.
func (w *weatherAt) value(column int, asOf int64) float32 {
	for i := len(w.outlooks) - 1; i >= 0; i-- {
		o := w.outlooks[i]
		if o.issued > asOf || w.time > asOf && o.issued < asOf-outlookAge {
			continue
		}
		if v := o.value(column); v == v {
			return v
		}
	}
	return nan()
}

// Weather returns the weather of the steps in [from, to) as it was known at the time asOf. The
// mark of a step is the mark of its worst column. The weather of a step is the weather at its
// start. The result is empty if the store has no weather.
func (s *Store) Weather(from, to, asOf int64) (series.Weather, []Mark, error) {
	if from%s.interval != 0 || to%s.interval != 0 || from < 0 || to < from || to-from > maxSpan {
		return series.Weather{}, nil, fmt.Errorf("weather from %d to %d: want a span of at most ten years aligned to %d s", from, to, s.interval)
	}
	out := series.Weather{Start: from}
	var marks []Mark
	err := s.file.View(func(tx *bolt.Tx) error {
		var err error
		if out.Names, err = weatherNames(tx); err != nil || len(out.Names) == 0 {
			return err
		}
		known := knownWeather{clock: s.clock, asOf: asOf, bucket: tx.Bucket(weatherBucket)}
		err = known.read(from-(persistDays+1)*daySeconds, to+tableHold, func(w weatherAt) { known.all = append(known.all, w) })
		if err != nil {
			return err
		}
		n := int((to - from) / s.interval)
		marks = make([]Mark, n)
		for c := range out.Names {
			column := make([]float32, n)
			for i := range column {
				v, mark, err := known.fill(c, from+int64(i)*s.interval)
				if err != nil {
					return err
				}
				column[i] = v
				marks[i] = max(marks[i], mark)
			}
			out.Columns = append(out.Columns, column)
		}
		return nil
	})
	return out, marks, err
}

// knownWeather looks up the weather as it was known at a given time.
type knownWeather struct {
	clock  *time.Location
	asOf   int64
	bucket *bolt.Bucket
	all    []weatherAt // in ascending order of time
	means  map[climate]mean
}

// climate identifies a column, a month and an hour of the day.
type climate struct{ column, month, hour int }

type mean struct {
	sum float64
	n   int
}

// read calls do for the stored times in [from, to).
func (k *knownWeather) read(from, to int64, do func(weatherAt)) error {
	cursor := k.bucket.Cursor()
	for key, data := cursor.Seek(timeKey(max(from, 0))); key != nil; key, data = cursor.Next() {
		t := int64(binary.BigEndian.Uint64(key))
		if t >= to {
			return nil
		}
		value, err := unseal(key, data)
		if err != nil {
			return err
		}
		outlooks, err := decodeOutlooks(value)
		if err != nil {
			return err
		}
		do(weatherAt{t, outlooks})
	}
	return nil
}

// known returns the value at a time, or NaN.
func (k *knownWeather) known(column int, at int64) float32 {
	i, found := slices.BinarySearchFunc(k.all, at, func(w weatherAt, t int64) int { return int(min(max(w.time-t, -1), 1)) })
	if !found {
		i--
	}
	if i < 0 || at-k.all[i].time >= hourHold && (i+1 == len(k.all) || k.all[i+1].time-k.all[i].time > tableHold) {
		return nan()
	}
	return k.all[i].value(column, k.asOf)
}

// fill returns the value at a time, or its replacement.
func (k *knownWeather) fill(column int, at int64) (float32, Mark, error) {
	if v := k.known(column, at); v == v {
		return v, Known, nil
	}
	local := time.Unix(at, 0).In(k.clock)
	for days := 1; days <= persistDays; days++ {
		if v := k.known(column, local.AddDate(0, 0, -days).Unix()); v == v {
			return v, Persisted, nil
		}
	}
	if k.means == nil {
		if err := k.average(); err != nil {
			return 0, Unknown, err
		}
	}
	if m := k.means[climate{column, int(local.Month()), local.Hour()}]; m.n > 0 {
		return float32(m.sum / float64(m.n)), Climatology, nil
	}
	return nan(), Unknown, nil
}

// average computes the mean for each month and hour from the weather up to asOf.
func (k *knownWeather) average() error {
	k.means = map[climate]mean{}
	return k.read(0, k.asOf+1, func(w weatherAt) {
		local := time.Unix(w.time, 0).In(k.clock)
		for c := range maxColumns {
			if v := w.value(c, k.asOf); v == v {
				key := climate{c, int(local.Month()), local.Hour()}
				m := k.means[key]
				m.sum += float64(v)
				m.n++
				k.means[key] = m
			}
		}
	})
}
