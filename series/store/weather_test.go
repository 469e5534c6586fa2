package store

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
)

func weatherStore(t *testing.T) *Store {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(filepath.Join(t.TempDir(), "r.db"), Config{Interval: 15 * time.Minute, Clock: berlin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func putWeatherRows(t *testing.T, s *Store, now int64, names []string, rows ...WeatherRow) Result {
	t.Helper()
	r, err := s.PutWeather(time.Unix(now, 0), names, rows)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// at returns the temperature and the mark of one step.
func at(t *testing.T, s *Store, time, asOf int64) (float32, Mark) {
	t.Helper()
	w, marks, err := s.Weather(time, time+quarter, asOf)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Names) == 0 {
		return nan(), Unknown
	}
	return w.Column("temperature")[0], marks[0]
}

func TestWeatherKnownThen(t *testing.T) {
	s := weatherStore(t)
	target := noon.Unix()
	temperature := []string{"temperature"}
	if w, marks, err := s.Weather(target, target+quarter, target); err != nil || len(w.Names) != 0 || marks != nil {
		t.Errorf("an empty store has weather: %v %v %v", w, marks, err)
	}
	// There is a forecast every hour for three days before the target, and an observation every
	// hour for two days after it.
	for h := int64(-72); h <= 48; h++ {
		issued := target + h*3600
		putWeatherRows(t, s, issued, temperature, WeatherRow{target, issued, []float32{float32(h)}})
	}
	for h := int64(-36); h <= 48; h += 6 { // learning issues forecasts at multiples of six hours
		got, mark := at(t, s, target, target+h*3600)
		want := float32(min(h, 0))
		if got != want || mark != Known {
			t.Errorf("as of %d hours: %g %d, want %g", h, got, mark, want)
		}
	}
	// A value applies for an hour, or until the next value if that value follows within three
	// hours.
	if got, mark := at(t, s, target+3*quarter, target+86400); got != 0 || mark != Known {
		t.Errorf("45 minutes later: %g %d", got, mark)
	}
	if got, mark := at(t, s, target+3600, target+86400); mark == Known {
		t.Errorf("an hour later: %g %d", got, mark)
	}
	putWeatherRows(t, s, target+86400, temperature, WeatherRow{target + 3*3600, target + 3*3600, []float32{5}})
	if got, mark := at(t, s, target+2*3600, target+86400); got != 0 || mark != Known {
		t.Errorf("two hours later: %g %d", got, mark)
	}
	// At most eight outlooks are kept for each time.
	if n := len(stored(t, s, target)); n != 8 {
		t.Errorf("%d outlooks are kept", n)
	}
}

func stored(t *testing.T, s *Store, at int64) []outlook {
	t.Helper()
	var all []outlook
	err := s.file.View(func(tx *bolt.Tx) error {
		k := knownWeather{bucket: tx.Bucket(weatherBucket)}
		return k.read(at, at+1, func(w weatherAt) { all = w.outlooks })
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWeatherFilled(t *testing.T) {
	s := weatherStore(t)
	names := []string{"temperature", "wind"}
	now := noon.Unix()
	// The weather was observed every hour for 40 days. Each value is the number of hours before
	// noon.
	var rows []WeatherRow
	for h := int64(1); h <= 40*24; h++ {
		rows = append(rows, WeatherRow{now - h*3600, now - h*3600, []float32{float32(h), nan()}})
	}
	if r := putWeatherRows(t, s, now, names, rows...); r.Accepted != len(rows) {
		t.Fatalf("%+v", r)
	}
	if got, mark := at(t, s, now+3600, now); got != 23 || mark != Unknown {
		t.Errorf("in one hour: %g %d, want 23 of yesterday, and the wind unknown", got, mark)
	}
	one := []string{"temperature"}
	s = weatherStore(t)
	for i := range rows {
		rows[i].Values = rows[i].Values[:1]
	}
	putWeatherRows(t, s, now, one, rows...)
	if got, mark := at(t, s, now+3600, now); got != 23 || mark != Persisted {
		t.Errorf("in one hour: %g %d, want 23 of yesterday", got, mark)
	}
	if got, mark := at(t, s, now+50*3600, now); got != 22 || mark != Persisted {
		t.Errorf("in 50 hours: %g %d, want 22 of three days before", got, mark)
	}
	// More than three days ahead, the mean for the month and hour is used. It includes 1 to 10
	// March at one o'clock.
	var sum float64
	for day := int64(1); day <= 10; day++ {
		sum += float64(24*day - 1)
	}
	if got, mark := at(t, s, now+10*86400+3600, now); got != float32((sum-239)/9) && got != float32(sum/10) || mark != Climatology {
		t.Errorf("in ten days: %g %d", got, mark)
	}
	if _, mark := at(t, s, now+150*86400, now); mark != Unknown {
		t.Errorf("in August: %d", mark)
	}
	// A forecast older than 48 hours is not used.
	target := now + 24*3600
	putWeatherRows(t, s, now, one, WeatherRow{target, now - 49*3600, []float32{99}})
	if _, mark := at(t, s, target, now); mark != Persisted {
		t.Errorf("used a forecast of 49 hours ago: %d", mark)
	}
	putWeatherRows(t, s, now, one, WeatherRow{target, now - 47*3600, []float32{98}})
	if got, mark := at(t, s, target, now); got != 98 || mark != Known {
		t.Errorf("a forecast of 47 hours ago: %g %d", got, mark)
	}
}

// TestWeatherClockChange checks that weather carried over from the day before is the weather at
// the same clock time, even on days of 23 and 25 hours.
func TestWeatherClockChange(t *testing.T) {
	for _, change := range []time.Time{time.Date(2026, 3, 29, 1, 0, 0, 0, time.UTC), time.Date(2025, 10, 26, 1, 0, 0, 0, time.UTC)} {
		s := weatherStore(t)
		now := change.Unix() - 4*3600
		var rows []WeatherRow
		for h := int64(0); h < 48; h++ {
			u := now - h*3600
			rows = append(rows, WeatherRow{u, u, []float32{float32(time.Unix(u, 0).In(s.clock).Hour())}})
		}
		putWeatherRows(t, s, now, []string{"temperature"}, rows...)
		for h := int64(1); h < 20; h++ {
			u := now + h*3600
			want := float32(time.Unix(u, 0).In(s.clock).Hour())
			if got, mark := at(t, s, u, now); got != want || mark != Persisted {
				t.Errorf("%s: %g %d, want %g", time.Unix(u, 0).In(s.clock), got, mark, want)
			}
		}
	}
}

func TestWeatherRefusals(t *testing.T) {
	s := weatherStore(t)
	now := noon.Unix()
	for _, c := range []struct {
		r    WeatherRow
		want Reason
	}{
		{WeatherRow{now + 30, now, []float32{1}}, OffGrid},
		{WeatherRow{0, now, []float32{1}}, Before2015},
		{WeatherRow{now + 21*86400, now, []float32{1}}, Future},
		{WeatherRow{now, now + 600, []float32{1}}, Future},
		{WeatherRow{now - 900*86400, now, []float32{1}}, TooLate},
		{WeatherRow{now, now, nil}, BadValue},
		{WeatherRow{now, now, []float32{1e9}}, BadValue},
	} {
		if r := putWeatherRows(t, s, now, []string{"temperature"}, c.r); len(r.Refused) != 1 || r.Refused[0].Reason != c.want {
			t.Errorf("%+v: %+v, want %s", c.r, r, c.want)
		}
	}
	var many []string
	for i := range maxColumns {
		many = append(many, fmt.Sprint("c", i))
	}
	for _, names := range [][]string{{"Temperature"}, {""}, {"a b"}, many} {
		if _, err := s.PutWeather(noon, names, nil); !errors.Is(err, ErrNames) {
			t.Errorf("%q: %v", names, err)
		}
	}
}

func FuzzOutlooks(f *testing.F) {
	f.Add(encodeOutlooks([]outlook{{1, []float32{1, nan()}}, {2, nil}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		all, err := decodeOutlooks(b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Error(err)
			}
			return
		}
		if !bytes.Equal(encodeOutlooks(all), b) {
			t.Error("it is encoded differently")
		}
		for _, o := range slices.Clone(all) {
			all = add(all, 10, o)
		}
	})
}
