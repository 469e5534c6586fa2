package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/lab/run"
)

// hostile is the name of a meter that tries to inject a script into the page.
const hostile = `</script><script>alert("x")</script><img src=http://evil.example/x onerror=alert(1)>&'"`

// writeRun writes the folder of a run with five clients, one of which has a hostile name.
func writeRun(t *testing.T, dir, plan string, seed, targets int, generated bool, skill float64) {
	t.Helper()
	algorithm, _, _ := strings.Cut(plan, "-")
	text := fmt.Sprintf("name: %s\nseed: %d\nalgorithm: %s\nmodel: {targets: %d}\nclient: {lr: 0.1, steps: 4}\n", plan, seed, algorithm, targets)
	if algorithm != "local" {
		text += "server: {lr: 1}\n"
	}
	f, err := run.Create(dir, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := []string{"a", "b", hostile, "d", "e"}
	quantiles := algorithm == "fedadam"
	var clients []run.Client
	for i, name := range names {
		clients = append(clients, run.Client{
			Client: name, Level: math.Pow(10, float64(i)-1), Spread: math.Pow(9, float64(i)-1), Examples: 100, Targets: 50,
			MAE: 1, RMSE: 2, NMAE: 0.1, RelativeMAE: skill + 0.2*float64(i), Coverage: math.NaN(), CalibratedCoverage: math.NaN(),
		})
		if quantiles {
			clients[i].Coverage, clients[i].CalibratedCoverage = 0.6+0.05*float64(i), 0.8
		}
	}
	clients[4].RelativeMAE = 1e6 // training diverged for this client
	for r := range 12 {
		row := run.Round{Round: r, Outcome: "merged", Loss: 1 / float64(r+1)}
		if algorithm != "local" {
			row.Down, row.Up = 5e6, 5e6
		}
		if err := f.Rounds.Append(row); err != nil {
			t.Fatal(err)
		}
		if r%2 == 0 {
			continue
		}
		for i, name := range names[:4] {
			e := run.Evaluation{Round: r + 1, Client: name, RelativeMAE: skill + 0.1*float64(i) + 2/float64(r)}
			if i == 3 {
				e.RelativeMAE = math.NaN()
			}
			if err := f.Evaluations.Append(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	var profile []run.Profile
	for h := range 24 {
		profile = append(profile, run.Profile{By: "hour", At: h, Clients: 5, NMAE: 0.1 + 0.001*float64(h)})
	}
	for s := range targets {
		profile = append(profile, run.Profile{By: "step", At: s + 1, Clients: 5, NMAE: 0.1 * float64(s+1)})
	}
	var forecasts []run.Forecast
	start := time.Date(2017, 10, 20, 3, 0, 0, 0, time.UTC)
	for _, name := range names[1:3] {
		for i := range 24 * 30 {
			for s := range targets {
				at := start.Add(time.Duration(i+s) * time.Hour)
				y := 10 + 5*math.Sin(float64(at.Hour()))
				row := run.Forecast{Client: name, Cutoff: start.Add(time.Duration(i) * time.Hour), Time: at, Actual: y, Forecast: y + 1 + float64(s), LastWeek: y - 2, P10: math.NaN(), P90: math.NaN()}
				if quantiles {
					row.P10, row.P90 = row.Forecast-1, row.Forecast+2
				}
				if i == 300 {
					row.LastWeek = math.NaN()
				}
				forecasts = append(forecasts, row)
			}
		}
	}
	summary := &run.Summary{
		Plan: plan, Algorithm: algorithm, Dataset: filepath.Base(filepath.Dir(dir)), Generated: generated,
		Clients: len(names), Rounds: 12, Steps: 120,
	}
	summary.Seconds.Train, summary.RelativeMAE.Reference = 1.5, "last-week"
	if err := f.Finish(run.Results{Clients: clients, Profile: profile, Forecasts: forecasts}, summary); err != nil {
		t.Fatal(err)
	}
}

// writeExperiment writes the runs of three methods and a baseline on two datasets, one of
// them synthetic.
func writeExperiment(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, set := range []string{"real", "made"} {
		for seed := 1; seed <= 2; seed++ {
			for plan, skill := range map[string]float64{"local": 0.9, "fedavg": 1.2, "fedadam-head": 0.7} {
				writeRun(t, filepath.Join(dir, set, fmt.Sprintf("%s-%d", plan, seed)), plan, seed, 3, set == "made", skill+0.01*float64(seed))
			}
		}
	}
	// Add an unfinished run, which a report must ignore.
	f, err := run.Create(filepath.Join(dir, "real", "scaffold-1"), []byte("name: scaffold\n"))
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	text := "method,unique_id,mae,rmse,nmae,relative_mae,reference\npersistence,a,1,2,0.1,1,last-week\npersistence,b,1,2,0.1,1.1,last-week\npersistence,d,,,,,last-week\n"
	if err := os.WriteFile(filepath.Join(dir, "real", "baselines.csv"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// everything returns a page that uses every feature of a report.
func everything(t *testing.T) []byte {
	t.Helper()
	runs, baselines, err := ReadExperiment(writeExperiment(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range runs {
		one.Dir = filepath.Join("runs", filepath.Base(one.Dir)) // not in the folder of this test
	}
	r := &Report{
		Title: "Everything <b>&</b>", About: "One.\nTwo.", Tool: "loadstar test", Runs: runs, Baselines: baselines,
		Claims: []Claim{
			{"It holds.", Holds, "1 of 1"},
			{"It holds partly.", HoldsPartly, "1 of 2"},
			{"It does not.", DoesNotHold, "0 of 2"},
			{"Who knows?", NotTested, ""},
		},
		Tables: []Table{{Title: "A table", Note: "with a note", Columns: []string{"who", "what", "how much"}, Rows: [][]string{{"x", "y", "1.5"}, {hostile, "z", none}}, Generated: true}},
		Boxes: []BoxChart{{
			Title: "Loads", Note: "Over time.", Of: "building", Value: "load", Unit: "kW", Generated: true, Boxes: []Box{
				{"small", [5]float64{-1, 0, 0.5, 2, 3}, 1},
				{hostile, [5]float64{20, 30, 50, 70, 200}, 60},
				{"none", [5]float64{math.NaN(), math.NaN(), math.NaN(), math.NaN(), math.NaN()}, math.NaN()},
				{strings.Repeat("a long name ", 9), [5]float64{3, 4, 5, 6, 7}, 5},
			},
		}},
		HeatMaps: []HeatMap{{
			Title: "Rates", X: "client learning rate", Y: "server learning rate", XLabels: []string{"0.01", "0.1", "1"}, YLabels: []string{"0.1", "1"},
			Value: "median relative MAE", Values: [][]float64{{1.5, 0.8, 3}, {1, 40, math.NaN()}}, Generated: true,
		}},
	}
	return written(t, r)
}

func written(t *testing.T, r *Report) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Runs that differ only in their learning rates become a heat map and one method.
func TestGrid(t *testing.T) {
	var runs []*Run
	for _, client := range []string{"0.01", "0.1"} {
		for _, server := range []string{"1", "10", "2"} {
			relative := 1.0
			validation := 2.0
			if client == "0.1" && server == "2" {
				relative = 0.6
			}
			if client == "0.1" && server == "10" {
				relative, validation = 0.7, 1
			}
			runs = append(runs, &Run{
				Dataset: "d", Method: "fedadam", Algorithm: "fedadam", Seed: 1, Clients: []run.Client{{Client: "a", RelativeMAE: relative}, {Client: "b", RelativeMAE: relative}},
				settings:    map[string]string{"name": "fedadam", "seed": "1", "client.lr": client, "server.lr": server},
				evaluations: []evaluation{{1, [5]float64{0, 0, validation, 0, 0}}},
			})
		}
	}
	s := groupRuns(runs, nil)[0]
	if len(s.grids) != 1 || len(s.methods) != 1 || s.methods[0].name != "fedadam, best of 6 rates" {
		t.Fatalf("%d grids, methods %v", len(s.grids), s.methods[0].name)
	}
	h := s.grids[0]
	if !slices.Equal(h.XLabels, []string{"0.01", "0.1"}) || !slices.Equal(h.YLabels, []string{"1", "2", "10"}) || h.Values[1][1] != 0.6 {
		t.Errorf("grid %+v", h)
	}
	// The best pair is selected on the validation split, not the test split.
	if s.methods[0].median() != 0.7 || !strings.Contains(h.Note, "on the validation split: client 0.1, server 10.") {
		t.Errorf("selected median %v: %s", s.methods[0].median(), h.Note)
	}
}

// Plans with the same name are distinguished by their settings.
func TestDisambiguate(t *testing.T) {
	var runs []*Run
	for _, steps := range []string{"1", "4"} {
		runs = append(runs, &Run{
			Dataset: "d", Method: "m", Clients: []run.Client{{Client: "a", RelativeMAE: 1}},
			settings: map[string]string{"name": "m", "client.steps": steps, "client.lr": "0.1"},
		})
	}
	s := groupRuns(runs, nil)[0]
	if s.methods[0].name != "m (client.steps 1)" || s.methods[1].name != "m (client.steps 4)" {
		t.Errorf("%s, %s", s.methods[0].name, s.methods[1].name)
	}
}

func TestDiffering(t *testing.T) {
	got := differing([]map[string]string{
		{"name": "a", "algorithm": "local", "client.lr": "1"},
		{"name": "b", "algorithm": "fedavg", "client.lr": "1", "server.lr": "1", "client.mu": "2"},
		{"name": "c", "algorithm": "fedavg", "client.lr": "1", "server.lr": "1"},
	})
	if want := []string{"algorithm", "client.mu"}; !slices.Equal(got, want) {
		t.Errorf("differing in %v, want %v", got, want)
	}
}

func TestPage(t *testing.T) {
	page := string(everything(t))
	for _, want := range []string{
		"<title>Everything &lt;b&gt;&amp;&lt;/b&gt;</title>",
		"<p class=\"about\">One.\nTwo.</p>",
		"Generated data:</strong> the loads of made are synthetic, not measured.",
		`4 claims of the paper, checked on our data: holds: 1, holds partly: 1, does not hold here: 1, not tested: 1.`,
		`<span class="verdict holds">holds</span>`,
		`<span class="verdict partly">holds partly</span>`,
		`<span class="verdict fails">does not hold here</span>`,
		`<span class="verdict untested">not tested</span>`,
		`<h2>made<span class="mark">generated data</span></h2>`,
		`<h2>real</h2>`,
		`Error per client by method: persistence (baseline) has the lowest median error`,
		`Error per client by method: fedadam-head has the lowest median error`,
		`Load and forecasts of the median, the best and the worst client`,
		"<th scope=\"row\">fedadam-head</th><td>1.115 (1.110\u2060–\u20601.120)</td>",
		`aria-label="Heat map of median relative MAE over client learning rate and server learning rate; the lowest is 0.800 at client learning rate 0.1 and server learning rate 0.1."`,
		`Generated by loadstar test.`,
		`Relative to last week&#39;s profile: the mean absolute error divided by that of the load at the same time a week before, so a value below 1 is better.`,
		`The dashed line is the error of the load at the same time a week before.`,
		`The band from P10 to P90 should contain 80 % of the loads.`,
		"<td>70.0\u00a0%</td><td>80.0\u00a0%</td>", // the coverage of fedadam-head
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not contain %q", want)
		}
	}
	for _, kind := range []string{"box", "cost", "lines", "convergence", "fan", "fleet", "heat"} {
		if n := strings.Count(page, `data-kind="`+kind+`"`); n == 0 {
			t.Errorf("no figure of kind %s", kind)
		}
	}
	// The part about synthetic data is marked once. Its charts are marked too, because they can
	// be saved as files.
	madeAt, realAt := strings.Index(page, `<section id="data-1" class="group">`), strings.Index(page, `<section id="data-2" class="group">`)
	made, real := page[madeAt:realAt], page[realAt:strings.Index(page, `<section id="runs">`)]
	if f, m := strings.Count(made, "<figure "), strings.Count(made, " data-generated "); f == 0 || f != m {
		t.Errorf("%d of %d figures with synthetic data are labelled", m, f)
	}
	if m := strings.Count(made, `<span class="mark">`); m != 1 {
		t.Errorf("the part about synthetic data has %d labels, want 1", m)
	}
	if strings.Contains(real, "generated") || strings.Contains(real, "GENERATED") || strings.Contains(real, "synthetic") {
		t.Error("real data is labelled as synthetic")
	}
	if !bytes.Equal([]byte(page), everything(t)) {
		t.Error("the same folders give a different page")
	}
}

// Names are escaped everywhere, and the page loads nothing from the network.
func TestHostileNames(t *testing.T) {
	page := string(everything(t))
	if n := strings.Count(page, "<script"); n != 2 {
		t.Errorf("%d script elements, want the data and the bundle", n)
	}
	if strings.Contains(page, "<img") {
		t.Error("a name became an element")
	}
	start := strings.Index(page, `id="data">`) + len(`id="data">`)
	text := page[start : start+strings.Index(page[start:], "</script>")]
	var data map[string]struct{ Names []string }
	if err := json.Unmarshal([]byte(text), &data); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(data["data-1-clients-1"].Names, hostile) {
		t.Errorf("names in the data: %q", data["data-1-clients-1"].Names)
	}
	if !regexp.MustCompile(`content="default-src &#39;none&#39;; style-src &#39;unsafe-inline&#39;; script-src &#39;sha256-[^"]+&#39;;`).MatchString(page) {
		t.Error("the content security policy is missing")
	}
	addresses := regexp.MustCompile(`https?://[^\s"'<>)]*`).FindAllString(strings.ReplaceAll(page, script, ""), -1)
	for _, a := range addresses {
		if !strings.HasPrefix(a, "http://evil.example/x") {
			t.Errorf("the page contains the URL %s", a)
		}
	}
	code := script[strings.Index(script, "*/"):]
	for _, a := range regexp.MustCompile(`https?://[^\s"'<>)]*`).FindAllString(code+style, -1) {
		if !strings.HasPrefix(a, "http://www.w3.org/") {
			t.Errorf("the bundle contains the URL %s", a)
		}
	}
	if regexp.MustCompile(`(?i)</script|<!--`).MatchString(script) {
		t.Error("the bundle contains the end of its script element")
	}
}

// TestSize checks that the page of a large fleet is small enough for an e-mail.
func TestSize(t *testing.T) {
	var runs []*Run
	for m := range 8 {
		r := &Run{Dataset: "large", Method: fmt.Sprint("method-", m), Seed: 1, settings: map[string]string{"name": fmt.Sprint("method-", m), "client.steps": fmt.Sprint(m)}}
		for i := range 10000 {
			r.Clients = append(r.Clients, run.Client{Client: fmt.Sprintf("a-meter-with-a-long-name-%06d", i), Level: float64(i + 1), Spread: 1, RelativeMAE: 0.5 + float64(i*(m+1)%997)/500})
		}
		for e := range 1000 {
			r.evaluations = append(r.evaluations, evaluation{e + 1, [5]float64{0.123456, 0.23456, 0.3456, 1.23456, 9.87654}})
		}
		runs = append(runs, r)
	}
	page := written(t, &Report{Runs: runs})
	if len(page) > 5e6 {
		t.Errorf("the page has %d bytes", len(page))
	}
	if !strings.Contains(string(page), "Dots show 400 of 10000 clients") {
		t.Error("the page does not say that it shows a sample")
	}
	t.Logf("%d bytes, of which the bundle %d", len(page), len(script)+len(style))
}

func TestEmpty(t *testing.T) {
	page := string(written(t, &Report{Title: "Title only"}))
	if !strings.Contains(page, "<h1>Title only</h1>") || strings.Contains(page, "<section") || strings.Contains(page, "<noscript>") {
		t.Error("an empty report has sections")
	}
	err := (&Report{HeatMaps: []HeatMap{{Title: "h", XLabels: []string{"a"}, YLabels: []string{"b"}, Values: [][]float64{{1, 2}}}}}).Write(&bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), `heat map "h" has 2 values in a row for 1 labels`) {
		t.Errorf("a heat map of the wrong shape: %v", err)
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 1: "1.00", 0.01234: "0.0123", 12.345: "12.3", 1234.5: "1234", 2.5e8: "2.5e+08", -0.5: "-0.500", math.Inf(1): none} {
		if got := short(v); got != want {
			t.Errorf("%v is shown as %s, want %s", v, got, want)
		}
	}
	for v, want := range map[float64]string{0.123456: "0.1235", 123456: "123500", 1e-9: "1e-09", math.NaN(): "null"} {
		if got, err := json.Marshal(num(v)); err != nil || string(got) != want {
			t.Errorf("%v is written as %s (%v), want %s", v, got, err, want)
		}
	}
	if got := thin(10, 4); !slices.Equal(got, []int{0, 3, 6, 9}) {
		t.Errorf("thinned to %v", got)
	}
}

// TestHeldOut checks that a client's error is the mean over the seeds that scored it, if seeds
// hold out different clients.
func TestHeldOut(t *testing.T) {
	score := func(name string, relative float64) run.Client { return run.Client{Client: name, RelativeMAE: relative} }
	m := method{runs: []*Run{
		{Clients: []run.Client{score("a", 1), score("b", 2)}},
		{Clients: []run.Client{score("b", 4), score("c", 5)}},
	}}
	got := m.relative()
	for name, want := range map[string]float64{"a": 1, "b": 3, "c": 5} {
		if got[name] != want {
			t.Errorf("%s has %v, want %v", name, got[name], want)
		}
	}
}

// TestFarOff checks that one diverged method does not compress the scale of the hourly
// errors, and that a line chart omits lines if there are many methods.
func TestFarOff(t *testing.T) {
	hours := func(nmae float64) *Run {
		return &Run{profile: []run.Profile{{By: "hour", At: 0, NMAE: nmae}, {By: "hour", At: 1, NMAE: 2 * nmae}}}
	}
	s := dataset{}
	for i := range shownMethods + 2 {
		s.methods = append(s.methods, &method{name: fmt.Sprint(i), runs: []*Run{hours(0.1)}})
	}
	near, ok := s.byHour()
	if d := near.data.(map[string]any); !ok || d["range"] != nil || len(d["series"].([]line)) != shownMethods || !strings.Contains(near.Caption, "10 methods of 12") {
		t.Errorf("%v, %q", near.data, near.Caption)
	}
	s.methods[1].runs[0] = hours(7)
	far, _ := s.byHour()
	if d := far.data.(map[string]any); d["range"] == nil || !strings.Contains(far.Caption, "beyond the axis") {
		t.Errorf("%v, %q", far.data, far.Caption)
	}
}

// TestDifferentRounds checks that the axis shows shares of rounds if one method has many
// more rounds than another.
func TestDifferentRounds(t *testing.T) {
	of := func(name string, rounds ...int) *method {
		r := &Run{}
		for _, n := range rounds {
			r.evaluations = append(r.evaluations, evaluation{n, [5]float64{1, 1, 1, 1, 1}})
		}
		return &method{name: name, runs: []*Run{r}}
	}
	few, many := of("few", 4, 8, 12, 16, 20), of("many", 36, 72, 108, 144, 180)
	for _, c := range []struct {
		methods []*method
		want    []int
		own     bool
	}{
		{[]*method{few, of("fewer", 3, 6, 9, 12, 15)}, []int{3, 4, 6, 8, 9, 12, 15, 16, 20}, false},
		{[]*method{few, many}, []int{20, 40, 60, 80, 100}, true},
	} {
		s := dataset{methods: c.methods}
		f, ok := s.medians()
		if got := f.data.(map[string]any)["x"]; !ok || !slices.Equal(got.([]int), c.want) {
			t.Errorf("rounds are %v, want %v", got, c.want)
		}
		if f, ok := s.convergence(); !ok || f.data.(map[string]any)["own"] != c.own {
			t.Errorf("%v, want own %v", f.data, c.own)
		}
	}
}

func TestUnbroken(t *testing.T) {
	for in, want := range map[string]string{
		"1.2 (1.1-1.3)": "1.2 (1.1\u2060–\u20601.3)", "-0.5": "-0.5", "1e-05": "1e-05", "2026-11-15": "2026-11-15", "a (b-c)": "a (b-c)",
	} {
		if got := unbroken(in); got != want {
			t.Errorf("%q becomes %q, want %q", in, got, want)
		}
	}
}

// TestTwoReferences checks that runs with errors relative to different forecasts are not
// in the same chart.
func TestTwoReferences(t *testing.T) {
	one := func(reference string) *Run {
		return &Run{Dataset: "d", Method: "m", Reference: reference, Clients: []run.Client{{Client: "a", RelativeMAE: 0.5}}, settings: map[string]string{}}
	}
	base := func(reference string) Baseline {
		return Baseline{Dataset: "d", Baseline: run.Baseline{Method: "persistence", Client: "a", Reference: reference}}
	}
	sets := groupRuns([]*Run{one("last-value"), one("last-week"), one("last-week")}, []Baseline{base("last-week"), base("other")})
	if len(sets) != 2 || sets[0].name != "d, errors relative to last-value" || sets[1].name != "d, errors relative to last-week" {
		t.Fatalf("%d groups, the first %+v", len(sets), sets[0])
	}
	if len(sets[0].methods) != 1 || len(sets[1].methods) != 2 {
		t.Errorf("%d and %d methods; the baseline belongs to the second group", len(sets[0].methods), len(sets[1].methods))
	}
	if a, b := sets[0].about(), sets[1].about(); a != "repeating the last known load" || b != "the load at the same time a week before" {
		t.Errorf("references %q and %q", a, b)
	}
}
