package live

import (
	"fmt"
	"strconv"
	"time"

	"loadstar/series"
	"loadstar/series/quality"
	"loadstar/series/store"
)

// checkedDays is the span that is checked. Only its last 7 days have findings.
const checkedDays = 35

// messages explain findings that prevent learning: the readings do not show the client's use of
// energy. Each finding has a message and advice.
var messages = map[quality.Code][2]string{
	"unit-jump": {
		"Low and high loads are many times those of the weeks before, or a small part of them.",
		"Check the unit of the meter's values and its transformer ratio.",
	},
	"flat": {
		"The load did not change for much longer than usual.",
		"Check whether the meter stands still or repeats its last value.",
	},
	"zeros-as-gaps": {
		"The load was 0 for much longer than usual.",
		"Check whether missing readings arrive as 0.",
	},
	"clock-shift": {
		"The daily profile is shifted by hours.",
		"Check the meter's clock and the time zone of its readings.",
	},
}

// Quality returns a report on a client's readings.
func (v *view) Quality(client string) (r QualityReport, err error) {
	x, err := v.Client(client)
	if err != nil {
		return r, err
	}
	if x.Members != nil {
		return r, fmt.Errorf("%s is a group; ask for its members: %w", client, ErrUnknown)
	}
	first, end, ok, err := v.c.Store.Span(client)
	if err != nil || !ok {
		return r, err
	}
	r = QualityReport{From: first, To: end}
	cutoff := v.floor(v.c.Now().Unix())
	from := max(first, cutoff-28*day)
	if from < cutoff {
		m, err := v.c.Store.Load(client, from, cutoff)
		if err != nil {
			return r, err
		}
		n := 0
		for _, v := range m.Load {
			if series.Missing(v) {
				n++
			}
		}
		r.Missing = float64(n) / float64(len(m.Load))
	}
	r.Findings, err = v.current(client)
	// Missing weather is not a fault of the readings. Lists show it as the forecast's reason.
	if a, ok := x.Reason.WeatherCost(); ok {
		r.Findings = append(r.Findings, Finding{Code: "no-weather", Message: a.Message, Advice: a.Advice})
	}
	return r, err
}

// currentFor is how long findings are shown before new readings are checked. Without new
// readings, unchangedFor applies.
const (
	currentFor   = 20 * time.Second
	unchangedFor = 10 * time.Minute
)

// checkedNow contains a client's findings at a given time.
type checkedNow struct {
	at       time.Time
	changes  uint64 // number of changes of the store
	findings []Finding
}

// current returns the current problems of a client's readings. All pages, lists, commands
// and reports show them. Learning depends on the findings at the start of the day instead.
func (v *view) current(client string) ([]Finding, error) {
	now, changes := v.c.Now(), v.c.Store.Changes()
	v.mu.RLock()
	x, ok := v.checks[client]
	v.mu.RUnlock()
	if age := now.Sub(x.at); ok && age >= 0 && (age < currentFor || age < unchangedFor && changes == x.changes) {
		return x.findings, nil
	}
	cutoff := v.floor(now.Unix())
	found, err := v.findings(v.stored, client, cutoff)
	if err != nil {
		return nil, err
	}
	bad, err := v.impossible(client, cutoff)
	if err != nil {
		return nil, err
	}
	found = append(bad, found...)
	v.mu.Lock()
	v.checks[client] = checkedNow{now, changes, found}
	v.mu.Unlock()
	return found, nil
}

// impossible returns a finding if some readings of the last week are marked bad.
func (in *inputs) impossible(client string, cutoff int64) ([]Finding, error) {
	step := in.seconds()
	from := max(in.floor(cutoff-28*day), 0)
	values, qualities, err := in.c.Store.Values(client, from, cutoff+step)
	if err != nil {
		return nil, err
	}
	var n int
	var first, last int64
	var most, usual float32
	for i, q := range qualities {
		v, at := values[i], from+int64(i)*step
		switch {
		case q <= store.Estimated:
			usual = max(usual, v, -v)
		case q == store.Bad && at >= cutoff-7*day:
			if n == 0 {
				first = at
			}
			n, last = n+1, at
			if max(v, -v) > max(most, -most) {
				most = v
			}
		}
	}
	if n == 0 {
		return nil, nil
	}
	when := func(unix int64) string { return time.Unix(unix, 0).In(in.c.Site.Clock).Format("2006-01-02 15:04") }
	span := "at " + when(first)
	if n > 1 {
		span = fmt.Sprintf("from %s to %s", when(first), when(last))
	}
	noun := "readings cannot be right and are not used"
	if n == 1 {
		noun = "reading cannot be right and is not used"
	}
	return []Finding{{
		Code:    "impossible",
		Message: fmt.Sprintf("%d %s, %s: up to %s kW, where the others of 28 days reach %s kW.", n, noun, span, figure(most), figure(usual)),
		Advice:  fmt.Sprintf("Check the meter, its unit and its transformer ratio. If the readings are right, accept the new scale: loadstar agent accept %s", client),
	}}, nil
}

// figure writes a load with at most four digits, unless it is large.
func figure(kw float32) string {
	if max(kw, -kw) >= 1000 {
		return strconv.FormatFloat(float64(kw), 'f', 0, 64)
	}
	return strconv.FormatFloat(float64(kw), 'g', 4, 64)
}

// findings checks the last week of a client's readings.
func (in *inputs) findings(read loads, client string, cutoff int64) ([]Finding, error) {
	first, end, ok, err := in.c.Store.Span(client)
	if err != nil || !ok {
		return nil, err
	}
	from, end := max(first, in.floor(cutoff-checkedDays*day)), min(end, cutoff)
	if from >= end {
		return nil, nil
	}
	load, err := read(client, from, end)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, code := range quality.Recent(load, in.c.Site.StepsPerDay()) {
		text := messages[code]
		out = append(out, Finding{Code: string(code), Message: text[0], Advice: text[1]})
	}
	return out, nil
}
