package store

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/series"
)

const quarter = 15 * 60

// noon is the current time in most tests.
var noon = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func open(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path, Config{Interval: 15 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func fresh(t testing.TB) *Store { return open(t, filepath.Join(t.TempDir(), "sub", "readings.db")) }

func put(t testing.TB, s *Store, now time.Time, r ...Reading) Result {
	t.Helper()
	result, err := s.Put(now, r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func load(t testing.TB, s *Store, client string, from, to int64) []float32 {
	t.Helper()
	m, err := s.Load(client, from, to)
	if err != nil {
		t.Fatal(err)
	}
	return m.Load
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestPutAndLoad(t *testing.T) {
	s := fresh(t)
	at := noon.Unix()
	first := at - 26*3600
	var rows []Reading
	for i := range 4 * 26 {
		rows = append(rows, Reading{Client: "a", Time: first + int64(i)*quarter, KW: float32(i), Quality: Quality(i % 4)})
	}
	if got := put(t, s, noon, rows...); got.Accepted != 78 || got.Unchanged != 26 || got.Corrected != 0 || got.Refused != nil {
		t.Errorf("result %+v", got) // a Missing reading changes nothing
	}
	got := load(t, s, "a", first-quarter, at+quarter)
	quality, err := s.Qualities("a", first-quarter, at+quarter)
	if err != nil || len(got) != 4*26+2 || len(quality) != len(got) {
		t.Fatalf("%d steps, %d qualities: %v", len(got), len(quality), err)
	}
	for i, v := range got {
		want, q := nan(), Missing
		if i > 0 && i <= 4*26 {
			if q = Quality((i - 1) % 4); q <= Estimated {
				want = float32(i - 1)
			}
		}
		if math.Float32bits(v) != math.Float32bits(want) || quality[i] != q {
			t.Errorf("step %d: %g %d, want %g %d", i, v, quality[i], want, q)
		}
	}
	if v, q, err := s.Values("a", first+3*quarter, first+4*quarter); err != nil || v[0] != 3 || q[0] != Bad {
		t.Errorf("a bad reading is %v %v: %v", v, q, err)
	}
	from, end, ok, err := s.Span("a")
	if from != first || end != at-2*quarter || !ok || err != nil { // the last two are Missing and Bad
		t.Errorf("span %d to %d, %v, %v; want %d to %d", from, end, ok, err, first, at-2*quarter)
	}
	if names, err := s.Clients(); err != nil || !slices.Equal(names, []string{"a"}) {
		t.Errorf("clients %v: %v", names, err)
	}
	d, err := s.Dataset(series.Dataset{Name: "x", Interval: 15 * time.Minute, Clock: time.UTC}, []string{"a", "b"}, first, at, OK)
	if err != nil || d.Len() != 2 || d.Meter(0).Load[0] != 0 || !series.Missing(d.Meter(0).Load[1]) || !series.Missing(d.Meter(1).Load[0]) {
		t.Errorf("dataset: %v", err)
	}
	if _, err := s.Load("a", 7, at); err == nil {
		t.Error("loaded steps off the grid")
	}
	if _, err := s.Load("a", 0, 1<<60); err == nil {
		t.Error("loaded too many steps")
	}
}

func TestRefusals(t *testing.T) {
	s := fresh(t)
	at := noon.Unix()
	for _, c := range []struct {
		r    Reading
		want Reason
	}{
		{Reading{Client: "", Time: at - quarter}, BadName},
		{Reading{Client: strings.Repeat("x", 256), Time: at - quarter}, BadName},
		{Reading{Client: "a\n", Time: at - quarter}, BadName},
		{Reading{Client: "a\xff", Time: at - quarter}, BadName},
		{Reading{Client: "a", Time: at - quarter + 1}, OffGrid},
		{Reading{Client: "a", Time: at}, Future},
		{Reading{Client: "a", Time: at - 45*86400 - quarter}, TooLate},
		{Reading{Client: "a", Time: 0}, Before2015},
		{Reading{Client: "a", Time: math.MinInt64}, Before2015},
		{Reading{Client: "a", Time: math.MaxInt64 / quarter * quarter}, Future},
		{Reading{Client: "a", Time: at - quarter, KW: float32(math.Inf(1))}, BadValue},
		{Reading{Client: "a", Time: at - quarter, KW: -2e7}, BadValue},
		{Reading{Client: "a", Time: at - quarter, Quality: 4}, BadValue},
		{Reading{Client: "a", Time: at - quarter, Revision: -1}, BadRevision},
		{Reading{Client: "a", Time: at - quarter, Revision: 65}, BadRevision},
		{Reading{Client: "a", Time: at - quarter, Revision: 64, KW: 1}, ""},
		{Reading{Client: "Zähler 7/б", Time: at - 45*86400}, ""},
	} {
		got := put(t, s, noon, c.r)
		if c.want == "" && got.Accepted != 1 || c.want != "" && (len(got.Refused) != 1 || got.Refused[0].Reason != c.want) {
			t.Errorf("%+v: %+v, want %q", c.r, got, c.want)
		}
	}
	// A step that has just ended is accepted from a clock that is up to five minutes ahead.
	if got := put(t, s, noon.Add(-4*time.Minute), Reading{Client: "b", Time: at - quarter}); got.Accepted != 1 {
		t.Errorf("four minutes early: %+v", got)
	}
	if got := put(t, s, noon.Add(-6*time.Minute), Reading{Client: "c", Time: at - quarter}); len(got.Refused) != 1 {
		t.Errorf("six minutes early: %+v", got)
	}
}

func TestTooManyClients(t *testing.T) {
	s := fresh(t)
	var rows []Reading
	for i := range maxClients + 2 {
		rows = append(rows, Reading{Client: fmt.Sprintf("%05d", i), Time: noon.Unix() - quarter, KW: 1})
	}
	got := put(t, s, noon, rows...)
	if got.Accepted != maxClients || len(got.Refused) != 2 || got.Refused[0] != (Refusal{maxClients, TooManyClients}) {
		t.Errorf("accepted %d, refused %v", got.Accepted, got.Refused)
	}
}

func TestCorrections(t *testing.T) {
	s := fresh(t)
	at := noon.Unix() - quarter
	step := func(kw float32, q Quality, revision int) Result {
		return put(t, s, noon, Reading{"a", at, kw, q, revision})
	}
	now := func() float32 { return load(t, s, "a", at, at+quarter)[0] }
	if r := step(1, OK, 0); r.Accepted != 1 || now() != 1 {
		t.Errorf("first: %+v", r)
	}
	if n, _ := s.Revision("a"); n != 0 {
		t.Errorf("revision %d after the newest reading", n)
	}
	if r := step(1, OK, 0); r.Unchanged != 1 {
		t.Errorf("again: %+v", r)
	}
	if r := step(2, Estimated, 0); r.Corrected != 1 || now() != 2 {
		t.Errorf("correction: %+v, %g", r, now())
	}
	if n, _ := s.Revision("a"); n != 1 {
		t.Errorf("revision %d after a correction", n)
	}
	if r := step(0, Missing, 0); r.Unchanged != 1 || now() != 2 {
		t.Errorf("no value replaced a value: %+v", r)
	}
	put(t, s, noon, Reading{Client: "a", Time: at - 4*quarter, KW: 1})
	if n, _ := s.Revision("a"); n != 2 {
		t.Errorf("revision %d after a late reading", n)
	}
	if r := step(9, OK, 1); r.Unchanged != 1 || now() != 2 {
		t.Errorf("an older revision replaced a newer one: %+v", r)
	}
	if r := step(0, Missing, 5); r.Corrected != 1 || now() == now() {
		t.Errorf("a reading was not withdrawn: %+v", r)
	}
	for i := range 100 {
		if r := step(float32(i), OK, 0); r.Corrected != 1 {
			t.Fatalf("correction %d: %+v", i, r)
		}
	}
}

// TestOrderOfArrival checks that readings with revisions give the same file content in any
// order and grouping.
func TestOrderOfArrival(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 10 {
		var rows []Reading
		for range 300 {
			rows = append(rows, Reading{
				Client: string(rune('a' + rng.IntN(3))), Time: noon.Unix() - int64(1+rng.IntN(40))*quarter,
				KW: float32(rng.IntN(4)) - 1, Quality: Quality(rng.IntN(4)), Revision: 1 + rng.IntN(4),
			})
		}
		var want []byte
		for order := range 4 {
			s := fresh(t)
			rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
			for part := range slices.Chunk(rows, 1+rng.IntN(300)) {
				put(t, s, noon, part...)
			}
			got := content(t, s)
			if order > 0 && !bytes.Equal(got, want) {
				t.Fatal("another order gave other content")
			}
			want = got
		}
	}
}

// content returns all days of a store.
func content(t *testing.T, s *Store) (all []byte) {
	t.Helper()
	err := s.file.View(func(tx *bolt.Tx) error {
		days := tx.Bucket(daysBucket)
		return days.ForEachBucket(func(client []byte) error {
			all = append(all, client...)
			return days.Bucket(client).ForEach(func(key, data []byte) error {
				all = append(append(all, key...), data...)
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPrune(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "r.db"), Config{Interval: 15 * time.Minute, Keep: 100 * 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	start := noon.Unix() - quarter
	for day := range int64(300) {
		at := start + day*86400
		put(t, s, time.Unix(at+quarter, 0), Reading{Client: "a", Time: at, KW: 1})
	}
	first, end, ok, err := s.Span("a")
	if err != nil || !ok || end != start+299*86400+quarter || first != start+200*86400 {
		t.Errorf("kept %d days: %v", (end-first)/86400, err)
	}
	// If the clock was years ahead for a while, a reading from that time must not cause the
	// removal of others.
	for n := range int64(50) {
		at := start + (299+5*365)*86400 + n*quarter
		put(t, s, time.Unix(at+quarter, 0), Reading{Client: "a", Time: at, KW: 1})
	}
	if now, _, _, err := s.Span("a"); err != nil || now > first+2*86400 {
		t.Errorf("a wrong clock removed %d days: %v", (now-first)/86400, err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "r.db"), Config{Interval: 15 * time.Minute, Keep: time.Hour}); err == nil {
		t.Error("opened a store that forgets late readings")
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "readings.db")
	s := open(t, path)
	if _, err := Open(path, Config{Interval: 15 * time.Minute}); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	_, err := s.Put(noon, []Reading{{Client: "a", Time: noon.Unix() - quarter, KW: 3}}, map[string][]byte{"n": []byte("note"), "m": []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(noon, nil, map[string][]byte{"m": nil}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(noon, nil, map[string][]byte{"big": make([]byte, maxNote+1)}); err == nil {
		t.Error("stored a large note")
	}
	s.Close()
	s = open(t, path)
	if got := load(t, s, "a", noon.Unix()-quarter, noon.Unix()); got[0] != 3 {
		t.Errorf("load %v", got)
	}
	n, err := s.Note("n")
	m, err2 := s.Note("m")
	if string(n) != "note" || m != nil || err != nil || err2 != nil {
		t.Errorf("notes %q %q: %v %v", n, m, err, err2)
	}
	s.Close()
	if _, err := Open(path, Config{Interval: time.Hour}); err == nil || !strings.Contains(err.Error(), "900 s") {
		t.Errorf("opened with another interval: %v", err)
	}
	for _, bad := range []time.Duration{0, time.Second, 7 * time.Minute, 48 * time.Hour, -time.Hour} {
		if _, err := Open(filepath.Join(t.TempDir(), "x"), Config{Interval: bad}); err == nil {
			t.Errorf("interval %s", bad)
		}
	}
}

func TestNotify(t *testing.T) {
	s := fresh(t)
	c := make(chan struct{}, 1)
	s.Notify(c)
	for range 2 {
		put(t, s, noon, Reading{Client: "a", Time: noon.Unix() - quarter, KW: 1})
	}
	if len(c) != 1 {
		t.Error("not notified of a change")
	}
	<-c
	put(t, s, noon, Reading{Client: "a", Time: noon.Unix() - quarter, KW: 1})
	if len(c) != 0 {
		t.Error("notified without a change")
	}
}

func TestImport(t *testing.T) {
	s := fresh(t)
	at := noon.Unix() - noon.Unix()%86400
	put(t, s, noon, Reading{Client: "a", Time: at, KW: 7})
	n := 96 * 900 // more than the store keeps
	m := series.Meter{ID: "a", Start: at + 86400 - int64(n)*quarter, Load: make([]float32, n)}
	for i := range m.Load {
		m.Load[i] = float32(i)
	}
	m.Load[n-50] = nan()
	w := series.Weather{Start: m.Start, Names: []string{"temperature"}, Columns: [][]float32{make([]float32, n)}}
	d, err := series.NewDataset(series.Dataset{Interval: 15 * time.Minute, Clock: time.UTC, Weather: w}, []series.Meter{m})
	if err != nil {
		t.Fatal(err)
	}
	did, err := s.Import("key", d, noon.AddDate(0, 0, 1))
	if !did || err != nil {
		t.Fatal(did, err)
	}
	want := slices.Clone(m.Load[100*96:])
	want[799*96] = 7
	if got := load(t, s, "a", m.Start+100*86400, m.Start+900*86400); !sameBits(got, want) {
		t.Error("the imported readings differ")
	}
	first, _, _, _ := s.Span("a")
	if first != m.Start+100*86400 {
		t.Errorf("imported from %d", first)
	}
	if _, marks, err := s.Weather(at, at+86400, at+86400); err != nil || slices.Max(marks) != Known {
		t.Errorf("weather: %v %v", marks, err)
	}
	if did, err := s.Import("key", d, noon.AddDate(0, 0, 1)); did || err != nil {
		t.Error("imported twice", err)
	}
	hourly, err := series.NewDataset(series.Dataset{Interval: time.Hour, Clock: time.UTC}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import("other", hourly, noon); err == nil {
		t.Error("imported another interval")
	}
}

// TestDamage flips bytes of a file. Opening must return an error, or lose no more than Lost
// reports.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "readings.db")
	s := open(t, path)
	var rows []Reading
	for i := range int64(96 * 20) {
		rows = append(rows, Reading{Client: "a", Time: noon.Unix() - (i+1)*quarter, KW: float32(i)})
	}
	put(t, s, noon, rows...)
	from := noon.Unix() - 20*86400
	want := load(t, s, "a", from, noon.Unix())
	s.Close()
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	lost, refused := 0, 0
	for range 300 {
		data := bytes.Clone(whole)
		at := rng.IntN(len(data))
		data[at] ^= byte(1 + rng.IntN(255))
		broken := filepath.Join(t.TempDir(), "broken.db")
		if err := os.WriteFile(broken, data, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(broken, Config{Interval: 15 * time.Minute})
		if err != nil {
			refused++
			continue
		}
		m, err := s.Load("a", from, noon.Unix())
		if err == nil && !sameBits(m.Load, want) {
			if lost++; len(s.Lost()) == 0 {
				if names, _ := s.Clients(); slices.Contains(names, "a") {
					t.Errorf("byte %d: readings changed unnoticed", at)
				}
			}
			for i, v := range m.Load {
				if v == v && v != want[i] {
					t.Fatalf("byte %d: step %d is %g, want %g", at, i, v, want[i])
				}
			}
		}
		s.Close()
	}
	t.Logf("%d refused, %d lost a day", refused, lost)
	if lost == 0 {
		t.Error("no damage hit a day")
	}
	if err := os.WriteFile(path, whole[:len(whole)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Config{Interval: 15 * time.Minute}); err == nil {
		t.Error("opened half a file")
	}
}

// BenchmarkLoad loads 100 days of quarter hours.
func BenchmarkLoad(b *testing.B) {
	s := fresh(b)
	from := noon.Unix() - noon.Unix()%86400 - 100*86400
	m := series.Meter{ID: "a", Start: from, Load: make([]float32, 100*96)}
	d, err := series.NewDataset(series.Dataset{Interval: 15 * time.Minute, Clock: time.UTC}, []series.Meter{m})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := s.Import("x", d, noon); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		load(b, s, "a", from, from+100*86400)
	}
}
