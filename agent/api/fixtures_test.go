package api

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/agent/live"
	"loadstar/agent/readings"
	"loadstar/forecast/issue"
	"loadstar/series/store"
)

var now = time.Date(2026, 10, 25, 0, 2, 4, 0, time.UTC)

// fake is a service with two clients: main-panel has a forecast across a clock change, and new
// has none.
type fake struct {
	site    live.Site
	issued  live.Issued
	ready   error
	newest  int64 // time of the newest reading of the second client
	made    int
	blocked chan struct{} // if not nil, Models waits for it
}

var _ Service = (*live.Service)(nil)

func newFake(t testing.TB) *fake {
	t.Helper()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	cutoff := now.Truncate(time.Hour).Unix()
	f := &fake{site: live.Site{Name: "basement", Zone: berlin, Step: 15 * time.Minute, H: 192, Levels: []float64{0.1, 0.5, 0.9}}}
	f.issued = live.Issued{
		Forecast: issue.Forecast{Client: "main-panel", Cutoff: cutoff, Levels: f.site.Levels, Model: "day@7", Weight: 0.83},
		Issued:   now.Unix(), Release: live.ModelRef{Release: "day@7", Run: "k3v9x2ab", Version: 1840, Head: cutoff - 86400}, Sequence: 3,
	}
	f.issued.Days = []issue.DayEnergy{{Start: cutoff, End: cutoff + 86400, Mean: 40, P10: 35, P90: math.NaN()}}
	f.issued.Peak = issue.Peak{Time: cutoff + 900, P10: 4, P50: 5, P90: 7}
	for i := range f.site.H {
		r := issue.Row{Time: cutoff + int64(i)*900, Values: []float64{1, 2.5 + float64(i), 400}, Source: issue.Model, Quality: issue.OK}
		r.Mean = issue.Mean(r.Values[0], r.Values[1], r.Values[2])
		if i >= 96 {
			r.Source, r.Quality, r.Reason = issue.Week, issue.Estimated, issue.BeyondReach
		}
		if i == 191 {
			r.Values, r.Mean, r.Source, r.Quality = nil, math.NaN(), issue.None, issue.Missing
		}
		f.issued.Rows = append(f.issued.Rows, r)
	}
	return f
}

func (f *fake) Site() live.Site { return f.site }

func (f *fake) Clients() []live.ClientStatus {
	main := live.ClientStatus{
		Name: "main-panel", Newest: f.issued.Cutoff, Days: 120.5, Forecast: &f.issued, Source: issue.Model, Quality: issue.OK,
		Scores: live.Score{Days: 28, RelativeMAE: 0.71, Coverage: 0.79, Fallback: math.NaN()}, Findings: []string{"flat"},
	}
	return []live.ClientStatus{main, {Name: `ne"w\`, Newest: f.newest, Scores: live.Score{RelativeMAE: math.NaN()}}}
}

func (f *fake) Client(name string) (live.ClientStatus, error) {
	for _, c := range f.Clients() {
		if c.Name == name {
			return c, nil
		}
	}
	return live.ClientStatus{}, live.ErrUnknown
}

func (f *fake) Forecast(client string) (*live.Issued, error) {
	if _, err := f.Client(client); err != nil {
		return nil, err
	}
	if client != "main-panel" {
		return nil, live.ErrNoForecast
	}
	return &f.issued, nil
}

func (f *fake) Issued(client string, from, to int64, _ time.Duration) ([]live.Said, error) {
	if _, err := f.Client(client); err != nil {
		return nil, err
	}
	var said []live.Said
	for t := from - from%900; t < to && client == "main-panel"; t += 900 {
		said = append(said, live.Said{Time: t, Cutoff: t - 86400, Values: []float64{1, 2, 3}, Source: issue.Model, Actual: math.NaN()})
	}
	return said, nil
}

func (f *fake) Readings(client string, from, to int64) (int64, []float32, error) {
	if _, err := f.Client(client); err != nil {
		return 0, nil, err
	}
	begin := from - from%900
	load := make([]float32, (to-begin)/900)
	for i := range load {
		load[i] = float32(i) + 0.5
	}
	if len(load) > 1 {
		load[1] = float32(math.NaN())
	}
	return begin, load, nil
}

func (f *fake) Scores(client string) ([]live.Score, error) {
	if _, err := f.Client(client); err != nil {
		return nil, err
	}
	return []live.Score{
		{Days: 28, Steps: 5300, MAE: 0.31, RelativeMAE: 0.71, Pinball: []float64{0.05, 0.15, math.NaN()}, Coverage: 0.79, Fallback: 0.01},
		{Days: 28, First: 2, Last: 24, MAE: math.NaN(), RelativeMAE: math.NaN(), Coverage: math.NaN(), Fallback: math.NaN()},
	}, nil
}

func (f *fake) Quality(client string) (live.QualityReport, error) {
	if _, err := f.Client(client); err != nil {
		return live.QualityReport{}, err
	}
	return live.QualityReport{From: 1767225600, To: f.issued.Cutoff, Missing: 0.004, Findings: []live.Finding{{Code: "flat", Message: "m", Advice: "a"}}}, nil
}

func (f *fake) Models() []live.ModelStatus {
	if f.blocked != nil {
		<-f.blocked
	}
	return []live.ModelStatus{{ModelRef: f.issued.Release, Received: f.issued.Cutoff, Serving: []string{"main-panel"}}}
}

func (f *fake) IssueNow(_ context.Context, client string) (*live.Issued, error) {
	f.made++
	return f.Forecast(client)
}

func (f *fake) NextIssue() time.Time { return now.Add(14 * time.Minute) }

func (f *fake) Ready() error { return f.ready }

func (f *fake) Counters() live.Counters {
	return live.Counters{Rows: map[issue.Source]uint64{issue.Model: 96, issue.Week: 95}, DriftAlarms: map[string]uint64{"main-panel": 2}}
}

// server returns a server with a real intake, and its handler.
func server(t testing.TB, change func(*Config)) (*Server, *fake) {
	t.Helper()
	f := newFake(t)
	s, err := store.Open(filepath.Join(t.TempDir(), "readings.db"), store.Config{Interval: 15 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	i, err := readings.NewIntake(readings.Config{
		Store: s, Interval: 15 * time.Minute, Clients: map[string]readings.Client{"main-panel": {}}, Now: func() time.Time { return now },
	})
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Service: f, Intake: i, Listen: "127.0.0.1:7446", Now: func() time.Time { return now }}
	if change != nil {
		change(&c)
	}
	api, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return api, f
}

// ask sends a request. Headers are alternating names and values.
func ask(s *Server, method, url, body string, headers ...string) *http.Response {
	r := httptest.NewRequest(method, "http://127.0.0.1:7446"+url, strings.NewReader(body))
	for pair := range slices.Chunk(headers, 2) {
		if pair[0] == "Host" {
			r.Host = pair[1]
		} else {
			r.Header.Set(pair[0], pair[1])
		}
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Result()
}

func body(t testing.TB, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func tokenFile(t testing.TB, token string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
