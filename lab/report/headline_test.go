package report

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"loadstar/lab/run"
)

// besideRun returns a run of five clients with day-ahead forecasts. ours and ridge are the
// ratios of their errors, and of the errors of ridge-rich, to the error of last week's loads.
func besideRun(ours, ridge float64) *Run {
	r := &Run{
		Dataset: "d", Method: "day", Algorithm: "fedavg", Seed: 1, Reference: "last-week", zone: "Europe/Berlin", interval: 3600, trained: 5, bytes: 10e6,
		settings: map[string]string{"name": "day", "model.horizon": "1", "model.targets": "24", "evaluate.stride": "6"},
	}
	for i, name := range []string{"a", "b", "c", "d", "e"} {
		// The mean loads are 10 to 50 kW, and last week's error is a fifth of them.
		load := 10 * float64(i+1)
		relative := ours * (0.8 + 0.1*float64(i))
		r.Clients = append(r.Clients, run.Client{
			Client: name, Level: load, Spread: load / 3, Targets: 100, MAE: relative * load / 5, NMAE: relative / 5, RelativeMAE: relative,
			Coverage: 0.7, CalibratedCoverage: 0.8, Levels: []float64{1, 0.11, 1, 0.5, 1, 0.9},
		})
		r.peaks = append(r.peaks, run.Peak{Client: name, Bias: -load / 100, Targets: 10, Load: 2 * load, PeakMAE: load / 5, PeakBias: -load / 10})
		r.beside.Scores = append(r.beside.Scores,
			run.Baseline{Method: "naive-week", Client: name, MAE: load / 5, NMAE: 0.2, RelativeMAE: 1, Reference: "last-week"},
			run.Baseline{Method: "ridge-rich", Client: name, MAE: ridge * load / 5, NMAE: ridge / 5, RelativeMAE: ridge, Reference: "last-week"})
	}
	for h := range 24 {
		for i, level := range []string{"P10", "P50", "P90"} {
			r.calibration = append(r.calibration, run.Calibration{Hour: h, Level: level, Clients: 5, Share: []float64{0.1, 0.5, 0.85}[i]})
		}
		r.profile = append(r.profile, run.Profile{By: "hour", At: h, NMAE: 0.1}, run.Profile{By: "step", At: h + 1, NMAE: 0.1})
		r.beside.Profile = append(r.beside.Profile, run.BaselineProfile{Method: "ridge-rich", By: "step", At: h + 1, NMAE: 0.2})
	}
	return r
}

func TestHeadline(t *testing.T) {
	space := func(s string) string { return strings.ReplaceAll(s, "\u00a0", " ") }
	for _, c := range []struct {
		ours, ridge    float64
		verdict, class string
		text           string
	}{
		{0.6, 0.8, "Better than the strongest baseline", "holds", "day forecasts the next 24 hours with an error of 12.0 % of the mean load (3.84 kW): 40 % lower than last week's profile, and 25 % lower than ridge-rich, the strongest baseline (median ratio of errors over 5 clients)."},
		{0.8, 0.5, "Better than last week's profile, but worse than ridge-rich", "partly", "day forecasts the next 24 hours with an error of 16.0 % of the mean load (5.12 kW): 20 % lower than last week's profile, and 60 % higher than ridge-rich, the strongest baseline (median ratio of errors over 5 clients)."},
		{1.2, 1.5, "Worse than last week's profile", "fails", "day forecasts the next 24 hours with an error of 24.0 % of the mean load (7.68 kW): 20 % higher than last week's profile, which is the strongest baseline here (median ratio of errors over 5 clients)."},
		{0.8, 0.8, "Level with the strongest baseline", "partly", "20 % lower than last week's profile, and level with ridge-rich, the strongest baseline ("},
	} {
		h := groupRuns([]*Run{besideRun(c.ours, c.ridge)}, nil)[0].headline()
		if h.Verdict != c.verdict || h.Class != c.class || !strings.Contains(space(h.Text), c.text) {
			t.Errorf("%v and %v: %s (%s): %s", c.ours, c.ridge, h.Verdict, h.Class, space(h.Text))
		}
	}
	r := besideRun(0.6, 0.8)
	r.Generated = true
	h := groupRuns([]*Run{r}, nil)[0].headline()
	if n := strings.Count(h.Text, "GENERATED"); n != 1 {
		t.Errorf("GENERATED %d times in %s", n, h.Text)
	}
	var tiles []string
	for _, x := range h.Tiles {
		tiles = append(tiles, space(x.Value+" "+x.Label+": "+x.Note))
	}
	for _, want := range []string{
		"−40 % error against last week's profile: lower for 100 % of clients",
		"−25 % error against ridge-rich, the strongest baseline: lower for 100 % of 5 clients",
		"80.0 % of loads in the interval: P10 to P90 should contain 80 %",
		"10.0 % error at daily peaks, of the peak: forecasts of peaks are 5 % too low on average",
		"2.00 MB sent and received by a client: in the whole training; no raw readings",
	} {
		if !strings.Contains(strings.Join(tiles, "\n"), want) {
			t.Errorf("no tile %q in\n%s", want, strings.Join(tiles, "\n"))
		}
	}
	if h.Note != "" {
		t.Errorf("the forecasts are not corrected, but the note is %q", h.Note)
	}
	r.settings["evaluate.correct"] = "true"
	for i := range r.Clients {
		r.Clients[i].ModelRelativeMAE = r.Clients[i].RelativeMAE + 0.1
	}
	r.beside.Scores = r.beside.Scores[:8] // scores of four of the five clients
	h = groupRuns([]*Run{r}, nil)[0].headline()
	if want := "The forecasts of day are corrected by their latest errors, and those of ridge-rich are not; without the correction, the median relative MAE is 0.700 instead of 0.600."; h.Note != want {
		t.Errorf("note %q, want %q", h.Note, want)
	}
	if want := "(median ratio of errors over 5 clients, of which 4 have scores of ridge-rich)"; !strings.Contains(h.Text, want) {
		t.Errorf("no %q in %s", want, h.Text)
	}
	// Without baselines, the sentence does not claim that the run beats one.
	r.beside = run.Beside{}
	if h := groupRuns([]*Run{r}, nil)[0].headline(); strings.Contains(h.Text, "baseline") || h.Verdict != "Better than last week's profile; no baseline was computed" {
		t.Errorf("%s: %s", h.Verdict, h.Text)
	}
}

// TestClosing checks that the sentence states the ratios of the table, even where the quotient
// of the medians would suggest the opposite.
func TestClosing(t *testing.T) {
	r := besideRun(0.6, 0.8)
	for i, relative := range []float64{0.2, 0.3, 0.7, 0.8, 0.9} { // median 0.7
		r.Clients[i].RelativeMAE = relative
	}
	for i, ridge := range []float64{0.8, 0.9, 0.65, 0.72, 0.75} { // median 0.75
		r.beside.Scores[2*i+1].RelativeMAE = ridge
	}
	sentence, rows := groupRuns([]*Run{r}, nil)[0].closing()
	ratio := map[string]string{}
	for _, row := range rows {
		if len(row) != len(rows[0]) {
			t.Fatalf("%d columns in %q, want %d", len(row), row, len(rows[0]))
		}
		ratio[row[0]] = row[4] + " " + row[len(row)-1]
	}
	// 0.7/0.65 is the median of 0.25, 0.333, 1.077, 1.111 and 1.2.
	want := map[string]string{"METHOD": "REL. MAE (last-week) RATIO", "day": "0.700 ", "ridge-rich": "0.750 1.077", "naive-week": "1.000 0.700"}
	if !maps.Equal(ratio, want) {
		t.Errorf("relative errors and ratios %q, want %q", ratio, want)
	}
	if text := strings.ReplaceAll(sentence, "\u00a0", " "); !strings.Contains(text, "30 % lower than last week's profile, and 7.7 % higher than ridge-rich, the strongest baseline (median ratio of errors over 5 clients).") {
		t.Error(text)
	}
}

// TestOnePage checks the order of a report of one run, and that the numbers of the first
// screen are in the page without JavaScript.
func TestOnePage(t *testing.T) {
	r := besideRun(0.6, 0.8)
	r.Generated = true
	r.summary = &run.Summary{Data: "d, 5 meters", Weights: "abc123", Kernel: "avx2", Down: 100, Up: 100, LeftOut: []string{"z"}}
	r.Dir, r.DataPath, r.plan = "runs/it's mine", "my data", "name: day\n"
	page := string(written(t, &Report{Runs: []*Run{r}}))
	at := 0
	for _, want := range []string{
		"<h1>day on d</h1>", "Better than the strongest baseline", "40\u00a0% lower than last week&#39;s profile", `class="tiles"`, "Error per client by method",
		"The 5 clients with the highest errors of day", "Error by lead", "&#43;24\u00a0h", "Error by hour of the day", "Daily peaks and bias", "−1.0\u00a0%",
		"Calibration by quantile", "Coverage by hour of the day", "What was sent", "Who takes part", "no complete training example: z", "Repeat it",
		`loadstar simulate &#39;runs/it&#39;\&#39;&#39;s mine/plan.yaml&#39; --data &#39;my data&#39; --out`, "abc123", "name: day",
	} {
		i := strings.Index(page[at:], want)
		if i < 0 {
			t.Errorf("%q is missing, or in the wrong order", want)
			continue
		}
		at += i
	}
	if n := strings.Count(page[:strings.Index(page, `id="data"`)], "enerated data"); n != 1 {
		t.Errorf("%d marks of generated data beside the headline, want 1", n)
	}
	if strings.Contains(page, "MASE") || strings.Contains(page, "target 1") {
		t.Error("the page has old words")
	}
}

// TestCurves checks that the load is still shown where only the forecast is missing, and that
// the chart uses the dataset's clock.
func TestCurves(t *testing.T) {
	r := besideRun(0.6, 0.8)
	start := time.Date(2021, 3, 20, 0, 0, 0, 0, time.UTC) // the clock changes on 28 March
	var rows []run.Curve
	for _, c := range r.Clients {
		for i := range 14 * 24 {
			row := run.Curve{Client: c.Client, Time: start.Add(time.Duration(i) * time.Hour), Actual: 10, LastWeek: 9, Near: 11, NearLow: 8, NearHigh: 12, Far: 13, FarLow: 7, FarHigh: 14}
			if i == 5 {
				row.Near, row.NearLow, row.NearHigh = math.NaN(), math.NaN(), math.NaN()
			}
			if i == 6 {
				row.Actual = math.NaN()
			}
			rows = append(rows, row)
			r.beside.Curves = append(r.beside.Curves, run.BaselineCurve{Method: "ridge-rich", Client: c.Client, Time: row.Time, Near: 10.5, Far: 9.5})
		}
	}
	r.excerpts = r.curveExcerpts(rows)
	s := groupRuns([]*Run{r}, nil)[0]
	f, ok := s.forecasts(1)
	if !ok {
		t.Fatal("no chart")
	}
	text, err := json.Marshal(f.data)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Clients []struct {
			Name, Role string
			Unit       float64
			Y, W       []*float64
		}
		Methods []struct {
			Leads []struct{ F, L, H [][]*float64 }
		}
		Base struct {
			Name  string
			Leads []struct{ F [][]*float64 }
		}
		Leads   []string
		Zone    string
		Offsets [][2]int64
		All     struct{ Names []string }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if len(d.Clients) != 5 || d.Clients[0].Name != "c" || d.Clients[0].Role != "median client" || d.Clients[1].Name != "a" || d.Clients[2].Name != "e" || d.Clients[3].Role != "" {
		t.Errorf("clients %+v", d.Clients)
	}
	c, near := d.Clients[0], d.Methods[0].Leads[0]
	if c.Y[5] == nil || near.F[0][5] != nil || c.Y[6] != nil || near.F[0][6] == nil || c.W[6] == nil {
		t.Error("a gap in the load or in the forecast removes the other")
	}
	if v := *c.Y[5] * c.Unit; math.Abs(v-10) > 0.01 {
		t.Errorf("the load is %v kW, want 10", v)
	}
	if v := *d.Base.Leads[1].F[0][0] * c.Unit; d.Base.Name != "ridge-rich" || math.Abs(v-9.5) > 0.01 {
		t.Errorf("the baseline %s has %v kW", d.Base.Name, v)
	}
	if got := strings.ReplaceAll(strings.Join(d.Leads, ", "), "\u00a0", " "); got != "+1 h to +6 h, +19 h to +24 h" {
		t.Errorf("leads %s", got)
	}
	change := time.Date(2021, 3, 28, 1, 0, 0, 0, time.UTC).Unix()
	if want := [][2]int64{{start.Unix(), 3600}, {change, 7200}}; d.Zone != "Europe/Berlin" || fmt.Sprint(d.Offsets) != fmt.Sprint(want) {
		t.Errorf("zone %s, offsets %v, want %v", d.Zone, d.Offsets, want)
	}
	if len(d.All.Names) != 5 {
		t.Errorf("the search knows %v", d.All.Names)
	}
}

// TestLarge checks the size of the page for a large fleet, because the page must open in any
// browser.
func TestLarge(t *testing.T) {
	r := besideRun(0.6, 0.8)
	c := r.Clients[0]
	r.Clients = nil
	for i := range 10000 {
		c.Client, c.RelativeMAE = fmt.Sprintf("a-meter-with-a-long-name-%06d", i), 0.5+float64(i%997)/997
		r.Clients = append(r.Clients, c)
	}
	start := time.Date(2021, 3, 20, 0, 0, 0, 0, time.UTC)
	var rows []run.Curve
	for k := range 100 { // as many rows as lab/run stores
		for i := range 400 {
			v := 12345.678 + float64(i%100)
			rows = append(rows, run.Curve{Client: r.Clients[k*100].Client, Time: start.Add(time.Duration(i) * time.Hour), Actual: v, LastWeek: v, Near: v, NearLow: v, NearHigh: v, Far: v, FarLow: v, FarHigh: v})
		}
	}
	r.excerpts = r.curveExcerpts(rows)
	page := written(t, &Report{Runs: []*Run{r}})
	if len(page) > 3.5e6 {
		t.Errorf("the page of 10,000 clients has %d bytes, want at most 3.5 MB", len(page))
	}
	if !strings.Contains(string(page), "of 10000; the search finds the scores of the others") || !strings.Contains(string(page), "a-meter-with-a-long-name-009999") {
		t.Error("the page does not say what it leaves out, or the search does not know a client")
	}
	if dir := os.Getenv("LOADSTAR_SHOTS"); dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "large.html"), page, 0o644); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d bytes", len(page))
}

// TestSameRunTwice checks that runs of the same plan under two names are one method.
func TestSameRunTwice(t *testing.T) {
	a, b := besideRun(0.6, 0.8), besideRun(0.6, 0.8)
	b.Method, b.settings["name"] = "other", "other"
	s := groupRuns([]*Run{a, b}, nil)[0]
	if n := len(s.trained()); n != 1 || s.trained()[0].name != "day" || title([]*dataset{s}) != "day on d" {
		t.Errorf("%d methods, title %q", n, title([]*dataset{s}))
	}
	c := besideRun(0.7, 0.8)
	c.Seed, c.settings["seed"] = 2, "2"
	c.beside = run.Beside{}
	if got := Representatives([]*Run{c, a}); len(got) != 1 || got[0] != a {
		t.Error("the run with baselines does not represent its task")
	}
}

// TestLeads checks the names of leads at several intervals.
func TestLeads(t *testing.T) {
	for _, c := range []struct {
		interval int64
		horizon  string
		step     int
		want     string
	}{{900, "1", 1, "+15 min"}, {900, "1", 96, "+24 h"}, {900, "1", 5, "+1:15 h"}, {3600, "4", 1, "+4 h"}, {0, "1", 2, "step 2"}} {
		r := &Run{interval: c.interval, settings: map[string]string{"model.horizon": c.horizon}}
		if got := strings.ReplaceAll(r.ahead(c.step), "\u00a0", " "); got != c.want {
			t.Errorf("step %d of %d s: %s, want %s", c.step, c.interval, got, c.want)
		}
	}
}
