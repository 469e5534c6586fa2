package outlook

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/internal/textfmt"

	"loadstar/forecast/issue"
)

// Summary describes the forecasts of a run.
type Summary struct {
	Dataset   string `json:"dataset"`
	Generated bool   `json:"generated"`
	Model     string `json:"model"`
	Version   string `json:"version,omitempty"`
	Meters    int    `json:"meters"`
	// Fitted is the number of meters to which personal layers were fitted or whose scaling was
	// computed, because the run did not include them.
	Fitted int `json:"fitted"`
	// From and To are the earliest and the latest cutoff.
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	Rows int       `json:"rows"`
	// Sources contains the number of rows by source, best first.
	Sources []Count `json:"sources"`
	// Reasons contains the number of rows that did not come from the model, by reason.
	Reasons []Count `json:"reasons,omitempty"`
	// LeftOut lists the meters without any forecast, up to 20 of them, and Without is their
	// number.
	Without int       `json:"meters_without_forecast"`
	LeftOut []LeftOut `json:"left_out,omitempty"`
	// Shapeless is the number of meters that lack the requested joint scenarios.
	Shapeless int `json:"meters_without_paths,omitempty"`
	// Weather is the cost of missing weather after the cutoff for a model that was trained
	// with weather.
	Weather *WeatherCost `json:"weather,omitempty"`
	// Sum is the sum of the meters' means, over the steps for which the most meters have a
	// forecast.
	Sum *Sum `json:"sum,omitempty"`

	asked issue.Source // the expected source of a row
	clock *time.Location
	sums  map[int64]sumAt
	bySrc map[issue.Source]int
	byWhy map[issue.Reason]int
	cold  map[issue.Reason]int // rows whose model works without the missing weather
}

// Count is a number of rows.
type Count struct {
	Name  string  `json:"name"`
	Rows  int     `json:"rows"`
	Share float64 `json:"share"`
}

// WeatherCost is a finding about rows whose model lacks weather. If there are several reasons,
// it describes the most frequent one.
type WeatherCost struct {
	Reason  issue.Reason `json:"reason"`
	Rows    int          `json:"rows"`
	Message string       `json:"message"`
	Advice  string       `json:"advice"`
}

// LeftOut is a meter without a forecast.
type LeftOut struct {
	Meter  string       `json:"meter"`
	Reason issue.Reason `json:"reason"`
}

// Sum is the sum of meters over time.
type Sum struct {
	Meters int         `json:"meters"`
	Energy float64     `json:"energy_kwh"`
	Peak   float64     `json:"peak_kw"`
	At     time.Time   `json:"peak_at"` // on the dataset's clock
	Times  []time.Time `json:"-"`
	Values []float64   `json:"-"`
}

type sumAt struct {
	kw float64
	n  int
}

// mostLeftOut is the number of meters without a forecast that a summary names.
const mostLeftOut = 20

func newSummary(c Config, meters int) *Summary {
	s := &Summary{
		Dataset: c.Dataset.Name, Generated: c.Dataset.Generated, Meters: meters,
		clock: c.Dataset.Clock, sums: map[int64]sumAt{}, bySrc: map[issue.Source]int{}, byWhy: map[issue.Reason]int{}, cold: map[issue.Reason]int{},
	}
	s.Model, s.Version = c.name()
	s.asked = issue.Model
	if c.Model == nil {
		s.asked = issue.Generic
	}
	return s
}

func (s *Summary) add(m made) {
	f := m.forecast
	if m.fitted {
		s.Fitted++
	}
	if m.shapeless {
		s.Shapeless++
	}
	at := time.Unix(f.Cutoff, 0).In(s.clock)
	if s.From.IsZero() || at.Before(s.From) {
		s.From = at
	}
	if at.After(s.To) {
		s.To = at
	}
	empty := true
	s.Rows += len(f.Rows)
	begin := 0 // start of the rows with the same source and reason
	for i, r := range f.Rows {
		if i+1 == len(f.Rows) || f.Rows[i+1].Source != r.Source || f.Rows[i+1].Reason != r.Reason {
			s.bySrc[r.Source] += i + 1 - begin
			if r.Source != s.asked {
				s.byWhy[r.Reason] += i + 1 - begin
			}
			if _, ok := r.Reason.WeatherCost(); ok {
				s.cold[r.Reason] += i + 1 - begin
			}
			begin = i + 1
		}
		if r.Source == issue.None {
			continue
		}
		empty = false
		x := s.sums[r.Time]
		s.sums[r.Time] = sumAt{x.kw + r.Mean, x.n + 1}
	}
	if empty {
		if s.Without++; len(s.LeftOut) < mostLeftOut {
			s.LeftOut = append(s.LeftOut, LeftOut{f.Client, f.Rows[0].Reason})
		}
	}
}

// finish computes the values that depend on all forecasts.
func (s *Summary) finish() {
	s.Sources = counts(s.bySrc, s.Rows)
	s.Reasons = why(s.byWhy, s.Rows)
	if cold := why(s.cold, s.Rows); len(cold) > 0 {
		reason := issue.Reason(cold[0].Name)
		a, _ := reason.WeatherCost() // other rows are not counted
		s.Weather = &WeatherCost{Reason: reason, Rows: cold[0].Rows, Message: a.Message, Advice: a.Advice}
	}
	most := 0
	for _, x := range s.sums {
		most = max(most, x.n)
	}
	var steps []int64
	for at, x := range s.sums {
		if x.n == most {
			steps = append(steps, at)
		}
	}
	if len(steps) == 0 {
		return
	}
	slices.Sort(steps)
	s.Sum = &Sum{Meters: most, Peak: math.Inf(-1)}
	hours := 1.0
	if len(steps) > 1 {
		hours = float64(steps[1]-steps[0]) / 3600
	}
	for _, at := range steps {
		when, kw := time.Unix(at, 0).In(s.clock), s.sums[at].kw
		s.Sum.Times, s.Sum.Values = append(s.Sum.Times, when), append(s.Sum.Values, kw)
		s.Sum.Energy += float64(kw * hours)
		if kw > s.Sum.Peak {
			s.Sum.Peak, s.Sum.At = kw, when
		}
	}
}

// Values returns the number of rows that have a forecast, and the number of rows that do not
// come from the model, with or without a forecast.
func (s *Summary) Values() (rows, fallbacks int) {
	rows = s.Rows - s.bySrc[issue.None]
	return rows, s.Rows - s.bySrc[s.asked]
}

const minute = "2006-01-02 15:04 -07:00"

// Print prints the summary for a terminal.
func (s *Summary) Print(w io.Writer) error {
	version := ""
	if s.Version != "" {
		version = ", version " + s.Version
	}
	fmt.Fprintf(w, "%s: %s, model %s%s%s\n", s.Dataset, textfmt.Count(s.Meters, "meter"), s.Model, version, textfmt.Synthetic(s.Generated))
	if s.From.Equal(s.To) {
		fmt.Fprintf(w, "known up to %s\n", s.To.Format(minute))
	} else {
		fmt.Fprintf(w, "known up to %s for the first meter, %s for the last\n", s.From.Format(minute), s.To.Format(minute))
	}
	fmt.Fprintf(w, "%s: %s\n", textfmt.Count(s.Rows, "row"), list(s.Sources))
	if len(s.Reasons) > 0 {
		fmt.Fprintf(w, "not from the model because of: %s\n", list(s.Reasons))
	}
	if s.Fitted > 0 {
		fmt.Fprintf(w, "%s did not take part in the run; personal layers and scaling are fitted to their own readings\n", textfmt.Count(s.Fitted, "meter"))
	}
	if s.Without > 0 {
		var names []string
		for _, l := range s.LeftOut {
			names = append(names, fmt.Sprintf("%s (%s)", l.Meter, l.Reason))
		}
		more := ""
		if n := s.Without - len(names); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		fmt.Fprintf(w, "no forecast for %s: %s%s\n", textfmt.Count(s.Without, "meter"), strings.Join(names, ", "), more)
	}
	if x := s.Weather; x != nil {
		fmt.Fprintf(w, "%s without weather (%s). %s %s\n", textfmt.Count(x.Rows, "row"), x.Reason, x.Message, x.Advice)
	}
	if s.Shapeless > 0 {
		fmt.Fprintf(w, "no scenarios for %s: they need the forecasts of at least %d earlier days with readings\n", textfmt.Count(s.Shapeless, "meter"), issue.LeastShapes)
	}
	if x := s.Sum; x != nil {
		fmt.Fprintf(w, "sum of the means of %s: %s kWh in %s, at most %s kW at %s\n", textfmt.Count(x.Meters, "meter"),
			amount(x.Energy), textfmt.Count(len(x.Values), "step"), amount(x.Peak), x.At.Format(minute))
	}
	return nil
}

// counts returns the numbers of rows by source, best first.
func counts(sources map[issue.Source]int, rows int) (all []Count) {
	for _, source := range issue.Ladder {
		if n := sources[source]; n > 0 {
			all = append(all, Count{string(source), n, float64(n) / float64(rows)})
		}
	}
	return all
}

// why returns the numbers of rows by reason, the most frequent first.
func why(reasons map[issue.Reason]int, rows int) (all []Count) {
	for reason, n := range reasons {
		all = append(all, Count{string(reason), n, float64(n) / float64(rows)})
	}
	slices.SortFunc(all, func(a, b Count) int { return cmp.Or(b.Rows-a.Rows, strings.Compare(a.Name, b.Name)) })
	return all
}

func list(counts []Count) string {
	var parts []string
	for _, c := range counts {
		parts = append(parts, fmt.Sprintf("%s %d (%.1f %%)", c.Name, c.Rows, 100*c.Share))
	}
	return strings.Join(parts, ", ")
}

// amount formats an energy or a power with four digits, or with all digits before the decimal
// point if there are more.
func amount(v float64) string {
	if math.Abs(v) < 1000 {
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
