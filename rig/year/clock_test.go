package year

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/agent/api"
	"loadstar/agent/live"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
	"loadstar/series/synth"
)

// generated returns generated readings and weather of a few buildings.
func generated(t *testing.T, interval time.Duration, first time.Time, days int) *series.Dataset {
	t.Helper()
	g, err := synth.New(synth.Config{
		Seed: 3, Meters: 4, Start: first, Days: days, Interval: interval, Zone: first.Location().String(), Faults: synth.Faults{Gap: 0.001, Outage: 0.001},
	})
	if err != nil {
		t.Fatal(err)
	}
	var meters []series.Meter
	for i := range g.Config().Meters {
		m := series.Meter{Start: g.Time(0).Unix(), Load: make([]float32, g.Len())}
		m.ID = g.Building(i, m.Load).ID
		meters = append(meters, m)
	}
	w := g.Weather()
	d, err := series.NewDataset(series.Dataset{
		Name: "generated", Generated: true, Interval: interval, Clock: first.Location(), Country: synth.Country,
		Weather: series.Weather{
			Start: g.Time(0).Unix(), Names: []string{"temperature", "wind"}, Columns: [][]float32{w.Temperature, w.Wind},
		},
	}, meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestFileEqualsAgentOnEveryClock compares the forecasts of files and of agents, as users see
// them, for steps of an hour and of 15 minutes, with weather, and with a day of 23 or 25 hours
// before or after the cutoff.
func TestFileEqualsAgentOnEveryClock(t *testing.T) {
	if testing.Short() {
		t.Skip("trains models")
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name     string
		interval time.Duration
		change   time.Time // day on which the clocks change
		ahead    time.Duration
	}{
		{"hours, 25-hour day ahead", time.Hour, time.Date(2025, 10, 26, 0, 0, 0, 0, berlin), 7 * time.Hour},
		{"quarters, 23-hour day ahead", 15 * time.Minute, time.Date(2025, 3, 30, 0, 0, 0, 0, berlin), 5*time.Hour + 15*time.Minute},
		{"hours, after a 23-hour day", time.Hour, time.Date(2025, 3, 30, 0, 0, 0, 0, berlin), -50 * time.Hour},
	} {
		t.Run(x.name, func(t *testing.T) {
			cutoff := x.change.Add(-x.ahead)
			const days = 75
			d := generated(t, x.interval, x.change.AddDate(0, 0, -days), days+6)
			from := cutoff.Add(-24 * time.Hour).Truncate(24 * time.Hour)
			// The model covers a whole day, so that the folder contains the states of its
			// clients. Without them, a state begins 63 days before its first forecast, which
			// is at different times for the agent and the file.
			plan := fmt.Sprintf("name: day-ahead\nalgorithm: fedavg\nrounds: 20\nmodel: {name: dense, targets: %d}\n", d.StepsPerDay())
			model := train(t, before(t, d, from.Unix()), plan, t.TempDir())
			sameForecasts(t, d, model, from, cutoff)
		})
	}
}

// TestShortReach checks that clients use a model that forecasts only the next hours, which
// are a small part of the agent's forecast.
func TestShortReach(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	first := time.Date(2025, 1, 6, 0, 0, 0, 0, time.UTC)
	d := generated(t, time.Hour, first, 64)
	from := first.AddDate(0, 0, 60)
	model := train(t, before(t, d, from.Unix()), "name: hours\nalgorithm: fedavg\nrounds: 40\nmodel: {name: dense, targets: 2}\n", t.TempDir())
	var log bytes.Buffer
	_, err := Run(t.Context(), Config{
		Data: d, Model: model, Start: from.Unix(), End: from.Unix() + 3600, H: 48, Settled: from.Unix(), Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil || strings.Count(log.String(), "the client uses a new model") != d.Len() {
		t.Errorf("%v\n%s", err, log.String())
	}
}

// sameForecasts runs an agent until a cutoff, and compares its last forecasts with those made
// from files.
func sameForecasts(t *testing.T, d *series.Dataset, model string, from, cutoff time.Time) {
	t.Helper()
	h := int(48 * time.Hour / d.Interval)
	dir := t.TempDir()
	var log bytes.Buffer
	_, err := Run(t.Context(), Config{
		Data: d, Model: model, Start: from.Unix(), End: cutoff.Unix() + d.Seconds(), H: h, Settled: from.Unix(), Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, log.String())
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(filepath.Join(dir, "readings.db"), store.Config{Interval: d.Interval, Clock: d.Clock})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	names, err := s.Clients()
	if err != nil {
		t.Fatal(err)
	}
	service, err := live.Open(live.Config{
		Dir: dir, Site: series.Dataset{Name: d.Name, Interval: d.Interval, Clock: d.Clock, Country: d.Country, Generated: true}, Clients: names, H: h,
		Store: s, Kernel: k, Now: func() time.Time { return cutoff.Add(2 * time.Minute) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	// A client that refused the run's weights, or for which other weights were fitted, uses
	// a different model than the file.
	var own []string
	for _, m := range service.Models() {
		for _, name := range m.Serving {
			if !strings.Contains(log.String(), "fitted personal layers\" client="+name) {
				own = append(own, name)
			}
		}
	}
	if len(own) < 2 {
		t.Fatalf("only %v have the weights of the run\n%s", own, log.String())
	}
	t.Logf("%d clients use the weights of the run", len(own))
	slices.Sort(own)

	if err := api.Drop(dir, service); err != nil {
		t.Fatal(err)
	}
	agent := rowsOf(t, filepath.Join(dir, "latest.csv"), own)
	m, err := outlook.Open(model, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	path := filepath.Join(dir, "file.csv")
	_, _, err = outlook.Write(t.Context(), outlook.Config{
		Model: m, Dataset: d, At: cutoff.Unix(), H: h, Levels: []float64{0.1, 0.5, 0.9}, Workers: 2, Now: cutoff,
	}, path, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	file := rowsOf(t, path, own)
	if len(agent) != len(file) || len(agent) != 1+h*len(own) {
		t.Fatalf("%d rows of the agent, %d of the file", len(agent), len(file))
	}
	// Only the laboratory knows the version of a folder's model.
	for _, rows := range [][][]string{agent, file} {
		version := slices.Index(rows[0], "version")
		for _, row := range rows[1:] {
			row[version] = ""
		}
	}
	differ := 0
	sources := map[string]int{}
	for i := range agent {
		sources[agent[i][slices.Index(agent[0], "source")]]++
		if !slices.Equal(agent[i], file[i]) {
			if differ++; differ < 6 {
				t.Errorf("agent %v\nfile  %v", agent[i], file[i])
			}
		}
	}
	t.Logf("%d of %d rows differ; sources %v", differ, len(agent), sources)
	if sources["model"] == 0 {
		t.Errorf("the model forecast nothing: %v", sources)
	}
	sameJSON(t, service, file)
}

// rowsOf returns the heading of a CSV file, and the rows of clients.
func rowsOf(t *testing.T, path string, clients []string) (rows [][]string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	rows = all[:1]
	for _, r := range all[1:] {
		if slices.Contains(clients, r[0]) {
			rows = append(rows, r)
		}
	}
	return rows
}

// sameJSON compares the answers of the HTTP interface with rows of a CSV file, the first of
// which is the heading.
func sameJSON(t *testing.T, service *live.Service, rows [][]string) {
	t.Helper()
	server, err := api.New(api.Config{Service: service, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	heading, rows := rows[0], rows[1:]
	for len(rows) > 0 {
		client := rows[0][0]
		request := httptest.NewRequest("GET", "http://127.0.0.1/v1/forecasts/"+client+"?tz=UTC", nil)
		answer := httptest.NewRecorder()
		server.Handler().ServeHTTP(answer, request)
		var body struct {
			Values map[string][]any
		}
		decoder := json.NewDecoder(answer.Body)
		decoder.UseNumber()
		if err := decoder.Decode(&body); err != nil || answer.Code != 200 {
			t.Fatalf("%d, %v", answer.Code, err)
		}
		n := len(body.Values["time"])
		if n == 0 || n > len(rows) {
			t.Fatalf("%s: %d rows in the answer", client, n)
		}
		for i, row := range rows[:n] {
			for name, values := range body.Values {
				column := slices.Index(heading, map[bool]string{true: "ds", false: name}[name == "time"])
				if column < 0 {
					t.Fatalf("the file has no column %s", name)
				}
				got := strings.Replace(fmt.Sprint(values[i]), "+00:00", "Z", 1)
				if values[i] == nil {
					got = ""
				}
				if got != row[column] || row[0] != client {
					t.Fatalf("%s of row %d of %s is %q in the answer, %q in the file", name, i, client, got, row[column])
				}
			}
		}
		rows = rows[n:]
	}
}
