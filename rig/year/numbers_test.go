package year

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
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
	"loadstar/agent/mqtt"
	"loadstar/lab/outlook"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// answered contains the numbers in the API's answer about a client, with all their digits.
// The agent's page shows these numbers.
type answered struct {
	Values struct {
		Time []string      `json:"time"`
		Mean []json.Number `json:"mean"`
	} `json:"values"`
	Energy []struct {
		Day            string
		Mean, P10, P90 json.Number
	} `json:"energy"`
	Peak struct {
		Time          string
		P10, P50, P90 json.Number
	} `json:"peak"`
}

// published contains the same numbers from MQTT.
type published struct {
	Summary map[string]any   `json:"summary"`
	Values  map[string][]any `json:"values"`
}

// TestSameNumbers checks that the command, the API and MQTT show the same means, energies
// and peaks for ten clients and two groups to the last digit. It also checks that groups
// are the sums of their members.
func TestSameNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("trains a model")
	}
	d := tenMeters(t)
	model := train(t, before(t, d, start), dayAhead+"rounds: 60\n", t.TempDir())
	var all []string
	for i := range d.Len() {
		all = append(all, d.Meter(i).ID)
	}
	slices.Sort(all)
	groups := map[string][]string{"all": all, "some": {all[7], all[2], all[4]}}
	cutoff := start + 9*86400 + 7*3600
	var log bytes.Buffer
	answers, said, issued := map[string]answered{}, map[string]published{}, map[string]*live.Issued{}
	_, err := Run(t.Context(), Config{
		Data: d, Model: model, Start: start, End: cutoff + 3600, H: 48, Settled: start, Dir: t.TempDir(), Groups: groups, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Finally: func(s *live.Service) {
			for _, name := range append(slices.Clone(all), "all", "some") {
				x, err := s.Forecast(name)
				if err != nil || x.Cutoff != cutoff {
					t.Fatalf("%s: %v", name, err)
				}
				issued[name], answers[name], said[name] = x, ask(t, s, name), message(t, s, x)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, a := range answers {
		compareMQTT(t, name, a, said[name])
	}
	for name, members := range groups {
		slices.Sort(members)
		for i, row := range issued[name].Rows {
			sum := 0.0
			for _, m := range members {
				sum += issued[m].Rows[i].Mean
			}
			if row.Mean != sum {
				t.Fatalf("row %d of group %s has mean %g, its members %g", i, name, row.Mean, sum)
			}
		}
	}
	compareCommand(t, answers, command(t, model, cutoff, func(name string) bool {
		return !strings.Contains(log.String(), "fitted personal layers\" client="+name) // the model differs from the file's
	}))
}

// tenMeters returns six real meters and four sums of two of them, because the sample
// contains only six.
func tenMeters(t *testing.T) *series.Dataset {
	t.Helper()
	d := data(t, 6)
	var meters []series.Meter
	for i := range d.Len() {
		meters = append(meters, d.Meter(i))
	}
	for i := range 10 - len(meters) {
		sum := meters[i]
		sum.ID = meters[i].ID + "-and-" + meters[i+1].ID
		sum.Load = slices.Clone(sum.Load)
		for k := range sum.Load {
			sum.Load[k] += meters[i+1].Load[k]
		}
		meters = append(meters, sum)
	}
	d, err := d.With(meters)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// ask returns the API's answer.
func ask(t *testing.T, s *live.Service, name string) (a answered) {
	t.Helper()
	server, err := api.New(api.Config{Service: s, Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	server.Handler().ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1/v1/forecasts/"+name+"?tz=UTC", nil))
	decoder := json.NewDecoder(w.Body)
	decoder.UseNumber()
	if err := decoder.Decode(&a); err != nil || len(a.Values.Mean) != 48 || len(a.Energy) != 2 || a.Peak.P50 == "" {
		t.Fatalf("%s: %v, %+v", name, err, a)
	}
	return a
}

// message returns the MQTT message.
func message(t *testing.T, s *live.Service, x *live.Issued) (m published) {
	t.Helper()
	at := s.Site()
	b, err := mqtt.Payload(mqtt.Forecast{Forecast: x.Forecast, Issued: time.Unix(x.Issued, 0), Step: at.Step, Zone: at.Zone})
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.UseNumber()
	if err := decoder.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func compareMQTT(t *testing.T, name string, a answered, m published) {
	t.Helper()
	for key, want := range map[string]json.Number{
		"next_hour": a.Values.Mean[0], "energy_today": a.Energy[0].Mean, "energy_today_P10": a.Energy[0].P10, "energy_today_P90": a.Energy[0].P90,
		"energy_tomorrow": a.Energy[1].Mean, "energy_tomorrow_P10": a.Energy[1].P10, "energy_tomorrow_P90": a.Energy[1].P90,
		"peak_power": a.Peak.P50, "peak_power_P10": a.Peak.P10, "peak_power_P90": a.Peak.P90,
	} {
		if got := m.Summary[key]; got != want || want == "" {
			t.Errorf("%s: %s is %v in MQTT, %q in the API", name, key, got, want)
		}
	}
	when, err := time.Parse(time.RFC3339, m.Summary["peak_time"].(string))
	if other, bad := time.Parse(time.RFC3339, a.Peak.Time); err != nil || bad != nil || !when.Equal(other) {
		t.Errorf("%s: the peak is at %v in MQTT, at %s in the API", name, m.Summary["peak_time"], a.Peak.Time)
	}
}

// command returns the rows of the command's files by client, for the clients that use the
// model of the folder.
func command(t *testing.T, model string, cutoff int64, same func(string) bool) map[string][][]string {
	t.Helper()
	d := tenMeters(t)
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	m, err := outlook.Open(model, d, k)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	dir := t.TempDir()
	rows, days := filepath.Join(dir, "rows.csv"), filepath.Join(dir, "days.csv")
	if _, _, err := outlook.Write(t.Context(), outlook.Config{Model: m, Dataset: d, At: cutoff, H: 48, Workers: 2, Days: days, Now: time.Unix(cutoff, 0)}, rows, nil, ""); err != nil {
		t.Fatal(err)
	}
	out := map[string][][]string{}
	for _, path := range []string{rows, days} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		table, err := csv.NewReader(f).ReadAll()
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
		for _, row := range table[1:] {
			if same(row[0]) {
				out[row[0]] = append(out[row[0]], row)
			}
		}
	}
	return out
}

func compareCommand(t *testing.T, answers map[string]answered, files map[string][][]string) {
	t.Helper()
	if len(files) < 7 {
		t.Errorf("only %d clients have the model of the folder", len(files))
	}
	for name, rows := range files {
		a := answers[name]
		if len(rows) != 48+3 {
			t.Fatalf("%s: %d rows", name, len(rows))
		}
		for i, want := range a.Values.Mean {
			if got := rows[i][6]; got != want.String() {
				t.Errorf("%s: mean %d is %s in the file, %s in the API", name, i, got, want)
			}
		}
		for i, e := range a.Energy {
			if r := rows[48+i]; r[2] != "energy" || r[4] != e.Mean.String() || r[5] != e.P10.String() || r[7] != e.P90.String() {
				t.Errorf("%s: %v in the file, %+v in the API", name, r, e)
			}
		}
		if r := rows[50]; r[2] != "peak" || r[5] != a.Peak.P10.String() || r[6] != a.Peak.P50.String() || r[7] != a.Peak.P90.String() {
			t.Errorf("%s: %v in the file, %+v in the API", name, r, a.Peak)
		}
	}
}
