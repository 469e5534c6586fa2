package api

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"loadstar/agent/live"
	"loadstar/metric"
)

var nan = math.NaN()

// exposition writes metrics in the text format of Prometheus.
type exposition struct{ bytes.Buffer }

// family begins a metric.
func (e *exposition) family(name, kind, help string) {
	fmt.Fprintf(e, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// sample writes a value with labels, which are given as alternating names and values. It
// omits unknown values.
func (e *exposition) sample(name string, value float64, labels ...string) {
	if math.IsNaN(value) {
		return
	}
	e.WriteString(name)
	for i := 0; i < len(labels); i += 2 {
		e.WriteByte("{,"[min(i, 1)])
		e.WriteString(labels[i] + `="` + escape.Replace(labels[i+1]) + `"`)
	}
	if len(labels) > 0 {
		e.WriteByte('}')
	}
	e.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	e := &exposition{}
	clients := s.c.Service.Clients()
	s.forecastMetrics(e, clients)
	counters := s.c.Service.Counters()
	e.family("loadstar_forecast_rows_total", "counter", "Forecast rows issued since the start, by source.")
	for _, source := range slices.Sorted(maps.Keys(counters.Rows)) {
		e.sample("loadstar_forecast_rows_total", float64(counters.Rows[source]), "source", string(source))
	}
	e.family("loadstar_score", "gauge", "Errors of issued forecasts over some days.")
	for _, c := range clients {
		scores, err := s.c.Service.Scores(c.Name)
		if err != nil {
			continue // the client was removed in the meantime
		}
		for _, x := range scores {
			if x.First != 0 {
				continue
			}
			window := fmt.Sprintf("%dd", x.Days)
			for _, m := range []struct {
				name  string
				value float64
			}{{"mae_kilowatts", x.MAE}, {"relative_mae", x.RelativeMAE}, {"coverage", x.Coverage}, {"fallback_share", x.Fallback}} {
				e.sample("loadstar_score", m.value, "client", c.Name, "metric", m.name, "window", window)
			}
		}
	}
	if s.c.Intake != nil {
		e.family("loadstar_readings_total", "counter", "Readings ingested since the start, by source and outcome.")
		s.c.Intake.Stats().Each(func(source, outcome string, n int64) {
			e.sample("loadstar_readings_total", float64(n), "source", source, "outcome", outcome)
		})
	}
	e.family("loadstar_reading_age_seconds", "gauge", "Time since the end of the newest reading.")
	for _, c := range clients {
		if c.Newest > 0 {
			e.sample("loadstar_reading_age_seconds", s.c.Now().Sub(time.Unix(c.Newest, 0)).Seconds(), "client", c.Name)
		}
	}
	e.family("loadstar_drift_alarms_total", "counter", "Alarms since the start that a model became worse compared with last week.")
	for _, name := range slices.Sorted(maps.Keys(counters.DriftAlarms)) {
		e.sample("loadstar_drift_alarms_total", float64(counters.DriftAlarms[name]), "client", name)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(e.Bytes()) // the client has disconnected
}

// forecastMetrics writes the forecasts of the steps that end 1, 6 and 24 hours after the
// cutoff.
func (s *Server) forecastMetrics(e *exposition, clients []live.ClientStatus) {
	step := s.c.Service.Site().Step
	newest := map[string]*live.Issued{}
	for _, c := range clients {
		if f, err := s.c.Service.Forecast(c.Name); err == nil {
			newest[c.Name] = f
		}
	}
	e.family("loadstar_forecast_kilowatts", "gauge", "Forecast mean power of the step that ends the given time after the cutoff.")
	for _, c := range clients {
		f := newest[c.Name]
		if f == nil {
			continue
		}
		for _, lead := range []int{1, 6, 24} {
			i := int(time.Duration(lead)*time.Hour/step) - 1
			if i < 0 || i >= len(f.Rows) {
				continue
			}
			for l, v := range f.Rows[i].Values {
				e.sample("loadstar_forecast_kilowatts", v, "client", c.Name, "level", metric.LevelName(f.Levels[l]), "lead", fmt.Sprintf("%dh", lead))
			}
		}
	}
	e.family("loadstar_forecast_issued_timestamp_seconds", "gauge", "When the newest forecast was made.")
	for _, c := range clients {
		if f := newest[c.Name]; f != nil {
			e.sample("loadstar_forecast_issued_timestamp_seconds", float64(f.Issued), "client", c.Name)
		}
	}
}
