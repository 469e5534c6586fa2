package readings

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"loadstar/series"
	"loadstar/series/store"
)

// A client's bound is derived from its readings of the last boundDays, and is derived again after
// boundHolds.
const (
	boundDays  = 365
	boundHolds = time.Hour
	daySeconds = 24 * 3600
)

// bounds contains the largest possible load of each client in kW. All sources of readings
// share it.
type bounds struct {
	i  *Intake
	mu sync.Mutex
	of map[string]bound
}

type bound struct {
	kw    float64
	until time.Time
}

type boundNote struct {
	// Marked is the lowest bound beyond which readings were marked bad, or 0.
	Marked float64 `json:"marked,omitempty"`
	// Accepted is a bound that the owner accepted, at the Unix time At.
	Accepted float64 `json:"accepted,omitempty"`
	At       int64   `json:"at,omitempty"`
}

func boundKey(client string) string { return "bound/" + client }

func (b *bounds) note(client string) (n boundNote, err error) {
	data, err := b.i.c.Store.Note(boundKey(client))
	if err != nil || data == nil {
		return n, err
	}
	if err := json.Unmarshal(data, &n); err != nil {
		return boundNote{}, fmt.Errorf("the bound of client %s: %w", client, err)
	}
	return n, nil
}

func (n boundNote) encode() []byte {
	data, _ := json.Marshal(n) // the numbers are finite
	return data
}

// get returns the bound of a client, which is infinite until readings are known.
func (b *bounds) get(client string, c Client, now time.Time) (float64, error) {
	if c.Limit > 0 {
		return c.Limit, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x, ok := b.of[client]
	if ok && now.Before(x.until) && now.Add(2*boundHolds).After(x.until) {
		return x.kw, nil
	}
	kw, _, err := b.review(client, c, now)
	return kw, err
}

// review recomputes a client's bound. Bad readings within the new bound become good. Readings
// beyond the bound that arrived before it was known become bad; review returns their number. The
// caller must hold b.mu.
func (b *bounds) review(client string, c Client, now time.Time) (kw float64, bad int, err error) {
	step := int64(b.i.c.Interval / time.Second)
	to := now.Unix() / step * step
	values, qualities, err := b.i.c.Store.Values(client, max(to-boundDays*daySeconds, 0)/step*step, to)
	if err != nil {
		return 0, 0, err
	}
	n, err := b.note(client)
	if err != nil {
		return 0, 0, err
	}
	perDay := int(daySeconds / step)
	for i, q := range qualities {
		if q == store.Missing {
			values[i] = float32(math.NaN())
		}
	}
	kw = series.Bound(values, perDay)
	recent := max(len(values)-series.BoundSpan*perDay, 0)
	// A scale that fills half of 28 days becomes the client's new scale.
	if now := series.Bound(values[recent:], perDay); !math.IsInf(now, 1) {
		kw = max(kw, now)
	}
	if n.Accepted > 0 && to-n.At < boundDays*daySeconds {
		kw = max(kw, n.Accepted)
	}
	changed := map[int64]store.Quality{}
	for i := max(len(values)-int(maxAge/b.i.c.Interval), 0); i < len(values); i++ {
		v, at := values[i], to-int64(len(values)-i)*step
		switch beyond := series.Beyond(v, kw); {
		case beyond && qualities[i] <= store.Estimated:
			changed[at] = store.Bad
			bad++
		case !beyond && qualities[i] == store.Bad && n.Marked > 0 && series.Beyond(v, n.Marked) && (v >= 0 || c.Net):
			changed[at] = store.OK
		}
	}
	if len(changed) > 0 {
		after := n
		if bad > 0 && (n.Marked == 0 || kw < n.Marked) {
			after.Marked = kw
		}
		if err := b.i.c.Store.Mark(client, changed, map[string][]byte{boundKey(client): after.encode()}); err != nil {
			return 0, 0, err
		}
		b.i.c.Log("client %s: %d readings beyond the bound of its usual load are marked bad, %d are accepted; the bound is %.4g kW", client, bad, len(changed)-bad, kw)
	}
	b.of[client] = bound{kw, now.Add(boundHolds)}
	return kw, bad, nil
}

// judge marks readings beyond their clients' bounds as bad. It returns their indexes, and adds
// the records to store with them to notes.
func (b *bounds) judge(readings []store.Reading, clients map[string]Client, now time.Time, notes map[string][]byte) (bad []int, err error) {
	for i := range readings {
		r := &readings[i]
		if r.Quality > store.Estimated {
			continue
		}
		kw, err := b.get(r.Client, clients[r.Client], now)
		if err != nil {
			return nil, err
		}
		if !series.Beyond(r.KW, kw) {
			continue
		}
		r.Quality = store.Bad
		bad = append(bad, i)
		if _, ok := notes[boundKey(r.Client)]; ok {
			continue
		}
		n, err := b.note(r.Client)
		if err != nil {
			return nil, err
		}
		if n.Marked == 0 || kw < n.Marked {
			n.Marked = kw
			notes[boundKey(r.Client)] = n.encode()
		}
	}
	return bad, nil
}

// late marks readings that were stored before their client's bound was known. It returns
// their number.
func (b *bounds) late(client string, c Client, now time.Time) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x, ok := b.of[client]; c.Limit > 0 || ok && !math.IsInf(x.kw, 1) {
		return 0, nil
	}
	_, bad, err := b.review(client, c, now)
	return bad, err
}

// AcceptScale derives a new scale from a client's bad readings of the last 28 days, after the
// owner has confirmed them. It returns the number of accepted readings and the new bound in kW.
// Without bad readings, it returns an error.
func (i *Intake) AcceptScale(client string) (n int, kw float64, err error) {
	i.mu.Lock()
	c, ok := i.clients[client]
	i.mu.Unlock()
	switch {
	case !ok:
		return 0, 0, fmt.Errorf("%w: %s", ErrClient, client)
	case c.Limit > 0:
		return 0, 0, fmt.Errorf("client %s has a limit of %g kW in the agent's configuration; change limit there", client, c.Limit)
	}
	b := &i.bounds
	b.mu.Lock()
	defer b.mu.Unlock()
	now := i.c.Now()
	step := int64(i.c.Interval / time.Second)
	to := now.Unix() / step * step
	values, qualities, err := i.c.Store.Values(client, to-series.BoundSpan*daySeconds, to)
	if err != nil {
		return 0, 0, err
	}
	note, err := b.note(client)
	if err != nil {
		return 0, 0, err
	}
	var peaks []float64 // peaks of days with such readings
	perDay := int(daySeconds / step)
	for day := range slices.Chunk(values, perDay) {
		most := 0.0
		for k, v := range day {
			if qualities[k] == store.Bad && note.Marked > 0 && series.Beyond(v, note.Marked) {
				most = max(most, math.Abs(float64(v)))
				n++
			}
		}
		qualities = qualities[len(day):]
		if most > 0 {
			peaks = append(peaks, most)
		}
	}
	if n == 0 {
		return 0, 0, fmt.Errorf("client %s has no readings from the last %d days that were marked as impossible", client, series.BoundSpan)
	}
	slices.Sort(peaks)
	note.Accepted, note.At = 10*peaks[len(peaks)/2], to
	if _, err := i.c.Store.Put(now, nil, map[string][]byte{boundKey(client): note.encode()}); err != nil {
		return 0, 0, err
	}
	kw, _, err = b.review(client, c, now)
	return n, kw, err
}
