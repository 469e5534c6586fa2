package api

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"loadstar/agent/live"
	"loadstar/forecast/issue"
	"loadstar/metric"
)

func (s *Server) clients(w http.ResponseWriter, r *http.Request) {
	if _, err := parameters(r); err != nil {
		s.fail(w, err)
		return
	}
	site := s.c.Service.Site()
	list := []object{}
	for _, c := range s.c.Service.Clients() {
		o := object{{"client", c.Name}}
		if len(c.Members) > 0 {
			o = append(o, member{"members", c.Members})
		}
		cutoff := instant(0)
		release := text("")
		if c.Forecast != nil {
			cutoff, release = instant(c.Forecast.Cutoff), text(c.Forecast.Release.Release)
		}
		findings := c.Findings
		if findings == nil {
			findings = []string{}
		}
		list = append(list, append(
			o,
			member{"newest_reading", instant(c.Newest)},
			member{"receiving", s.receiving(c)},
			member{"days", number(c.Days)},
			member{"cutoff", cutoff},
			member{"release", release},
			member{"source", text(c.Source)},
			member{"reason", text(c.Reason)},
			member{"quality", text(c.Quality)},
			member{"drift", c.Drift},
			member{"findings", findings},
			member{"pinned", c.Pinned},
		))
	}
	s.answerJSON(w, r, object{
		{"site", site.Name},
		{"step", period(site.Step)},
		{"timezone", site.Zone.String()},
		{"generated", site.Generated},
		{"clients", list},
	})
}

// receiving describes what a client without readings has sent, or returns nil.
func (s *Server) receiving(c live.ClientStatus) any {
	if s.c.Intake == nil || c.Newest != 0 || len(c.Members) > 0 {
		return nil
	}
	r, ok := s.c.Intake.Receiving(c.Name)
	if !ok {
		return nil
	}
	return object{{"messages", r.Messages}, {"since", instant(r.Since.Unix())}, {"complete", instant(r.Complete.Unix())}}
}

// issued responds with the forecasts at a lead and the actual loads.
func (s *Server) issued(w http.ResponseWriter, r *http.Request) {
	site := s.c.Service.Site()
	q, err := parameters(r, "from", "to", "lead", "tz")
	if err != nil {
		s.fail(w, err)
		return
	}
	now := s.c.Now()
	to, err := readTime("to", q["to"], now)
	from := to
	if err == nil {
		from, err = readTime("from", q["from"], to.Add(-24*time.Hour))
	}
	lead := min(24*time.Hour, time.Duration(site.H)*site.Step)
	if err == nil && q["lead"] != "" {
		var bad error
		if lead, bad = time.ParseDuration(q["lead"]); bad != nil || lead < site.Step || lead > time.Duration(site.H)*site.Step {
			err = wrong("lead", "want a length of time from one step to %gh, such as 24h", (time.Duration(site.H) * site.Step).Hours())
		}
	}
	if err == nil && (from.After(to) || to.Sub(from) > 60*24*time.Hour) {
		err = wrong("from", "want a time before to, by at most 60 days")
	}
	zone := site.Zone
	if err == nil {
		zone, err = readZone(q["tz"], site.Zone)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	client := r.PathValue("client")
	said, err := s.c.Service.Issued(client, from.Unix(), to.Unix(), lead)
	if err != nil {
		s.fail(w, err)
		return
	}
	times, cutoffs, sources, loads := []plain{}, []plain{}, []plain{}, []number{}
	columns := make([][]number, len(site.Levels))
	means := []number{}
	for _, x := range said {
		times = append(times, plain(time.Unix(x.Time, 0).In(zone).Format(withOffset)))
		cutoffs = append(cutoffs, plain(time.Unix(x.Cutoff, 0).UTC().Format(time.RFC3339)))
		sources = append(sources, plain(x.Source))
		loads = append(loads, number(x.Actual))
		means = append(means, number(x.Mean))
		for l := range columns {
			v := number(nan)
			if l < len(x.Values) {
				v = number(x.Values[l])
			}
			columns[l] = append(columns[l], v)
		}
	}
	values := object{{"time", times}, {"cutoff", cutoffs}}
	units := object{{"time", "iso8601"}, {"load", "kW"}}
	for l, level := range site.Levels {
		if columns[l] == nil {
			columns[l] = []number{}
		}
		values = append(values, member{metric.LevelName(level), columns[l]})
		units = append(units, member{metric.LevelName(level), "kW"})
	}
	units = append(units, member{"mean", "kW"})
	values = append(values, member{"mean", means}, member{"source", sources}, member{"load", loads})
	s.answerJSON(w, r, object{
		{"client", client},
		{"lead", period(lead)},
		{"step", period(site.Step)},
		{"timezone", zone.String()},
		{"generated", site.Generated},
		{"units", units},
		{"values", values},
	})
}

// maxReadings is the maximum number of steps in a response.
const maxReadings = 10_000

// readings responds with the load of a client.
func (s *Server) readings(w http.ResponseWriter, r *http.Request) {
	site := s.c.Service.Site()
	q, err := parameters(r, "from", "to", "tz")
	to, from := s.c.Now(), time.Time{}
	if err == nil {
		to, err = readTime("to", q["to"], to)
	}
	if err == nil {
		from, err = readTime("from", q["from"], to.Add(-7*24*time.Hour))
	}
	if most := maxReadings * site.Step; err == nil && (from.After(to) || to.Sub(from) > most) {
		err = wrong("from", "want a time before to, by at most %d steps (%s)", maxReadings, most)
	}
	zone := site.Zone
	if err == nil {
		zone, err = readZone(q["tz"], site.Zone)
	}
	var begin int64
	var load []float32
	client := r.PathValue("client")
	if err == nil {
		begin, load, err = s.c.Service.Readings(client, from.Unix(), to.Unix())
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	times, loads := make([]plain, len(load)), make([]number, len(load))
	for i, v := range load {
		times[i] = plain(time.Unix(begin, 0).Add(time.Duration(i) * site.Step).In(zone).Format(withOffset))
		loads[i] = number(v)
	}
	s.answerJSON(w, r, object{
		{"client", client},
		{"step", period(site.Step)},
		{"timezone", zone.String()},
		{"generated", site.Generated},
		{"units", object{{"time", "iso8601"}, {"load", "kW"}}},
		{"values", object{{"time", times}, {"load", loads}}},
	})
}

// withOffset is the format of local times in responses.
const withOffset = "2006-01-02T15:04:05-07:00"

// earliest and latest bound the times that a request may name. A store contains no other times.
var earliest, latest = time.Date(2015, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// readTime reads a time with an offset, or in seconds since 1970.
func readTime(name, value string, otherwise time.Time) (time.Time, error) {
	if value == "" {
		return otherwise, nil
	}
	t, err := time.Parse(time.RFC3339, value)
	if seconds, bad := strconv.ParseInt(value, 10, 64); bad == nil {
		t, err = time.Unix(seconds, 0), nil
	}
	if err != nil || t.Before(earliest) || !t.Before(latest) {
		return t, wrong(name, "want a time with its offset, such as 2026-11-15T14:00:00Z (write + as %%2B), or seconds since 1970")
	}
	return t, nil
}

func (s *Server) scores(w http.ResponseWriter, r *http.Request) {
	client := r.PathValue("client")
	_, err := parameters(r)
	var scores []live.Score
	if err == nil {
		scores, err = s.c.Service.Scores(client)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	site := s.c.Service.Site()
	list := []object{}
	for _, x := range scores {
		var pinball object
		for l, level := range site.Levels {
			if l < len(x.Pinball) {
				pinball = append(pinball, member{metric.LevelName(level), number(x.Pinball[l])})
			}
		}
		var leads any
		if x.First > 0 {
			leads = object{{"first", period(time.Duration(x.First) * site.Step)}, {"last", period(time.Duration(x.Last) * site.Step)}}
		}
		var energy any
		if e := x.Energy; e.Days > 0 {
			energy = object{{"days", e.Days}, {"mae_kwh", number(e.MAE)}, {"relative_mae", number(e.RelativeMAE)}, {"bias", number(e.Bias)}}
		}
		list = append(list, object{
			{"days", x.Days},
			{"leads", leads},
			{"steps", x.Steps},
			{"mae_kw", number(x.MAE)},
			{"relative_mae", number(x.RelativeMAE)},
			{"pinball_kw", pinball},
			{coverageName(site.Levels), number(x.Coverage)},
			{"fallback_share", number(x.Fallback)},
			{"energy", energy},
		})
	}
	s.answerJSON(w, r, object{{"client", client}, {"generated", site.Generated}, {"scores", list}})
}

func (s *Server) quality(w http.ResponseWriter, r *http.Request) {
	client := r.PathValue("client")
	_, err := parameters(r)
	var q live.QualityReport
	if err == nil {
		q, err = s.c.Service.Quality(client)
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	findings := []object{}
	for _, f := range q.Findings {
		findings = append(findings, object{{"code", f.Code}, {"message", f.Message}, {"advice", f.Advice}})
	}
	s.answerJSON(w, r, object{
		{"client", client},
		{"from", instant(q.From)},
		{"to", instant(q.To)},
		{"missing_share", number(q.Missing)},
		{"findings", findings},
	})
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	if _, err := parameters(r); err != nil {
		s.fail(w, err)
		return
	}
	list := []object{}
	names := func(x []string) []string {
		if x == nil {
			return []string{}
		}
		return x
	}
	for _, m := range s.c.Service.Models() {
		list = append(list, object{
			{"release", m.Release},
			{"run", text(m.Run)},
			{"version", m.Version},
			{"received", instant(m.Received)},
			{"stale", m.Stale},
			{"serving", names(m.Serving)},
			{"trial", names(m.Trial)},
			{"refused", names(m.Refused)},
		})
	}
	s.answerJSON(w, r, object{{"models", list}})
}

// ready reports whether the agent forecasts from fresh readings, and names the clients for
// which it does not.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	reasons := []string{}
	switch err := s.c.Service.Ready(); {
	case err == nil:
	case errors.Is(err, live.ErrClock):
		reasons = append(reasons, "clock")
	case errors.Is(err, live.ErrNoForecast):
		reasons = append(reasons, "no-forecast")
	default:
		reasons = append(reasons, "forecast")
	}
	if s.c.Intake != nil && s.c.Intake.Err() != nil {
		reasons = append(reasons, "store")
	}
	without, of := s.without()
	if of == 0 || len(without) > of/10 {
		reasons = append(reasons, "readings")
	}
	code := http.StatusOK
	if len(reasons) > 0 {
		code = http.StatusServiceUnavailable
	}
	sendCode(w, code, object{{"ready", len(reasons) == 0}, {"reasons", reasons}, {"clients", object{
		{"of", of}, {"without", len(without)}, {"names", append([]string{}, without[:min(len(without), mostNamed)]...)},
	}}})
}

// mostNamed is the maximum number of clients that a response names.
const mostNamed = 20

// without returns the clients that have no forecast from fresh readings, and the number of all
// clients. Readings are fresh for 6 hours or 4 steps, whichever is longer.
func (s *Server) without() (all []string, of int) {
	oldest := s.c.Now().Add(-max(6*time.Hour, 4*s.c.Service.Site().Step)).Unix()
	for _, c := range s.c.Service.Clients() {
		if len(c.Members) > 0 {
			continue
		}
		of++
		if c.Newest < oldest || c.Forecast != nil && c.Source == issue.None {
			all = append(all, c.Name)
		}
	}
	return all, of
}
