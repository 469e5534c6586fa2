package report

import (
	"fmt"
	"math"
	"strings"
	"time"

	"loadstar/internal/textfmt"
	"loadstar/lab/run"
	"loadstar/metric"
)

// headline is the first screen's text about a dataset. The text states the errors, and compares
// them with the reference and with the strongest baseline.
type headline struct {
	Verdict string // short text
	Class   string // CSS class of the verdict
	Text    string
	Tiles   []tile
	Note    string // note that readers need to compare the tiles
	Foot    string // definition of the errors
}

// ErrorNote defines the errors in per cent in reports and in the output of simulate.
const ErrorNote = "Error of the mean load: a client's mean absolute error divided by its mean load, as a mean over clients. Lower by x\u00a0%: the median over clients of the ratio of two errors is 1 − x\u00a0%."

// tile is a number with a label and a note that explain it.
type tile struct{ Value, Label, Note string }

// comparison compares two methods client by client.
type comparison struct {
	ratio   float64 // median over clients of the ratio of errors
	won     float64 // share of clients with a lower error
	clients int
}

// compare returns the comparison of two methods over the clients that both scored. It divides
// relative errors, because methods may have forecast different targets.
func compare(ours, theirs map[string]float64) comparison {
	var ratios []float64
	won := 0
	for name, a := range ours {
		if b := theirs[name]; b > 0 && !math.IsInf(b, 0) && !math.IsNaN(a) && !math.IsInf(a, 0) {
			ratios = append(ratios, a/b)
			won += b2i(a < b)
		}
	}
	spread := metric.NewSpread(ratios)
	return comparison{ratio: float64(spread.Median), won: float64(won) / float64(len(ratios)), clients: spread.Count}
}

// differs formats the difference of an error, such as "12 % lower than".
func (c comparison) differs() string {
	switch p := percentOf(c.ratio - 1); {
	case p == "0":
		return "level with"
	case c.ratio < 1:
		return p + "\u00a0% lower than"
	default:
		return p + "\u00a0% higher than"
	}
}

// percentOf formats the size of a share in per cent, with one decimal below 10.
func percentOf(v float64) string {
	v = math.Abs(100 * v)
	if v < 0.5 {
		return "0"
	}
	if v < 9.95 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
	}
	return fmt.Sprintf("%.0f", v)
}

// signed formats a share as a change in per cent, such as −12 %.
func signed(v float64) string {
	switch p := percentOf(v); {
	case math.IsNaN(v):
		return none
	case p == "0":
		return "±0\u00a0%"
	case v < 0:
		return "−" + p + "\u00a0%"
	default:
		return "+" + p + "\u00a0%"
	}
}

// strongest returns the baseline with the lowest median error, or nil if there is none.
func (s *dataset) strongest() *method {
	for _, m := range s.methods { // sorted by error
		if m.baseline && !math.IsNaN(m.median()) {
			return m
		}
	}
	return nil
}

// best returns the trained method with the lowest median error, or nil if none has scores.
func (s *dataset) best() *method {
	for _, m := range s.methods {
		if !m.baseline && !math.IsNaN(m.median()) {
			return m
		}
	}
	return nil
}

// referenceName is a short name of the reference.
func (s *dataset) referenceName() string {
	switch s.reference {
	case "last-week":
		return "last week's profile"
	case "last-day":
		return "the day before"
	}
	return "repeating the last load"
}

// repeats reports whether a baseline makes the same forecast as the reference.
func (s *dataset) repeats(baseline string) bool {
	return s.reference == "last-week" && baseline == "naive-week" || s.reference == "last-day" && baseline == "naive-day" ||
		s.reference == "last-value" && baseline == "persistence"
}

// headline returns the first screen's text about the best trained method. It is empty if no
// method has scores.
func (s *dataset) headline() headline {
	m := s.best()
	if m == nil {
		return headline{}
	}
	share, kw := m.nmae(mean), m.mae()
	against := comparison{ratio: m.median(), won: m.belowOne(), clients: m.scored()}
	h := headline{}
	h.Tiles = append(h.Tiles, tile{percentFine(share), "error, of the mean load", "median " + percentFine(m.nmae(median)) + "; " + short(kw) + " kW as a mean over clients"})
	h.Foot = ErrorNote
	h.Tiles = append(h.Tiles, tile{signed(against.ratio - 1), "error against " + s.referenceName(), "lower for " + percent(against.won) + " of clients"})
	text := fmt.Sprintf("%s forecasts %s with an error of %s of the mean load (%s\u00a0kW): %s %s", m.name, m.runs[0].task(), percentFine(share), short(kw), against.differs(), s.referenceName())
	b := s.strongest()
	versus := against
	switch {
	case b == nil:
	case s.repeats(b.name):
		text += ", which is the strongest baseline here"
	default:
		versus = compare(m.relative(), b.relative())
		text += fmt.Sprintf(", and %s %s, the strongest baseline", versus.differs(), b.name)
		h.Note = m.correction(b.name)
		h.Tiles = append(h.Tiles, tile{signed(versus.ratio - 1), "error against " + b.name + ", the strongest baseline", "lower for " + percent(versus.won) + " of " + textfmt.Count(versus.clients, "client")})
	}
	text += " (median ratio of errors over " + textfmt.Count(against.clients, "client")
	if versus.clients != against.clients {
		text += fmt.Sprintf(", of which %d have scores of %s", versus.clients, b.name)
	}
	text += ")"
	if n := len(s.trained()); n > 1 {
		text += fmt.Sprintf("; it is the best of %d trained methods", n)
	}
	if s.generated {
		text += " (GENERATED data)"
	}
	h.Text = text + "."
	h.Verdict, h.Class = s.verdict(against, versus, b)
	if _, calibrated := m.coverage(); !math.IsNaN(calibrated) {
		h.Tiles = append(h.Tiles, tile{percentFine(calibrated), "of loads in the interval", "P10 to P90 should contain 80\u00a0%"})
	}
	if p := m.peakErrors(); !math.IsNaN(p.mae) {
		h.Tiles = append(h.Tiles, tile{percentFine(p.mae), "error at daily peaks, of the peak", "forecasts of peaks are " + tooHigh(p.bias)})
	}
	h.Tiles = append(h.Tiles, tile{short(m.megabytes()) + "\u00a0MB", "sent and received by a client", "in the whole training; no raw readings"})
	return h
}

// scored returns the number of clients that have a score.
func (m *method) scored() int {
	n := 0
	for _, v := range m.relative() {
		n += b2i(!math.IsNaN(v))
	}
	return n
}

// correction returns a note that the method's forecasts are corrected by their latest errors,
// but the baseline's forecasts are not. The note is empty if the method's forecasts are not
// corrected.
func (m *method) correction(baseline string) string {
	if m.runs[0].settings["evaluate.correct"] != "true" {
		return ""
	}
	var alone []float64
	for _, r := range m.runs {
		var clients []float64
		for _, c := range r.Clients {
			if !math.IsNaN(c.ModelRelativeMAE) {
				clients = append(clients, c.ModelRelativeMAE)
			}
		}
		alone = append(alone, float64(metric.NewSpread(clients).Median))
	}
	text := fmt.Sprintf("The forecasts of %s are corrected by their latest errors, and those of %s are not", m.name, baseline)
	if v := mean(alone); v > 0 {
		text += fmt.Sprintf("; without the correction, the median relative MAE is %s instead of %s", score(v), score(m.median()))
	}
	return text + "."
}

// verdict describes the comparison of the best method in a few words.
func (s *dataset) verdict(reference, baseline comparison, b *method) (text, class string) {
	better := func(c comparison) bool { return c.ratio < 1 && percentOf(c.ratio-1) != "0" }
	worse := func(c comparison) bool { return c.ratio > 1 && percentOf(c.ratio-1) != "0" }
	switch {
	case b == nil && better(reference):
		return "Better than " + s.referenceName() + "; no baseline was computed", "partly"
	case worse(reference):
		return "Worse than " + s.referenceName(), "fails"
	case b == nil:
		return "Level with " + s.referenceName(), "partly"
	case better(baseline):
		return "Better than the strongest baseline", "holds"
	case worse(baseline):
		return "Better than " + s.referenceName() + ", but worse than " + b.name, "partly"
	}
	return "Level with the strongest baseline", "partly"
}

// tooHigh describes the bias of forecasts relative to the load.
func tooHigh(bias float64) string {
	switch p := percentOf(bias); {
	case p == "0":
		return "neither too high nor too low on average"
	case bias > 0:
		return p + "\u00a0% too high on average"
	default:
		return p + "\u00a0% too low on average"
	}
}

// peakErrors contains the error and the bias at daily peaks relative to the mean peak load,
// and the bias of all forecasts relative to the mean load. All are means over clients and
// seeds.
type peakErrors struct{ mae, bias, all float64 }

func (m *method) peakErrors() peakErrors {
	var mae, bias, all []float64
	for _, r := range m.runs {
		load := map[string]float64{}
		for _, c := range r.Clients {
			load[c.Client] = c.MAE / c.NMAE
		}
		var one [3][]float64
		for _, p := range r.peaks {
			if p.Load > 0 {
				one[0], one[1] = append(one[0], p.PeakMAE/p.Load), append(one[1], p.PeakBias/p.Load)
			}
			if l := load[p.Client]; l > 0 {
				one[2] = append(one[2], p.Bias/l)
			}
		}
		mae, bias, all = append(mae, mean(one[0])), append(bias, mean(one[1])), append(all, mean(one[2]))
	}
	return peakErrors{mean(mae), mean(bias), mean(all)}
}

// task describes the forecasts of a run, such as "the next 24 hours".
func (r *Run) task() string {
	if r.interval == 0 {
		return "the test period"
	}
	horizon, targets := max(r.setting("model.horizon"), 1), max(r.setting("model.targets"), 1)
	if targets == 1 {
		return "the load " + duration(int64(horizon)*r.interval) + " ahead"
	}
	return "the next " + duration(int64(horizon+targets-1)*r.interval)
}

// duration formats a number of seconds, such as "24 hours" or "15 minutes".
func duration(seconds int64) string {
	switch d := time.Duration(seconds) * time.Second; {
	case d%(24*time.Hour) == 0 && d > 48*time.Hour:
		return textfmt.Count(int(d/(24*time.Hour)), "day")
	case d%time.Hour == 0:
		return textfmt.Count(int(d/time.Hour), "hour")
	case d > time.Hour && d%(30*time.Minute) == 0:
		return fmt.Sprintf("%.1f hours", d.Hours())
	default:
		return textfmt.Count(int(d/time.Minute), "minute")
	}
}

// ahead formats the lead of a forecast step, such as "+15 min" or "+24 h".
func (r *Run) ahead(step int) string {
	if r.interval == 0 {
		return fmt.Sprintf("step %d", step)
	}
	d := time.Duration(int64(max(r.setting("model.horizon"), 1)+step-1)*r.interval) * time.Second
	switch {
	case d%time.Hour == 0:
		return fmt.Sprintf("+%d\u00a0h", d/time.Hour)
	case d < time.Hour:
		return fmt.Sprintf("+%d\u00a0min", d/time.Minute)
	}
	return fmt.Sprintf("+%d:%02d\u00a0h", d/time.Hour, d%time.Hour/time.Minute)
}

// Closing returns the sentence and the table that loadstar simulate prints at the end to
// compare the run with the baselines.
func Closing(dir string) (sentence string, rows [][]string, err error) {
	r, err := ReadRun(dir)
	if err != nil {
		return "", nil, err
	}
	sentence, rows = groupRuns([]*Run{r}, nil)[0].closing()
	return sentence, rows, nil
}

// closing returns the results of [Closing]. The table includes a column with the ratios of the
// sentence, because the quotient of two medians in the table can differ greatly from the median
// of the clients' quotients.
func (s *dataset) closing() (sentence string, rows [][]string) {
	best := s.best()
	rows = append(rows, []string{"METHOD", "CLIENTS", "MAE kW", "OF MEAN LOAD", "REL. MAE (" + s.reference + ")", "BELOW 1", "RATIO"})
	for _, m := range s.methods {
		if math.IsNaN(m.median()) {
			continue
		}
		ratio := ""
		if m.baseline && best != nil {
			ratio = score(compare(best.relative(), m.relative()).ratio)
		}
		rows = append(rows, []string{m.name, fmt.Sprint(m.scored()), short(m.mae()), percentFine(m.nmae(mean)), score(m.median()), percent(m.belowOne()), ratio})
	}
	return s.headline().Text, rows
}

// clientsOf returns the scores of a run's clients by name.
func (r *Run) clientsOf() map[string]run.Client {
	to := make(map[string]run.Client, len(r.Clients))
	for _, c := range r.Clients {
		to[c.Client] = c
	}
	return to
}
