package store

import (
	"errors"
	"time"

	"loadstar/series"
)

// Store is an open file. It is safe for concurrent use.
type Store struct{}

// Open opens a store, and creates it if necessary.
func Open(path string, c Config) (*Store, error) { return nil, errors.ErrUnsupported }

// Close closes the file.
func (s *Store) Close() error { return errors.ErrUnsupported }

// Put stores readings in one transaction. When it returns without an error they are on disk.
// Notes are stored under their keys in the same transaction; an empty one is deleted.
func (s *Store) Put(now time.Time, readings []Reading, notes map[string][]byte) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// Note returns the note with a key, or nil.
func (s *Store) Note(key string) ([]byte, error) { return nil, errors.ErrUnsupported }

// Load returns the steps in [from, to), which must be on the grid: readings that are OK or
// Estimated, and NaN elsewhere.
func (s *Store) Load(client string, from, to int64) (series.Meter, error) {
	return series.Meter{}, errors.ErrUnsupported
}

// Qualities returns the quality of the steps in [from, to).
func (s *Store) Qualities(client string, from, to int64) ([]Quality, error) {
	return nil, errors.ErrUnsupported
}

// Span returns the start of a client's first step with a value and the end of its last one.
func (s *Store) Span(client string) (first, end int64, ok bool, err error) {
	return 0, 0, false, errors.ErrUnsupported
}

// Clients returns the names of all clients that have readings, sorted.
func (s *Store) Clients() ([]string, error) { return nil, errors.ErrUnsupported }

// Revision rises when a client's past changes: when a reading is corrected, or when one
// arrives for a step before the newest.
func (s *Store) Revision(client string) (uint64, error) { return 0, errors.ErrUnsupported }

// Notify makes the store send to c after each transaction that changed readings. It does not
// wait: if c is full, nothing is sent.
func (s *Store) Notify(c chan<- struct{}) {}

// Import stores the readings and the weather of a dataset where the store has none, and
// remembers the dataset's key, so that it is imported once. It reports whether it did
// something.
func (s *Store) Import(key string, d *series.Dataset) (bool, error) {
	return false, errors.ErrUnsupported
}

// PutWeather stores weather in one transaction. Each row has a value for each name, NaN
// where it is missing.
func (s *Store) PutWeather(now time.Time, names []string, rows []WeatherRow) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// Weather returns the weather of the steps in [from, to) as it was known at a time, with a
// mark for each step.
func (s *Store) Weather(from, to, asOf int64) (series.Weather, []Mark, error) {
	return series.Weather{}, nil, errors.ErrUnsupported
}

// Dataset returns the steps in [from, to) of the named clients as a dataset with the
// settings of site. Readings that are worse than the given quality are left out: OK for
// training, Estimated for forecasts.
func (s *Store) Dataset(site series.Dataset, clients []string, from, to int64, worst Quality) (*series.Dataset, error) {
	return nil, errors.ErrUnsupported
}
