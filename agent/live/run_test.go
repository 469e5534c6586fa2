package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/forecast/issue"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/series/store"
)

// service opens a service without a model, with clients a and b.
func service(t *testing.T, dir string, change func(*Config)) *Service {
	t.Helper()
	clock, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(dir, "readings.db"), store.Config{Interval: 15 * time.Minute, Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Dir: dir, Site: series.Dataset{Name: "here", Interval: 15 * time.Minute, Clock: clock}, Clients: []string{"a", "b"},
		H: 96, Levels: []float64{0.1, 0.5, 0.9}, Delay: 2 * time.Minute, Store: st, Kernel: k,
	}
	if change != nil {
		change(&c)
	}
	s, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// report stores a client's reading for the step that ends at the given time.
func report(t *testing.T, s *Service, client string, end int64, kw float32) {
	t.Helper()
	r, err := s.c.Store.Put(time.Unix(end, 0).Add(time.Second), []store.Reading{{Client: client, Time: end - 900, KW: kw}}, nil)
	if err != nil || len(r.Refused) > 0 {
		t.Fatal(err, r)
	}
}

// TestSchedule checks when forecasts are made.
func TestSchedule(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 11, 16, 9, 50, 0, 0, time.UTC))) // the bubble's clock starts in 2000
		s := service(t, dir, nil)
		var (
			mu sync.Mutex
			at []string
		)
		s.Subscribe(func(all []*Issued) {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Now().UTC().Format("15:04:05"))
			if len(all) != 2 || all[0].Cutoff%900 != 0 {
				t.Errorf("%d forecasts, cutoff %d", len(all), all[0].Cutoff)
			}
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		until := func(clock string) {
			x, err := time.Parse("15:04:05", clock)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Until(time.Date(2026, 11, 16, x.Hour(), x.Minute(), x.Second(), 0, time.UTC)))
			synctest.Wait()
		}
		edge := func(clock string) int64 {
			x, _ := time.Parse("15:04", clock) // clock is a constant of this test
			return time.Date(2026, 11, 16, x.Hour(), x.Minute(), 0, 0, time.UTC).Unix()
		}
		// At 09:50 the step that ends at 09:45 and its delay are over, so a forecast is made
		// immediately.
		until("10:01:00")
		report(t, s, "a", edge("10:00"), 1) // b is missing, so the delay decides
		if x, err := s.Client("a"); err != nil || x.Newest != edge("10:00") || x.Forecast.Cutoff != edge("09:45") {
			t.Errorf("before the next forecast, the newest reading ends at %d, %v", x.Newest, err)
		}
		until("10:03:00")
		until("10:15:20")
		report(t, s, "a", edge("10:15"), 1)
		until("10:15:40")
		report(t, s, "b", edge("10:15"), 2) // all have reported
		until("10:18:00")
		report(t, s, "b", edge("10:15"), 3) // a correction does not cause another forecast
		until("10:29:00")
		until("10:35:00")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		want := []string{"09:50:00", "10:02:00", "10:15:40", "10:32:00"}
		if !slices.Equal(at, want) {
			t.Errorf("forecasts at %v, want %v", at, want)
		}
		// An hour later, only one forecast is made, because missed steps are skipped.
		time.Sleep(time.Hour)
		if n := len(at); !s.Tick() || s.Tick() || len(at) != n+1 {
			t.Errorf("%d forecasts after an hour", len(at)-n)
		}
	})
}

// TestReadings checks the readings of clients and of groups, and missing steps.
func TestReadings(t *testing.T) {
	now := time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC).Unix()
	s := service(t, t.TempDir(), func(c *Config) { c.Groups = map[string][]string{"both": {"b", "a"}} })
	report(t, s, "a", now, 1)
	report(t, s, "a", now+900, 2)
	report(t, s, "b", now+900, 4)
	for client, want := range map[string][2]float32{"a": {1, 2}, "b": {float32(math.NaN()), 4}, "both": {float32(math.NaN()), 6}} {
		begin, load, err := s.Readings(client, now-800, now+1000)
		if err != nil || begin != now-900 || len(load) != 2 || fmt.Sprint(load) != fmt.Sprint(want) {
			t.Errorf("%s: %d %v %v, want %v", client, begin, load, err, want)
		}
	}
	if _, load, err := s.Readings("a", now+100, now); err != nil || len(load) != 0 {
		t.Error(load, err)
	}
	if _, _, err := s.Readings("nobody", now, now); !errors.Is(err, ErrUnknown) {
		t.Error(err)
	}
}

// TestFirstDays checks the forecasts for a new meter, and checks that no forecasts are made
// while the clock is not trusted.
func TestFirstDays(t *testing.T) {
	now := time.Date(2026, 11, 16, 0, 0, 0, 0, time.UTC)
	var wrong error
	s := service(t, t.TempDir(), func(c *Config) {
		c.Now = func() time.Time { return now }
		c.Clock = func() error { return wrong }
		c.Groups = map[string][]string{"both": {"b", "a"}}
	})
	if err := s.Ready(); err == nil {
		t.Error("ready without a forecast")
	}
	seen := map[issue.Source]bool{}
	begin := now
	for ; now.Before(begin.Add(16 * 24 * time.Hour)); now = now.Add(15 * time.Minute) {
		hour := float64(now.Hour()) + float64(now.Minute())/60
		load := float32(2 + math.Sin(hour/24*2*math.Pi) + 0.01*float64(now.Unix()/900%7))
		report(t, s, "a", now.Unix(), load)
		report(t, s, "b", now.Unix(), 2*load)
		if now.Minute() != 0 {
			continue
		}
		if !s.Tick() {
			t.Fatal(s.Ready())
		}
		x, err := s.Forecast("a")
		if err != nil {
			t.Fatal(err)
		}
		seen[x.Rows[0].Source] = true
	}
	if !seen[issue.Last] || !seen[issue.Day] || !seen[issue.Week] || seen[issue.Model] {
		t.Errorf("sources %v", seen)
	}
	a, _ := s.Forecast("a")
	b, _ := s.Forecast("b")
	both, err := s.Forecast("both")
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range both.Rows {
		if want := a.Rows[i].Mean + b.Rows[i].Mean; r.Mean != want || r.Values[1] != want || r.Values[0] > want || r.Values[2] < want {
			t.Fatalf("row %d is %v, want %g in the middle", i, r.Values, want)
		}
	}
	for i, d := range both.Days {
		if want := a.Days[i].Mean + b.Days[i].Mean; math.Abs(d.Mean-want) > 1e-5 || !(d.P10 < d.Mean) || !(d.P90 > d.Mean) {
			t.Errorf("the energy of a day is %+v, want a mean of %g", d, want)
		}
	}
	if len(both.Days) == 0 || !(both.Peak.P10 <= both.Peak.P50) || !(both.Peak.P90 >= both.Peak.P50) || both.Peak.Time < both.Cutoff {
		t.Errorf("%d days, peak %+v", len(both.Days), both.Peak)
	}
	if c, err := s.Client("both"); err != nil || c.Scores.Steps == 0 || !(c.Scores.Coverage > 0.5) || c.Newest <= begin.Unix() {
		t.Errorf("%+v, %v", c, err)
	}
	scores, err := s.Scores("a")
	if err != nil || len(scores) < 6 || !(scores[0].MAE < 1) {
		t.Errorf("%+v, %v", scores, err)
	}
	said, err := s.Issued("a", now.Add(-24*time.Hour).Unix(), now.Unix(), 6*time.Hour)
	if err != nil || len(said) < 90 || math.IsNaN(said[0].Actual) || said[0].Time-said[0].Cutoff < 6*3600-900 {
		t.Errorf("%d rows, %+v, %v", len(said), said[:min(1, len(said))], err)
	}
	if _, err := s.Forecast("c"); err != ErrUnknown {
		t.Error(err)
	}
	wrong = context.DeadlineExceeded
	if s.Tick() || s.Ready() == nil {
		t.Error("forecasts although the clock is wrong")
	}
	if _, err := s.IssueNow(t.Context(), "a"); err == nil {
		t.Error("a forecast on demand although the clock is wrong")
	}
}

// TestScoresAgain checks that scores do not change when they are computed again after a
// restart, when the service does not know whether earlier readings were corrected in the
// meantime.
func TestScoresAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("runs days of virtual time")
	}
	now := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)
	s := service(t, t.TempDir(), func(c *Config) {
		c.Clients = []string{"a"}
		c.Now = func() time.Time { return now }
	})
	past(t, s, 9, now.Unix())
	report(t, s, "a", now.Unix(), 5) // a correction
	m := s.roster.members["a"]
	for end := now.Add(10*24*time.Hour + 18*time.Hour); now.Before(end); {
		u := now.Unix()
		now = now.Add(time.Hour)
		var readings []store.Reading
		for ; u < now.Unix(); u += 900 {
			readings = append(readings, store.Reading{Client: "a", Time: u, KW: load(u)})
		}
		if _, err := s.c.Store.Put(now, readings, nil); err != nil {
			t.Fatal(err)
		}
		old := slices.Clone(m.scores.days)
		if now.Equal(end) {
			if m.revision == 0 {
				t.Fatal("there was no correction")
			}
			m.revision = 0 // the value after a restart
		}
		if !s.Tick() {
			t.Fatal(s.Ready())
		}
		for i, x := range old {
			if y := m.scores.days[i]; now.Equal(end) && x.Day < now.Unix()/day-1 && !reflect.DeepEqual(x, y) {
				t.Errorf("day %d: %+v, before %+v", x.Day, y, x)
			}
		}
	}
	yesterday := s.midnight(now.Unix()) - day + 2*3600 // the first issue of the local day, at 00:00 UTC
	var energy, forecast, week float64
	err := s.roster.db.View(func(tx *bolt.Tx) error {
		return eachTime(tx, issuedBucket, "a", yesterday, yesterday+1, func(_ int64, b []byte) error {
			_, state, err := issuedFormat.Unwrap(b)
			var r recorded
			if err == nil {
				err = r.decode(state)
			}
			for u := yesterday; u < yesterday+day; u += 900 {
				forecast += float64(r.Means[(u-r.Cutoff)/900]) / 4
				energy += float64(load(u)) / 4
				week += float64(load(u-7*day)) / 4
			}
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	got := m.scores.energy(1, now.Unix()/day)
	if got.Days != 1 || math.Abs(got.MAE-math.Abs(forecast-energy)) > 1e-4 || math.Abs(got.RelativeMAE*math.Abs(week-energy)-got.MAE) > 1e-3 {
		t.Errorf("energy of yesterday: %+v; it was %.4f, forecast %.4f, a week before %.4f", got, energy, forecast, week)
	}
	if all := s.records.scoresOf(m.scores, now.Unix()/day); all[0].Energy.Days != 1 || all[len(all)-1].Energy.Days != 0 {
		t.Errorf("scores %+v", all)
	}
}
