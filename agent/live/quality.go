package live

import (
	"fmt"

	"loadstar/series"
	"loadstar/series/quality"
)

// checkedDays is the span that is checked; findings are those of its last 7 days.
const checkedDays = 35

// messages explain the findings that forbid learning from the readings: what they show is
// not the client's use of energy. Each has a message and an advice.
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
func (s *Service) Quality(client string) (r QualityReport, err error) {
	x, err := s.Client(client)
	if err != nil {
		return r, err
	}
	if x.Members != nil {
		return r, fmt.Errorf("%s is a group; ask for its members: %w", client, ErrUnknown)
	}
	first, end, ok, err := s.c.Store.Span(client)
	if err != nil || !ok {
		return r, err
	}
	r = QualityReport{From: first, To: end}
	// Missing weather is no fault of the readings, so it does not forbid to learn from them.
	defer func() {
		if a, ok := x.Reason.WeatherCost(); ok {
			r.Findings = append(r.Findings, Finding{Code: "no-weather", Message: a.Message, Advice: a.Advice})
		}
	}()
	cutoff := s.floor(s.c.Now().Unix())
	from := max(first, cutoff-28*day)
	if from < cutoff {
		m, err := s.c.Store.Load(client, from, cutoff)
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
	r.Findings, err = s.findings(client, cutoff)
	return r, err
}

// findings checks the last week of a client's readings.
func (s *Service) findings(client string, cutoff int64) ([]Finding, error) {
	first, end, ok, err := s.c.Store.Span(client)
	if err != nil || !ok {
		return nil, err
	}
	from, end := max(first, s.floor(cutoff-checkedDays*day)), min(end, cutoff)
	if from >= end {
		return nil, nil
	}
	m, err := s.c.Store.Load(client, from, end)
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, code := range quality.Recent(m.Load, s.c.Site.StepsPerDay()) {
		text := messages[code]
		out = append(out, Finding{Code: string(code), Message: text[0], Advice: text[1]})
	}
	return out, nil
}
