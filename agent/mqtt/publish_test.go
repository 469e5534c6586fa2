package mqtt

import (
	"encoding/json"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"loadstar/forecast/issue"
	"loadstar/internal/testkit"
)

// board contains forecasts to publish.
type board struct {
	mu  sync.Mutex
	all map[string]Forecast
}

func (b *board) Clients() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var names []string
	for name := range b.all {
		names = append(names, name)
	}
	return names
}

func (b *board) Forecast(client string) (Forecast, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f, ok := b.all[client]
	return f, ok && f.Rows != nil
}

func (b *board) set(client string, f Forecast) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all[client] = f
}

// ramp returns a forecast that begins at a cutoff. P50 of step i is i kW, and its mean is 2 i
// kW.
func ramp(cutoff, issued time.Time, step time.Duration, h int, zone string) Forecast {
	loc, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	f := Forecast{
		Forecast: issue.Forecast{Cutoff: cutoff.Unix(), Levels: []float64{0.1, 0.5, 0.9}, Model: "day@7", Weight: 0.83},
		Issued:   issued, Step: step, Zone: loc,
	}
	day := func(n int) int64 {
		t := issued.In(loc)
		return time.Date(t.Year(), t.Month(), t.Day()+n, 0, 0, 0, 0, loc).Unix()
	}
	f.Days = []issue.DayEnergy{
		{Start: day(0), End: day(1), Mean: 10, P10: 8, P90: 12.3456789},
		{Start: day(1), End: day(2), Mean: 20, P10: math.NaN(), P90: math.NaN()},
	}
	f.Peak = issue.Peak{Time: cutoff.Add(24 * time.Hour).Unix(), P10: 90, P50: 95, P90: 101}
	for i := range h {
		v := float64(i)
		f.Rows = append(f.Rows, issue.Row{Time: cutoff.Unix() + int64(i)*int64(step/time.Second), Values: []float64{v / 2, v, v * 2}, Mean: 2 * v, Source: issue.Model, Quality: issue.OK})
	}
	return f
}

func TestHourly(t *testing.T) {
	cutoff := time.Date(2026, 11, 15, 14, 15, 0, 0, time.UTC)
	f := ramp(cutoff, cutoff, 15*time.Minute, 192, "Europe/Berlin")
	f.Rows[8].Source, f.Rows[8].Quality, f.Rows[8].Reason = issue.Week, issue.Estimated, issue.BeyondReach
	f.Rows = slices.Delete(f.Rows, 20, 21) // the row of 19:15 is missing
	rows := Hourly(f)
	if len(rows) != 47 || rows[0].Time != cutoff.Add(45*time.Minute).Unix() || rows[46].Time != rows[0].Time+46*3600 {
		t.Fatalf("%d rows from %v", len(rows), time.Unix(rows[0].Time, 0).UTC())
	}
	if v := rows[0].Values; v[0] != 2.25 || v[1] != 4.5 || v[2] != 9 || rows[0].Mean != 9 {
		t.Errorf("the mean of 3 to 6 is %v, and that of their means %g", v, rows[0].Mean)
	}
	if rows[0].Source != issue.Model || rows[1].Source != issue.Week || rows[1].Reason != issue.BeyondReach || rows[2].Source != issue.Model {
		t.Errorf("%+v", rows[:3])
	}
	if !math.IsNaN(rows[4].Values[1]) || !math.IsNaN(rows[4].Mean) {
		t.Errorf("the hour with a missing step has %v", rows[4].Values)
	}
	// The hours of a zone with a half-hour offset begin between the hours of UTC.
	f = ramp(cutoff, cutoff, 15*time.Minute, 192, "Asia/Kolkata")
	if rows := Hourly(f); rows[0].Time != cutoff.Add(15*time.Minute).Unix() {
		t.Errorf("first hour at %v", time.Unix(rows[0].Time, 0).UTC())
	}
}

func TestSummary(t *testing.T) {
	cutoff := time.Date(2026, 11, 15, 12, 15, 0, 0, time.UTC)
	f := ramp(cutoff, cutoff.Add(2*time.Minute), 15*time.Minute, 192, "Europe/Berlin")
	text, err := json.Marshal(summarize(f))
	// The next hour has the means 0, 2, 4 and 6 kW. Numbers have the digits of a float32.
	if want := `{"next_hour":3,"energy_today":10,"energy_today_P10":8,"energy_today_P90":12.345679,"energy_tomorrow":20,"energy_tomorrow_P10":null,"energy_tomorrow_P90":null,` +
		`"peak_power":95,"peak_power_P10":90,"peak_power_P90":101,"peak_time":"2026-11-16T13:15:00+01:00","quality":"OK"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	// Readings are two hours late, but the next hour is not in the past.
	f.Issued = f.Issued.Add(2 * time.Hour)
	if s := summarize(f); s.NextHour != 19 || s.EnergyToday != 10 {
		t.Errorf("%+v", s)
	}
	// The forecast is a day old, so its second day is today.
	f.Issued = f.Issued.Add(24 * time.Hour)
	if s := summarize(f); s.EnergyToday != 20 || !math.IsNaN(float64(s.EnergyTomorrow)) {
		t.Errorf("%+v", s)
	}
	f.Issued, f.Days, f.Peak = cutoff, nil, issue.Peak{P10: math.NaN(), P50: math.NaN(), P90: math.NaN()}
	for i := range f.Rows {
		f.Rows[i].Mean, f.Rows[i].Quality = math.NaN(), issue.Missing
	}
	text, err = json.Marshal(summarize(f))
	if want := `{"next_hour":null,"energy_today":null,"energy_today_P10":null,"energy_today_P90":null,"energy_tomorrow":null,"energy_tomorrow_P10":null,"energy_tomorrow_P90":null,` +
		`"peak_power":null,"peak_power_P10":null,"peak_power_P90":null,"peak_time":null,"quality":"MISSING"}`; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	f.Rows[3].Mean = 2
	if s := summarize(f); s.Quality != issue.Estimated {
		t.Errorf("%+v", s)
	}
}

func TestMessage(t *testing.T) {
	cutoff := time.Date(2026, 11, 15, 14, 0, 0, 0, time.UTC)
	f := ramp(cutoff, cutoff.Add(124*time.Second), 15*time.Minute, 192, "Europe/Berlin")
	f.Client = "main-panel"
	f.Rows[0].Values[0] = math.NaN()
	data, err := Payload(f)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Client, Cutoff, Issued, Step, Timezone, Model, Unit, Hourly string
		Summary                                                     map[string]any
		Values                                                      map[string][]any
	}
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if m.Client != "main-panel" || m.Cutoff != "2026-11-15T14:00:00Z" || m.Issued != "2026-11-15T14:02:04Z" || m.Step != "PT1H" || m.Unit != "kW" || m.Hourly != note {
		t.Errorf("%+v", m)
	}
	for _, key := range []string{"time", "P10", "P50", "P90", "mean", "source"} {
		if len(m.Values[key]) != 48 {
			t.Errorf("%d values of %s", len(m.Values[key]), key)
		}
	}
	if m.Values["time"][0] != "2026-11-15T15:00:00+01:00" || m.Values["P10"][0] != nil || m.Values["P50"][1] != 5.5 || m.Values["mean"][1] != 11.0 || m.Summary["quality"] != "OK" {
		t.Errorf("%v %v", m.Values, m.Summary)
	}
	if len(data) > 5200 {
		t.Errorf("the message has %d bytes", len(data))
	}
	t.Logf("%d bytes", len(data))
	// Home Assistant can still record the longest message, with long names.
	f = ramp(cutoff, cutoff, time.Hour, 400, "America/Argentina/ComodRivadavia")
	f.Levels = []float64{0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975}
	for i := range f.Rows {
		f.Rows[i].Values, f.Rows[i].Source = []float64{1e4 / 3, 1e4 / 3, 1e4 / 3, 1e4 / 3, 1e4 / 3, 1e4 / 3, 1e4 / 3}, issue.Generic
	}
	f.Client, f.Model = strings.Repeat("ü", 64), strings.Repeat("m", 128)
	if data, err = Payload(f); err != nil || len(data) >= 16384 {
		t.Errorf("the longest message has %d bytes, %v", len(data), err)
	}
}

func TestLevel(t *testing.T) {
	safe := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	seen := map[string]string{}
	for _, name := range []string{"main-panel", "main panel", "main/panel", "main.panel", "main_panel", "büro", "", "#", "+", strings.Repeat("a", 200), strings.Repeat("a", 201), "日本"} {
		l := level(name)
		if !safe.MatchString(l) || seen[l] != "" {
			t.Errorf("%q becomes %q, as %q", name, l, seen[l])
		}
		seen[l] = name + "!"
	}
	if level("main-panel") != "main-panel" {
		t.Error("a good name changed")
	}
}

// TestPublish checks a client at the broker from its first to its last message, with Home
// Assistant's discovery.
func TestPublish(t *testing.T) {
	c := Config{Broker: embedded(t), Agent: "gw 1", Discovery: "homeassistant", Version: "0.2.0"}
	cutoff := time.Date(2026, 11, 15, 14, 0, 0, 0, time.UTC)
	b := &board{all: map[string]Forecast{"main-panel": ramp(cutoff, cutoff, 15*time.Minute, 192, "Europe/Berlin"), "büro": {}}}
	p := newPeer(t, c, "loadstar/#", "homeassistant/#")
	j := newJournal(t, filepath.Join(t.TempDir(), "j"), 0)
	client, stop := start(t, c, j, b)
	status, topic := client.statusTopic(), client.forecastTopic("main-panel")
	testkit.Eventually(t, "the forecast", func() bool { return p.got(topic) != "" && p.got(status) == "online" })
	configs := func(client string) (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for topic, m := range p.received {
			if strings.HasPrefix(topic, "homeassistant/sensor/loadstar_"+level("gw 1")+"_"+client+"/") && strings.HasSuffix(topic, "/config") && len(m.Payload) > 0 {
				n++
			}
		}
		return n
	}
	if configs("main-panel") != 7 || configs(level("büro")) != 0 {
		t.Errorf("%d and %d sensors", configs("main-panel"), configs(level("büro")))
	}
	b.set("büro", ramp(cutoff, cutoff, 15*time.Minute, 192, "Europe/Berlin"))
	client.Publish("büro")
	testkit.Eventually(t, "the second client", func() bool { return configs(level("büro")) == 7 && p.got(client.forecastTopic(level("büro"))) != "" })
	stop()
	testkit.Eventually(t, "the end", func() bool { return p.got(status) == "offline" })

	// After a restart with another configuration, the first client is removed.
	b.mu.Lock()
	delete(b.all, "main-panel")
	b.mu.Unlock()
	client, _ = start(t, c, j, b)
	testkit.Eventually(t, "the removal", func() bool { return configs("main-panel") == 0 && p.got(topic) == "" && p.got(status) == "online" })
	late := newPeer(t, c, "loadstar/#", "homeassistant/#")
	testkit.Eventually(t, "retained messages", func() bool {
		return late.got(client.forecastTopic(level("büro"))) != "" && late.got(status) == "online"
	})
	if late.got(topic) != "" {
		t.Error("the forecast of a client that is gone is retained")
	}
	// A client is removed while the agent is running.
	b.mu.Lock()
	clear(b.all)
	b.mu.Unlock()
	client.Publish()
	testkit.Eventually(t, "the second removal", func() bool { return late.got(client.forecastTopic(level("büro"))) == "" })
}
