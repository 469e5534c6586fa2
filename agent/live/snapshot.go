package live

import (
	"math"

	"loadstar/fed/serve"
	"loadstar/forecast/issue"
	"loadstar/series"
	"loadstar/series/store"
)

// snapshot contains the clients' readings before a cutoff, and the weather. An issue reads both
// once, and uses them to make, score and judge its forecasts.
type snapshot struct {
	*inputs
	cutoff int64
	tails  *serve.Tails
	meters map[string]series.Meter
	// revisions contains the revision of each client's readings. It is taken before the readings
	// are read, so a later correction has a later revision.
	revisions map[string]uint64
	frames    map[*model]*serve.Frame
}

// snapshot reads the data for forecasts at a cutoff.
func (in *inputs) snapshot(clients []string, cutoff int64) (*snapshot, error) {
	s := &snapshot{inputs: in, cutoff: cutoff, meters: map[string]series.Meter{}, revisions: map[string]uint64{}, frames: map[*model]*serve.Frame{}}
	for _, name := range clients {
		var err error
		if s.revisions[name], err = in.c.Store.Revision(name); err != nil {
			return nil, err
		}
	}
	d, marks, err := in.dataset(clients, math.MinInt64, cutoff, cutoff)
	if err != nil {
		return nil, err
	}
	if s.tails, err = serve.NewTails(d, cutoff, in.ahead()); err != nil {
		return nil, err
	}
	worst := store.Known
	for _, mark := range marks {
		worst = max(worst, mark)
	}
	for _, name := range d.Weather.Names {
		switch worst {
		case store.Persisted:
			s.tails.Weather[name] = issue.WeatherPersisted
		case store.Climatology:
			s.tails.Weather[name] = issue.WeatherClimatology
		}
	}
	for i, name := range clients {
		if s.meters[name], err = s.tails.Meter(i); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// dataset returns weather and the readings, starting at begin, that the issues from a first cutoff
// to the last one use. Weather after the last cutoff is the weather as known at that time, and the
// marks give its origin.
func (in *inputs) dataset(names []string, begin, first, cutoff int64) (*series.Dataset, []store.Mark, error) {
	site, from := in.c.Site, max(serve.Tail(first), begin)
	var (
		marks []store.Mark
		err   error
	)
	if site.Weather, marks, err = in.c.Store.Weather(from, cutoff+int64(in.ahead())*in.seconds(), cutoff); err != nil {
		return nil, nil, err
	}
	d, err := in.c.Store.Dataset(site, names, from, cutoff, store.Estimated)
	return d, marks[min(len(marks), int((cutoff-from)/in.seconds())):], err
}

// history returns the readings of a client that issues from a first cutoff to the last one may use, or
// nil if it has none. They begin with the client's first reading, like the readings in a file.
func (in *inputs) history(name string, first, cutoff int64) (*series.Dataset, error) {
	begin, _, ok, err := in.c.Store.Span(name)
	begin = max(begin, 0)
	if err != nil || !ok || begin >= cutoff {
		return nil, err
	}
	d, _, err := in.dataset([]string{name}, begin, first, cutoff)
	return d, err
}

// load returns the load of a client in [from, to). It reads steps that the snapshot lacks from the
// store.
func (s *snapshot) load(client string, from, to int64) ([]float32, error) {
	m, ok := s.meters[client]
	if !ok || from < m.Start || to > s.cutoff {
		return s.stored(client, from, to)
	}
	return m.Load[(from-m.Start)/s.seconds() : (to-m.Start)/s.seconds()], nil
}

// forecaster returns a model with the weights and the readings of a client.
func (s *snapshot) forecaster(m *model, client string, c serve.Client) (issue.Forecaster, error) {
	frame := s.frames[m]
	if frame == nil {
		var err error
		if frame, err = m.serve.Frame(s.tails); err != nil {
			return nil, err
		}
		s.frames[m] = frame
	}
	return frame.Forecaster(s.meters[client], c), nil
}
