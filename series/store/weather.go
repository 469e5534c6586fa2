package store

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
)

// WeatherRow is the weather at one time according to one weather forecast or observation.
type WeatherRow struct {
	Time   int64     // the time of the values, in Unix seconds
	Issued int64     // when the values were known; if this is at or after Time, the row is an observation
	Values []float32 // one for each name, NaN where missing
}

// Limits on the stored weather.
const (
	maxColumns      = 16
	weatherAhead    = 20 * 24 * time.Hour
	issueBlock      = 6 * 3600 // of the forecasts issued in six hours, the newest is kept
	forecastsKept   = 7        // forecasts of one time, in addition to an observation
	maxWeatherValue = 1e6
)

var columnName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,63}$`)

// outlook is one forecast or observation of the weather at a time.
type outlook struct {
	issued int64
	values []float32 // by column, NaN where missing; may be shorter than the columns
}

func (o outlook) value(column int) float32 {
	if column < len(o.values) {
		return o.values[column]
	}
	return nan()
}

// encodeOutlooks writes outlooks in order of issue time.
func encodeOutlooks(all []outlook) []byte {
	var b []byte
	for _, o := range all {
		b = binary.LittleEndian.AppendUint64(b, uint64(o.issued))
		b = append(b, byte(len(o.values)))
		for _, v := range o.values {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

func decodeOutlooks(b []byte) ([]outlook, error) {
	var all []outlook
	for len(b) > 0 {
		if len(b) < 9 || len(b) < 9+4*int(b[8]) || b[8] > maxColumns || len(all) > forecastsKept {
			return nil, fmt.Errorf("%w: weather does not have the length that it states", ErrDamaged)
		}
		o := outlook{int64(binary.LittleEndian.Uint64(b)), make([]float32, b[8])}
		b = b[9:]
		for i := range o.values {
			o.values[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
		}
		b = b[4*len(o.values):]
		all = append(all, o)
	}
	return all, nil
}

// add adds an outlook for a time to the stored ones, in order of issue time. It keeps the
// newest forecast of every six-hour period, because clients learn from forecasts made at these
// intervals. A replay therefore finds the weather that was known at the time, even if weather
// arrives every hour. It keeps the first observation, because replays may have used it.
func add(all []outlook, at int64, o outlook) []outlook {
	observed := func(o outlook) bool { return o.issued >= at }
	block := func(o outlook) int64 { return (o.issued + issueBlock - 1) / issueBlock }
	for i, old := range all {
		if observed(o) != observed(old) || !observed(o) && block(o) != block(old) {
			continue
		}
		switch {
		case old.issued == o.issued: // the same issue, whose columns may arrive separately
			all[i].values = join(o.values, old.values)
		case observed(o) && old.issued < o.issued: // fill values that the first observation lacked
			all[i].values = join(old.values, o.values)
		case observed(o):
			all[i] = outlook{o.issued, join(o.values, old.values)}
		case old.issued < o.issued:
			all[i] = outlook{o.issued, join(o.values, old.values)}
		}
		return all
	}
	all = append(all, o)
	slices.SortFunc(all, func(a, b outlook) int { return cmp.Compare(a.issued, b.issued) })
	forecasts := len(all)
	if observed(all[forecasts-1]) {
		forecasts--
	}
	if forecasts > forecastsKept {
		all = all[1:]
	}
	return all
}

// join returns the values of a, and the values of b where a has none.
func join(a, b []float32) []float32 {
	out := slices.Clone(a)
	for i, v := range b {
		if i >= len(out) {
			out = append(out, v)
		} else if out[i] != out[i] {
			out[i] = v
		}
	}
	return out
}

func timeKey(t int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t)) }

func weatherNames(tx *bolt.Tx) ([]string, error) {
	data, err := getRecord(tx.Bucket(metaBucket), namesKey)
	if err != nil || data == nil {
		return nil, err
	}
	var names []string
	if err := json.Unmarshal(data, &names); err != nil || len(names) > maxColumns {
		return nil, errors.Join(fmt.Errorf("%w: the names of the weather's columns", ErrDamaged), err)
	}
	return names, nil
}

// addNames returns the positions of the named columns among all stored columns, and stores new
// names.
func addNames(tx *bolt.Tx, names []string) ([]int, error) {
	all, err := weatherNames(tx)
	if err != nil {
		return nil, err
	}
	known := len(all)
	where := make([]int, len(names))
	for i, name := range names {
		if where[i] = slices.Index(all, name); where[i] >= 0 {
			continue
		}
		if !columnName.MatchString(name) {
			return nil, fmt.Errorf("weather column %.70q: want lower-case letters, digits and _", name)
		}
		if len(all) == maxColumns {
			return nil, fmt.Errorf("weather column %s is one too many; %d are stored", name, maxColumns)
		}
		where[i] = len(all)
		all = append(all, name)
	}
	if len(all) == known {
		return where, nil
	}
	data, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return where, putRecord(tx.Bucket(metaBucket), namesKey, data)
}

func (s *Store) checkWeather(now time.Time, names []string, r WeatherRow) Reason {
	switch {
	case r.Time < earliest:
		return Before2015
	case r.Time%60 != 0:
		return OffGrid
	case r.Time > now.Add(weatherAhead).Unix() || r.Issued > now.Add(ahead).Unix():
		return Future
	case r.Time < now.Unix()-s.keepDays*daySeconds || r.Issued < earliest:
		return TooLate
	case len(r.Values) != len(names):
		return BadValue
	}
	for _, v := range r.Values {
		if math.Abs(float64(v)) > maxWeatherValue {
			return BadValue
		}
	}
	return ""
}

// PutWeather stores weather in one transaction. It keeps up to eight outlooks for each
// time. It returns an error that wraps [ErrNames] if a name cannot be used.
func (s *Store) PutWeather(now time.Time, names []string, rows []WeatherRow) (Result, error) {
	var result Result
	err := s.file.Update(func(tx *bolt.Tx) error {
		where, err := addNames(tx, names)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrNames, err)
		}
		bucket := tx.Bucket(weatherBucket)
		for i, r := range rows {
			if why := s.checkWeather(now, names, r); why != "" {
				result.Refused = append(result.Refused, Refusal{i, why})
				continue
			}
			what, err := putWeather(bucket, where, r)
			if err != nil {
				return err
			}
			result.count(what)
		}
		return s.pruneWeather(bucket)
	})
	if err != nil {
		return Result{}, err
	}
	return result, nil
}

// ErrNames means that the names of weather columns cannot be used.
var ErrNames = errors.New("the weather was not stored")

func putWeather(bucket *bolt.Bucket, where []int, r WeatherRow) (outcome, error) {
	o := outlook{issued: r.Issued}
	for i, v := range r.Values {
		for len(o.values) <= where[i] {
			o.values = append(o.values, nan())
		}
		if v == v {
			o.values[where[i]] = v
		}
	}
	key := timeKey(r.Time)
	old, err := getRecord(bucket, key)
	if err != nil {
		return unchanged, err
	}
	all, err := decodeOutlooks(old)
	if err != nil {
		return unchanged, err
	}
	data := encodeOutlooks(add(all, r.Time, o))
	switch {
	case string(data) == string(old):
		return unchanged, nil
	case old == nil:
		return accepted, putRecord(bucket, key, data)
	}
	return corrected, putRecord(bucket, key, data)
}

// pruneWeather removes the weather of times that are too old.
func (s *Store) pruneWeather(bucket *bolt.Bucket) error {
	newest, _ := bucket.Cursor().Last()
	if newest == nil {
		return nil
	}
	before := int64(binary.BigEndian.Uint64(newest)) - s.keepDays*daySeconds - int64(weatherAhead/time.Second)
	var old [][]byte
	cursor := bucket.Cursor()
	for key, _ := cursor.First(); key != nil && len(old) < 1000 && int64(binary.BigEndian.Uint64(key)) < before; key, _ = cursor.Next() {
		old = append(old, slices.Clone(key))
	}
	for _, key := range old {
		if err := bucket.Delete(key); err != nil {
			return err
		}
	}
	return nil
}
