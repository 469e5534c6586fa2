package readings

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/series/store"
)

// fillPast stores some days of readings between 1 and 3 kW before the start.
func fillPast(t *testing.T, s *store.Store, client string, days int) {
	t.Helper()
	for d := range days {
		var past []store.Reading
		for n := range int64(96) {
			past = append(past, store.Reading{Client: client, Time: start.Unix() - int64(d)*86400 - (n+1)*900, KW: float32(1 + n%3)})
		}
		if _, err := s.Put(start, past, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// rowsOf returns a CSV document of quarter-hourly readings from a given time on.
func rowsOf(client string, from time.Time, kw ...float64) string {
	var text strings.Builder
	text.WriteString("unique_id,ds,y\n")
	for n, v := range kw {
		fmt.Fprintf(&text, "%s,%d,%g\n", client, from.Unix()+int64(n)*900, v)
	}
	return text.String()
}

func qualities(t *testing.T, s *store.Store, client string, from time.Time, n int64) []store.Quality {
	t.Helper()
	q, err := s.Qualities(client, from.Unix(), from.Unix()+n*900)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestBoundOnEveryWay checks that an impossible reading is kept, marked and reported on each
// path into the agent.
func TestBoundOnEveryWay(t *testing.T) {
	i, s, now := intake(t, nil)
	fillPast(t, s, "a", 20)
	now.set(start.Add(2 * time.Hour))
	// The bound is 10 times 3 kW.
	code, answer, body := post(t, i, "/v1/readings", "text/csv", rowsOf("a", start, 2, 29, 31, 1e6, 0))
	if code != 200 || answer.Accepted != 5 || answer.Bad != 2 || !strings.Contains(body, `"bad":2`) {
		t.Errorf("HTTP: %d %s", code, body)
	}
	want := []store.Quality{store.OK, store.OK, store.Bad, store.Bad, store.OK}
	if got := qualities(t, s, "a", start, 5); !slices.Equal(got, want) {
		t.Errorf("HTTP: qualities %v, want %v", got, want)
	}
	if values, _, err := s.Values("a", start.Unix(), start.Unix()+4*900); err != nil || values[3] != 1e6 {
		t.Errorf("the reading is not kept: %v %v", values, err)
	}

	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "x.csv"), []byte(rowsOf("a", start.Add(2*time.Hour-30*time.Minute), 2, 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := OpenInbox(folder, i)
	if err != nil {
		t.Fatal(err)
	}
	if answer, err = b.store("x.csv"); err != nil || answer.Bad != 1 {
		t.Errorf("inbox: %+v %v", answer, err)
	}

	at := start.Add(2 * time.Hour)
	i.Add([]Sample{{"a", at, 5, Counter}, {"a", at.Add(15 * time.Minute), 500, Counter}, {"a", at.Add(30 * time.Minute), 500.5, Counter}}, func(error) {})
	i.Add([]Sample{{"b", at, 5, Power}}, func(error) {})
	now.set(at.Add(40 * time.Minute))
	if err := i.flush(); err != nil {
		t.Fatal(err)
	}
	if got := qualities(t, s, "a", at, 2); !slices.Equal(got, []store.Quality{store.Bad, store.OK}) {
		t.Errorf("samples: %v", got)
	}
	counts := map[string]int64{}
	i.Stats().Each(func(source, outcome string, n int64) { counts[source+" "+outcome] = n })
	if counts["http bad"] != 2 || counts["inbox bad"] != 1 || counts["samples bad"] != 1 {
		t.Errorf("counts %v", counts)
	}
}

// TestBoundOfNewClient checks that garbage in the first document of a client is detected.
func TestBoundOfNewClient(t *testing.T) {
	i, s, _ := intake(t, nil)
	var kw []float64
	for n := range 10 * 96 {
		kw = append(kw, 1+float64(n%3))
	}
	kw[100], kw[500] = 1e5, 1e6
	_, answer, body := post(t, i, "/v1/readings", "text/csv", rowsOf("b", start.Add(-10*24*time.Hour), kw...))
	if answer.Bad != 2 || answer.Accepted != len(kw) {
		t.Error(body)
	}
	if q := qualities(t, s, "b", start.Add(-10*24*time.Hour), 101); q[100] != store.Bad || q[99] != store.OK {
		t.Error(q[99:])
	}
}

// TestScaleChanges checks that a new scale is accepted without a restart when its owner confirms
// it, and otherwise after half of 28 days.
func TestScaleChanges(t *testing.T) {
	for _, owner := range []bool{true, false} {
		i, s, now := intake(t, nil)
		fillPast(t, s, "a", 40)
		if _, _, err := i.AcceptScale("a"); err == nil {
			t.Error("accepted nothing")
		}
		accepted := 0
		for day := range 20 {
			from := start.AddDate(0, 0, day)
			now.set(from.AddDate(0, 0, 1))
			kw := make([]float64, 96)
			for n := range kw {
				kw[n] = 100 * float64(1+n%3)
			}
			_, answer, body := post(t, i, "/v1/readings", "text/csv", rowsOf("a", from, kw...))
			switch {
			case answer.Bad == 0 && accepted == 0:
				accepted = day
			case answer.Bad == 0:
			case answer.Bad != 96 || accepted > 0:
				t.Fatalf("day %d: %s", day, body)
			}
			if owner && day == 1 {
				n, kw, err := i.AcceptScale("a")
				if err != nil || n != 2*96 || kw != 3000 {
					t.Fatalf("%d readings, %g kW: %v", n, kw, err)
				}
			}
		}
		if want := map[bool]int{true: 2, false: 14}[owner]; accepted < want || accepted > want+1 {
			t.Errorf("accepted on day %d, want %d", accepted, want)
		}
		if q := qualities(t, s, "a", start, 20*96); slices.Max(q) != store.OK {
			t.Errorf("readings from before the scale was accepted stay bad: %v", q[:3])
		}
	}
}

// TestBoundKeepsWhatSendersMark checks that accepting a scale does not change readings that the
// sender marked as bad.
func TestBoundKeepsWhatSendersMark(t *testing.T) {
	i, s, now := intake(t, func(c *Config) { c.Clients["fixed"] = Client{Limit: 4} })
	fillPast(t, s, "a", 20)
	now.set(start.Add(2 * time.Hour))
	post(t, i, "/v1/readings", "text/csv", "unique_id,ds,y,quality\n"+fmt.Sprintf("a,%d,2,BAD\na,%d,800,\n", start.Unix(), start.Unix()+900))
	if _, _, err := i.AcceptScale("a"); err != nil {
		t.Fatal(err)
	}
	if q := qualities(t, s, "a", start, 2); q[0] != store.Bad || q[1] != store.OK {
		t.Error(q)
	}
	if _, answer, body := post(t, i, "/v1/readings", "text/csv", rowsOf("fixed", start, 3, 5)); answer.Bad != 1 {
		t.Error(body)
	}
	if _, _, err := i.AcceptScale("fixed"); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Error(err)
	}
	if _, _, err := i.AcceptScale("nobody"); err == nil {
		t.Error("accepted a client that does not exist")
	}
}
