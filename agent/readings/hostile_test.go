package readings

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// heap returns the bytes that do allocates in total.
func heap(do func()) uint64 {
	var a, b runtime.MemStats
	runtime.ReadMemStats(&a)
	do()
	runtime.ReadMemStats(&b)
	return b.TotalAlloc - a.TotalAlloc
}

// TestManyShortRows checks that a document of the allowed size with very short rows does not
// need many times its size in memory. An agent has only 40 MB.
func TestManyShortRows(t *testing.T) {
	const most = 24 << 20
	for _, c := range []struct{ name, path, kind, body string }{
		{"array of readings", "/v1/readings", "application/json", "[" + strings.Repeat("{},", maxBody/3-2) + "{}]"},
		{"table of readings", "/v1/readings", "text/csv", "unique_id,ds,y\n" + strings.Repeat("a,0,1\n", maxBody/6-3)},
		{"table of weather", "/v1/weather", "text/csv", "ds\n" + strings.Repeat("0\n", maxBody/2-2)},
		{"lines of weather", "/v1/weather", "application/x-ndjson", strings.Repeat("{}\n", maxBody/3-2)},
	} {
		i, _, _ := intake(t, nil)
		r := httptest.NewRequest("POST", c.path, strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		w := httptest.NewRecorder()
		n := heap(func() { i.Handler().ServeHTTP(w, r) })
		if w.Code != 413 || !strings.Contains(w.Body.String(), "rows") {
			t.Errorf("%s: %d %.200s", c.name, w.Code, w.Body)
		}
		if n > 4*most {
			t.Errorf("%s allocates %d MB", c.name, n>>20)
		}
	}
}

// hostileWeather contains documents of the allowed size whose decoding takes a long time or
// much memory, unless the decoder stops at the first excess member or element.
func hostileWeather() map[string]string {
	var keys strings.Builder
	keys.WriteString(`[{"ds":"2026-03-10T11:00:00Z"`)
	for i := 0; keys.Len() < maxBody-32; i++ {
		fmt.Fprintf(&keys, `,"k%d":1`, i)
	}
	keys.WriteString("}]")
	const rows = 820_000
	meteo := `{"utc_offset_seconds":0,"hourly_units":{"temperature_2m":"°C"},"hourly":{"time":["",` + strings.TrimSuffix(strings.Repeat(`"",`, rows-1), ",") +
		`],"temperature_2m":[0` + strings.Repeat(",0", rows-1) + "]}}"
	unknown := strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(keys.String(), "["), "]"), `"ds":"2026-03-10T11:00:00Z"`, `"a":1`)
	return map[string]string{
		"object with many keys": keys.String(), "answer with many times": meteo,
		"answer with many columns": `{"utc_offset_seconds":0,"hourly":` + unknown + "}", "answer with many units": `{"utc_offset_seconds":0,"hourly":{"time":[]},"hourly_units":` + strings.ReplaceAll(unknown, ":1", `:""`)[:maxBody/2] + `":""}}`,
	}
}

// TestHostileWeather checks that a hostile document takes about as much time and memory as a
// harmless one of the same size, which is one object with a long string.
func TestHostileWeather(t *testing.T) {
	i, _, _ := intake(t, nil)
	took := func(body string) (time.Duration, uint64, int) {
		r := httptest.NewRequest("POST", "/v1/weather", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		begun := time.Now()
		n := heap(func() { i.Handler().ServeHTTP(w, r) })
		return time.Since(begun), n, w.Code
	}
	harmless := `[{"ds":"` + strings.Repeat("x", maxBody-100) + `"}]`
	usual, memory, _ := took(harmless)
	for range 4 {
		again, _, _ := took(harmless)
		usual = max(usual, again)
	}
	for name, body := range hostileWeather() {
		if len(body) > maxBody {
			t.Fatalf("%s has %d bytes", name, len(body))
		}
		d, n, code := took(body)
		t.Logf("%s: %v and %d MB, a harmless document %v and %d MB", name, d, n>>20, usual, memory>>20)
		if code != 400 && code != 413 {
			t.Errorf("%s: %d", name, code)
		}
		if d > 50*usual {
			t.Errorf("%s takes %v, a harmless document of the same size %v", name, d, usual)
		}
		if n > 4*memory {
			t.Errorf("%s allocates %d MB, a harmless document of the same size %d MB", name, n>>20, memory>>20)
		}
	}
}

// TestInboxWeatherBomb checks that a small compressed weather file does not fill the memory.
// Otherwise the agent would fail again at every start, because the file stays in the inbox.
func TestInboxWeatherBomb(t *testing.T) {
	b, dir, _, _ := inbox(t)
	write(t, filepath.Join(dir, "weather.csv.gz"), pack(t, []byte("ds\n"+strings.Repeat("0\n", maxFile/2-8))))
	n := heap(func() { settle(b) })
	if !exists(dir, "refused", "weather.csv.gz") || n > 100<<20 {
		t.Errorf("not refused, or after %d MB", n>>20)
	}
}

// TestInboxOffGridRow checks that a row that is not on the grid does not replace the row of its
// step.
func TestInboxOffGridRow(t *testing.T) {
	b, dir, s, _ := inbox(t)
	write(t, filepath.Join(dir, "x.csv"), []byte("unique_id,ds,y\na,2026-03-10T11:00:30Z,9\na,2026-03-10T11:00:00Z,1\n"))
	settle(b)
	if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 1 {
		t.Errorf("the step is %g", got[0])
	}
}

// TestInboxFileThatStays checks that a file that cannot be moved, for example because it
// belongs to another user and the folder is sticky, does not delay other files and is not
// stored repeatedly.
func TestInboxFileThatStays(t *testing.T) {
	b, dir, s, _ := inbox(t)
	write(t, filepath.Join(dir, "a-stays.csv"), []byte(oneRow))
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "a-stays.csv"), old, old); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "later.csv"), []byte("unique_id,ds,y\na,2026-03-10T11:00:00Z,2\nb,2026-03-10T11:00:00Z,2\n"))
	moved := b.rename
	b.rename = func(from, to string) error {
		if from == "a-stays.csv" {
			return &os.LinkError{Op: "renameat", Old: from, New: to, Err: os.ErrPermission}
		}
		return moved(from, to)
	}
	settle(b)
	if !exists(dir, "a-stays.csv") || !exists(dir, "done", "later.csv") {
		t.Fatal("a file that cannot be moved blocks the inbox")
	}
	settle(b)
	if got := load(t, s, "a", start.Add(-time.Hour), 1); got[0] != 2 {
		t.Errorf("the file that stays was stored again over a later one: %g", got[0])
	}
}

// TestInboxFileThatGrows checks that a file that grows while it is read is read again when it
// is complete.
func TestInboxFileThatGrows(t *testing.T) {
	b, dir, s, _ := inbox(t)
	path := filepath.Join(dir, "x.csv")
	write(t, path, []byte(oneRow))
	b.stored = func() {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("b,2026-03-10T11:00:00Z,3\n")
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		b.stored = nil
	}
	settle(b)
	settle(b)
	if got := load(t, s, "b", start.Add(-time.Hour), 1); got[0] != 3 || !exists(dir, "done", "x.csv") {
		t.Errorf("the last row of a file that grew is %g", got[0])
	}
}

// TestSamplesAfterWrongClock checks that samples are accepted again as soon as a wrong clock
// has been corrected.
func TestSamplesAfterWrongClock(t *testing.T) {
	i, s, now := intake(t, nil)
	send := func(at time.Time, kwh float64) {
		now.set(at)
		i.Add([]Sample{{"a", at, kwh, Counter}}, func(error) {})
		if err := i.flush(); err != nil {
			t.Fatal(err)
		}
	}
	send(start, 100)
	send(start.AddDate(0, 6, 0), 100)
	for m := range 31 {
		send(start.Add(time.Duration(m+1)*time.Minute), 100+float64(m)/60)
	}
	if got := load(t, s, "a", start.Add(15*time.Minute), 1); !(got[0] > 0.99 && got[0] < 1.01) {
		t.Errorf("after the clock was set back, the step is %g kW", got[0])
	}
}
