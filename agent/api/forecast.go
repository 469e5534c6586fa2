package api

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/agent/live"
	"loadstar/forecast/issue"
	"loadstar/internal/service"
	"loadstar/internal/textfmt"
	"loadstar/metric"
)

// fail responds with the problem that describes an error.
func (s *Server) fail(w http.ResponseWriter, err error) {
	var query *queryError
	switch {
	case errors.As(err, &query):
		service.Problem(w, http.StatusBadRequest, "parameter", err.Error(), map[string]any{"parameter": query.name})
	case errors.Is(err, live.ErrUnknown):
		service.Problem(w, http.StatusNotFound, "unknown-client", "there is no such client; GET /v1/clients lists all", nil)
	case errors.Is(err, live.ErrNoForecast):
		service.Problem(w, http.StatusNotFound, "no-forecast", "there is no forecast of this client yet", nil)
	case errors.Is(err, live.ErrClock):
		service.Problem(w, http.StatusServiceUnavailable, "clock", "the agent's clock is wrong, so nothing is forecast", nil)
	default: // the agent's log and metrics have the details, which strangers need not know
		service.Problem(w, http.StatusInternalServerError, "internal", "the agent could not answer; see its log", nil)
	}
}

// queryError describes an invalid query parameter.
type queryError struct{ name, message string }

func (e *queryError) Error() string { return e.name + ": " + e.message }

func wrong(name, format string, args ...any) error {
	return &queryError{name, fmt.Sprintf(format, args...)}
}

// view is the part of a forecast that a request selects, and its format.
type view struct {
	site   live.Site
	steps  int
	levels []int // indexes
	unit   string
	factor float64
	zone   *time.Location
	csv    bool
	// above is a limit in the view's unit, or NaN.
	above float64
}

// parameters checks that a request has only known parameters, each once.
func parameters(r *http.Request, known ...string) (map[string]string, error) {
	if len(r.URL.RawQuery) > 2048 {
		return nil, wrong("query", "it is too long")
	}
	out := map[string]string{}
	for name, values := range r.URL.Query() {
		if !slices.Contains(known, name) {
			return nil, wrong(fmt.Sprintf("%.40q", name), "there is no such parameter; want %s", strings.Join(known, ", "))
		}
		if len(values) != 1 {
			return nil, wrong(name, "it is given %d times", len(values))
		}
		out[name] = values[0]
	}
	return out, nil
}

// readView reads the parameters h, levels, unit, tz, format and above.
func (s *Server) readView(r *http.Request, levels []float64) (view, error) {
	site := s.c.Service.Site()
	v := view{site: site, steps: site.H, unit: "kW", zone: site.Zone, above: math.NaN()}
	q, err := parameters(r, "h", "levels", "unit", "tz", "format", "above")
	if err != nil {
		return v, err
	}
	if text := q["h"]; text != "" {
		h, err := time.ParseDuration(text)
		if all := time.Duration(site.H) * site.Step; err != nil || h < site.Step || h > all {
			return v, wrong("h", "want a length of time from one step to %gh, such as 24h", all.Hours())
		}
		v.steps = int(h / site.Step)
	}
	for i := range levels {
		v.levels = append(v.levels, i)
	}
	if text := q["levels"]; text != "" {
		if v.levels, err = readLevels(text, levels); err != nil {
			return v, err
		}
	}
	units := map[string]float64{"kW": 1, "W": 1000, "MW": 0.001, "kWh": site.Step.Hours()}
	if text := q["unit"]; text != "" {
		v.unit = text
	}
	var ok bool
	if v.factor, ok = units[v.unit]; !ok {
		return v, wrong("unit", "want kW, W, MW or kWh")
	}
	if v.zone, err = readZone(q["tz"], site.Zone); err != nil {
		return v, err
	}
	if text := q["above"]; text != "" {
		if v.above, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(v.above) || math.IsInf(v.above, 0) {
			return v, wrong("above", "want a load in %s, such as 5", v.unit)
		}
	}
	switch q["format"] {
	case "", "json":
	case "csv":
		v.csv = true
	default:
		return v, wrong("format", "want json or csv")
	}
	return v, nil
}

func readLevels(text string, levels []float64) ([]int, error) {
	var out []int
	for part := range strings.SplitSeq(text, ",") {
		x, err := strconv.ParseFloat(part, 64)
		i := slices.IndexFunc(levels, func(l float64) bool { return math.Abs(l-x) < 1e-9 })
		if err != nil || i < 0 || slices.Contains(out, i) {
			return nil, wrong("levels", "want some of %v, separated by commas", levels)
		}
		out = append(out, i)
	}
	slices.Sort(out)
	return out, nil
}

func readZone(name string, site *time.Location) (*time.Location, error) {
	if name == "" {
		return site, nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "Local" {
		return nil, wrong("tz", "%.40q is not an IANA time zone, such as Europe/Berlin", name)
	}
	return zone, nil
}

func (s *Server) forecast(w http.ResponseWriter, r *http.Request) {
	f, err := s.c.Service.Forecast(r.PathValue("client"))
	if err != nil {
		s.fail(w, err)
		return
	}
	s.sendForecast(w, r, f)
}

// sendForecast responds with a forecast in the format that the request asks for.
func (s *Server) sendForecast(w http.ResponseWriter, r *http.Request, f *live.Issued) {
	v, err := s.readView(r, f.Levels)
	if err != nil {
		s.fail(w, err)
		return
	}
	if v.csv {
		var b bytes.Buffer
		if err := writeCSV(&b, v, f); err != nil {
			s.fail(w, err)
			return
		}
		s.answer(w, r, "text/csv; charset=utf-8", b.Bytes(), s.untilNext())
		return
	}
	status, err := s.c.Service.Client(f.Client)
	if err != nil {
		s.fail(w, err)
		return
	}
	s.answerJSON(w, r, forecastJSON(v, f, status.Scores))
}

// issueNow stores the weather from the request's body, if any, and then makes a forecast
// immediately.
func (s *Server) issueNow(w http.ResponseWriter, r *http.Request) {
	client := r.PathValue("client")
	if _, err := s.c.Service.Client(client); err != nil {
		s.fail(w, err)
		return
	}
	if r.ContentLength != 0 && s.c.Intake != nil {
		if !s.c.Intake.TakeWeather(w, r) {
			return
		}
	}
	f, err := s.c.Service.IssueNow(r.Context(), client)
	if err != nil {
		s.fail(w, err)
		return
	}
	w.Header().Set("Content-Location", "/v1/forecasts/"+strings.ReplaceAll(client, "/", "%2F"))
	s.sendForecast(w, r, f)
}

// forecastJSON returns a forecast as JSON. Like a response of Open-Meteo, it has a column of
// times and columns of values.
func forecastJSON(v view, f *live.Issued, score live.Score) object {
	rows := f.Rows[:min(v.steps, len(f.Rows))]
	_, offset := time.Unix(f.Cutoff, 0).In(v.zone).Zone()
	var nominal, units, values object
	times, sources, qualities, reasons := []plain{}, []plain{}, []plain{}, []plain{}
	worst := issue.OK
	order := []issue.Quality{issue.OK, issue.Estimated, issue.Missing}
	for _, r := range rows {
		times = append(times, plain(time.Unix(r.Time, 0).In(v.zone).Format("2006-01-02T15:04:05-07:00")))
		sources = append(sources, plain(r.Source))
		qualities = append(qualities, plain(r.Quality))
		reasons = append(reasons, plain(r.Reason))
		if slices.Index(order, r.Quality) > slices.Index(order, worst) {
			worst = r.Quality
		}
	}
	values = append(values, member{"time", times})
	units = append(units, member{"time", "iso8601"})
	for _, l := range v.levels {
		name := metric.LevelName(f.Levels[l])
		column := make([]number, len(rows))
		for i, r := range rows {
			column[i] = number(v.value(r, l))
		}
		nominal = append(nominal, member{name, number(f.Levels[l])})
		units = append(units, member{name, v.unit})
		values = append(values, member{name, column})
	}
	means := make([]number, len(rows))
	for i, r := range rows {
		means[i] = number(r.Mean * v.factor)
	}
	units = append(units, member{"mean", v.unit})
	values = append(values, member{"mean", means}, member{"source", sources}, member{"quality", qualities}, member{"reason", reasons})
	return object{
		{"client", f.Client},
		{"cutoff", instant(f.Cutoff)},
		{"issued", instant(f.Issued)},
		{"step", period(v.site.Step)},
		{"timezone", v.zone.String()},
		{"utc_offset_seconds", offset},
		{"model", object{
			{"release", text(f.Release.Release)},
			{"run", text(f.Release.Run)},
			{"version", f.Release.Version},
			{"head", instant(f.Release.Head)},
			{"weight", number(f.Weight)},
			{"stale", f.Release.Stale},
		}},
		{"quality", worst},
		{"generated", v.site.Generated},
		{"nominal", nominal},
		{"units", units},
		{"values", values},
		{"energy", v.energy(f)},
		{"peak", v.peak(f)},
		{"scores", object{
			{"days", score.Days},
			{"relative_mae", number(score.RelativeMAE)},
			{coverageName(f.Levels), number(score.Coverage)},
			{"fallback_share", number(score.Fallback)},
		}},
	}
}

// energy returns each day's energy in kWh.
func (v view) energy(f *live.Issued) []object {
	days := []object{}
	for _, d := range f.Days {
		days = append(days, object{
			{"day", time.Unix(d.Start, 0).In(v.site.Zone).Format(time.DateOnly)},
			{"mean", number(d.Mean)},
			{"P10", number(d.P10)},
			{"P90", number(d.P90)},
		})
	}
	return days
}

// peak returns the highest load of the next 24 hours, and the probability that it exceeds
// the requested limit.
func (v view) peak(f *live.Issued) object {
	var at text
	if f.Peak.Time != 0 {
		at = text(time.Unix(f.Peak.Time, 0).In(v.zone).Format(withOffset))
	}
	// The unit's factor converts the energy of a step.
	o := object{
		{"time", at},
		{"P10", number(f.Peak.P10 * v.factor)},
		{"P50", number(f.Peak.P50 * v.factor)},
		{"P90", number(f.Peak.P90 * v.factor)},
	}
	if !math.IsNaN(v.above) {
		o = append(o, member{"above", number(v.above)}, member{"chance", number(f.Peak.Above(v.above / v.factor))})
	}
	return o
}

// coverageName names the coverage of the widest interval, such as coverage_P10_P90.
func coverageName(levels []float64) string {
	if len(levels) == 0 {
		return "coverage"
	}
	return "coverage_" + metric.LevelName(levels[0]) + "_" + metric.LevelName(levels[len(levels)-1])
}

// value returns a value of a row in the unit of the view, or NaN.
func (v view) value(r issue.Row, level int) float64 {
	if level >= len(r.Values) {
		return math.NaN()
	}
	return r.Values[level] * v.factor
}

// writeCSV writes forecasts with the same columns and digits as the command loadstar forecast,
// so that the files can be compared.
func writeCSV(to io.Writer, v view, all ...*live.Issued) error {
	w := csv.NewWriter(to)
	head := []string{"unique_id", "cutoff", "ds"}
	if len(all) > 0 {
		for _, l := range v.levels {
			head = append(head, metric.LevelName(all[0].Levels[l]))
		}
	}
	head = append(head, "mean", "model", "version", "source", "quality", "reason", "generated")
	if err := w.Write(head); err != nil {
		return err
	}
	for _, f := range all {
		cutoff := time.Unix(f.Cutoff, 0).In(v.zone).Format(time.RFC3339)
		for _, r := range f.Rows[:min(v.steps, len(f.Rows))] {
			row := []string{textfmt.Cell(f.Client), cutoff, time.Unix(r.Time, 0).In(v.zone).Format(time.RFC3339)}
			for _, l := range v.levels {
				row = append(row, string(issue.AppendNumber(nil, v.value(r, l))))
			}
			row = append(row, string(issue.AppendNumber(nil, r.Mean*v.factor)))
			row = append(row, textfmt.Cell(f.Model), strconv.Itoa(f.Release.Version), string(r.Source), string(r.Quality), string(r.Reason), strconv.FormatBool(v.site.Generated))
			if err := w.Write(row); err != nil {
				return err
			}
		}
	}
	w.Flush()
	return w.Error()
}
