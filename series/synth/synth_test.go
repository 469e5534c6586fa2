package synth

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"math"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func generator(t testing.TB, c Config) *Generator {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func loadOf(g *Generator, i int) []float32 {
	load := make([]float32, g.Len())
	g.Building(i, load)
	return load
}

// same reports whether two series are equal. It treats missing readings as equal.
func same(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return x == y || x != x && y != y })
}

func digest(g *Generator) string {
	h := sha256.New()
	w := g.Weather()
	for _, v := range [][]float32{w.Temperature, w.Humidity, w.Wind, w.Solar} {
		digestFloats(h, v)
	}
	load := make([]float32, g.Len())
	for i := range g.Config().Meters {
		fmt.Fprintf(h, "%+v\n", g.Building(i, load))
		digestFloats(h, load)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func digestFloats(h hash.Hash, v []float32) {
	var b [4]byte
	for _, x := range v {
		bits := math.Float32bits(x)
		if x != x {
			bits = 0x7fc00000
		}
		binary.LittleEndian.PutUint32(b[:], bits)
		h.Write(b[:])
	}
}

// TestPinned checks that the generator returns the same bytes on every platform. After an
// intended change, increase Version and update the digests.
func TestPinned(t *testing.T) {
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Seed: 1, Meters: 28, Days: 90, Faults: ModestFaults()}, "9430e01f3a9685db"},
		{Config{Seed: 2, Meters: 14, Start: time.Date(2020, 10, 20, 0, 0, 0, 0, zone(t, "Europe/London")), Days: 30, Interval: 15 * time.Minute, Zone: "Europe/London"}, "1ca92c8276348e55"},
	} {
		if got := digest(generator(t, c.config)); got != c.want || Version != 1 {
			t.Errorf("version %d, %+v: digest %s, want %s", Version, c.config, got, c.want)
		}
	}
}

// TestNotFused checks that the assembly contains no fused multiply-add instructions. Such
// instructions can change the last bit of a result, which TestPinned rarely detects because
// readings are rounded.
func TestNotFused(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for arm64")
	}
	object := filepath.Join(t.TempDir(), "synth.a")
	build := exec.Command("go", "build", "-o", object, ".")
	build.Env = append(build.Environ(), "GOOS=linux", "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	code, err := exec.Command("go", "tool", "objdump", object).Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(code), "FMULD") {
		t.Error("the arm64 code has no multiplication: is it still arm64 assembly?")
	}
	for _, line := range regexp.MustCompile(`.*\bFN?M(ADD|SUB)[SD]\b.*`).FindAllString(string(code), -1) {
		t.Errorf("fused multiply-add: %s: write float64(x*y) in the source", strings.TrimSpace(line))
	}
}

func TestAlone(t *testing.T) {
	c := Config{Seed: 5, Meters: 40, Days: 21, Faults: ModestFaults()}
	g := generator(t, c)
	want := make([][]float32, c.Meters)
	var wg sync.WaitGroup
	for i := range want {
		wg.Go(func() { want[i] = loadOf(g, i) })
	}
	wg.Wait()
	for i := c.Meters - 1; i >= 0; i-- {
		if !same(loadOf(g, i), want[i]) {
			t.Errorf("building %d depends on earlier calls", i)
		}
	}
	c.Meters, c.Days, c.Faults = 1000, 60, Faults{}
	clean := generator(t, Config{Seed: 5, Meters: 40, Days: 21})
	if g := generator(t, c); !same(loadOf(g, 39)[:clean.Len()], loadOf(clean, 39)) {
		t.Error("more meters and days change a building")
	}
}

func TestSeeds(t *testing.T) {
	a, b := generator(t, Config{Seed: 1, Meters: 14, Days: 7}), generator(t, Config{Seed: 2, Meters: 14, Days: 7})
	if same(a.Weather().Temperature, b.Weather().Temperature) {
		t.Error("two seeds have the same weather")
	}
	seen := map[string]bool{}
	for _, g := range []*Generator{a, b} {
		for i := range 14 {
			d := fmt.Sprint(loadOf(g, i)[:24])
			if seen[d] {
				t.Errorf("building %d is equal for two seeds", i)
			}
			seen[d] = true
		}
	}
}

func TestTypes(t *testing.T) {
	var names []string
	for _, k := range kinds {
		names = append(names, k.name)
	}
	if len(names) != 14 {
		t.Errorf("%d types", len(names))
	}
	g := generator(t, Config{Seed: 7, Meters: 14 * 20, Days: 1})
	orders := map[string]bool{}
	for block := range 20 {
		var got []string
		for i := 14 * block; i < 14*(block+1); i++ {
			b := g.Building(i, nil)
			if want := fmt.Sprintf("gen_%s_%06d", b.Type, i); b.ID != want {
				t.Errorf("ID %s, want %s", b.ID, want)
			}
			if !(b.FloorArea > 50 && b.WindowArea > 0 && b.WindowArea < b.WallArea && b.WallArea < 10*b.FloorArea && b.Floors > 0 && b.Occupants > 0) {
				t.Errorf("%+v", b)
			}
			got = append(got, b.Type)
		}
		orders[fmt.Sprint(got)] = true
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
			t.Errorf("block %d holds %v", block, got)
		}
	}
	if len(orders) < 15 {
		t.Errorf("%d orders of types in 20 blocks", len(orders))
	}
}

// TestHoursAreMeans checks that hourly values are the means of their four quarter hours.
func TestHoursAreMeans(t *testing.T) {
	c := Config{Seed: 9, Meters: 14, Start: time.Date(2018, 10, 28, 0, 0, 0, 0, zone(t, "America/Chicago")), Days: 14}
	hours := generator(t, c)
	c.Interval = 15 * time.Minute
	quarters := generator(t, c)
	if quarters.Len() != 4*hours.Len() {
		t.Fatalf("%d quarter hours for %d hours", quarters.Len(), hours.Len())
	}
	for i := range c.Meters {
		var b traits
		b.draw(c.Seed, i)
		h, q := loadOf(hours, i), loadOf(quarters, i)
		for k := range h {
			mean := (float64(q[4*k]) + float64(q[4*k+1]) + float64(q[4*k+2]) + float64(q[4*k+3])) / 4
			if d := math.Abs(mean - float64(h[k])); d > 1.01/b.scale {
				t.Fatalf("building %d, hour %d: %v, but its quarters have mean %v", i, k, h[k], mean)
			}
		}
	}
	for k, x := range hours.Weather().Temperature {
		if d := math.Abs(float64(quarters.Weather().Temperature[4*k+1] - x)); d > 3 {
			t.Fatalf("hour %d: %v degrees off its second quarter", k, d)
		}
	}
}

func TestReadings(t *testing.T) {
	g := generator(t, Config{Seed: 4, Meters: 210, Days: 7, Interval: 15 * time.Minute})
	scales := map[float64]bool{}
	for i := range 210 {
		var b traits
		b.draw(4, i)
		scales[b.scale] = true
		for k, x := range loadOf(g, i) {
			n := math.Round(float64(x) * b.scale)
			if !(x > 0) || x != float32(n/b.scale) {
				t.Fatalf("building %d, interval %d: %v is not a positive multiple of %v", i, k, x, 1/b.scale)
			}
		}
	}
	if len(scales) != 3 {
		t.Errorf("scales %v, want all three", scales)
	}
}

func TestFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("generates 600 meters; TestPinned has faults, too")
	}
	for _, interval := range []time.Duration{time.Hour, 15 * time.Minute} {
		c := Config{Seed: 3, Meters: 300, Days: 120, Interval: interval}
		clean := generator(t, c)
		c.Faults = Faults{Gap: .01, Outage: .02, Stuck: .015, Spike: .002}
		g := generator(t, c)
		step := interval.Hours()
		before, after := make([]float32, g.Len()), make([]float32, g.Len())
		var missing, singles, stuck, spikes, all float64
		for i := range c.Meters {
			clean.Building(i, before)
			g.Building(i, after)
			run := 0
			for k, x := range after {
				all++
				switch {
				case x != x:
					run++
					missing++
					continue
				case x == before[k]:
				case k > 0 && x >= 2.9*before[k]:
					spikes++
				default:
					stuck++
				}
				if run == 1 {
					singles++
				}
				if float64(run)*step > 110 {
					t.Errorf("%v: building %d misses %d intervals, more than two outages in a row", interval, i, run)
				}
				run = 0
			}
		}
		for _, f := range []struct {
			name      string
			got, want float64
		}{
			{"missing", missing, .03}, {"missing alone", singles, .01}, {"stuck", stuck, .015}, {"spikes", spikes, .002},
		} {
			if r := f.got / all / f.want; r < .8 || r > 1.2 {
				t.Errorf("%v: %s: share %.5f, want %.5f", interval, f.name, f.got/all, f.want)
			}
		}
	}
}

func TestDaylightSaving(t *testing.T) {
	hours := func(zoneName string, y int, m time.Month, d int) int {
		return generator(t, Config{Meters: 1, Zone: zoneName, Start: midnight(y, m, d, zone(t, zoneName)), Days: 1}).Len()
	}
	for _, c := range []struct {
		zone string
		y    int
		m    time.Month
		d    int
		want int
	}{
		{"America/Chicago", 2018, 3, 10, 24},
		{"America/Chicago", 2018, 3, 11, 23},
		{"America/Chicago", 2018, 11, 4, 25},
		{"America/Phoenix", 2018, 3, 11, 24},
		{"Europe/London", 2018, 3, 25, 23},
		{"Europe/London", 2018, 10, 28, 25},
		{"America/Sao_Paulo", 2018, 11, 4, 23}, // the day starts at 01:00
		{"America/Sao_Paulo", 2018, 2, 17, 25}, // 23:00 occurs twice
		{"America/Havana", 2018, 11, 4, 25},    // midnight occurs twice
		{"America/Havana", 2018, 3, 11, 23},
		{"Asia/Kathmandu", 2018, 3, 11, 24},
	} {
		if got := hours(c.zone, c.y, c.m, c.d); got != c.want {
			t.Errorf("%s %d-%02d-%02d has %d hours, want %d", c.zone, c.y, c.m, c.d, got, c.want)
		}
	}
	g := generator(t, Config{Meters: 1})
	if first := g.Time(0).Format(time.RFC3339); first != "2018-01-01T06:00:00Z" || g.Len() != 8760 {
		t.Errorf("starts %s with %d hours", first, g.Len())
	}
	if last := g.Time(g.Len() - 1).Format(time.RFC3339); last != "2019-01-01T05:00:00Z" {
		t.Errorf("ends with %s", last)
	}
	if n := generator(t, Config{Meters: 1, Start: midnight(2020, 1, 1, zone(t, "America/Chicago")), Days: 366, Interval: 15 * time.Minute}).Len(); n != 366*96 {
		t.Errorf("a leap year has %d quarter hours", n)
	}
}

// TestClock checks that schedules follow local time, not UTC.
func TestClock(t *testing.T) {
	f := year(t)
	chicago := zone(t, "America/Chicago")
	for _, i := range f.of("large-office") {
		half := func(months ...time.Month) float64 { // when the mean workday crosses mid-range
			var sum, n [24]float64
			for k, x := range f.load[i] {
				at := f.Time(k).In(chicago)
				if at.Weekday() >= time.Monday && at.Weekday() <= time.Friday && slices.Contains(months, at.Month()) {
					sum[at.Hour()] += float64(x)
					n[at.Hour()]++
				}
			}
			day := make([]float64, 12)
			for h := range day {
				day[h] = sum[h] / n[h]
			}
			middle := (slices.Min(day) + slices.Max(day)) / 2
			h := slices.IndexFunc(day, func(v float64) bool { return v > middle })
			return float64(h) - (day[h]-middle)/(day[h]-day[h-1])
		}
		if winter, spring := half(2), half(4); math.Abs(winter-spring) > .8 {
			t.Errorf("the day of %s starts at %.2f h in February and at %.2f h in April", f.building[i].ID, winter, spring)
		}
	}
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

func TestHolidays(t *testing.T) {
	// These are the federal holidays as listed by the Office of Personnel Management, the
	// actual dates of holidays that were observed on another day, and the Friday after
	// Thanksgiving.
	want := map[string]rank{
		"2018-01-01": major, "2018-01-15": minor, "2018-02-19": minor, "2018-05-28": major, "2018-07-04": major, "2018-09-03": major,
		"2018-10-08": minor, "2018-11-11": minor, "2018-11-12": minor, "2018-11-22": solemn, "2018-11-23": major, "2018-12-25": solemn,
		"2021-01-01": major, "2021-01-18": minor, "2021-02-15": minor, "2021-05-31": major, "2021-06-18": minor, "2021-06-19": minor,
		"2021-07-04": major, "2021-07-05": major, "2021-09-06": major, "2021-10-11": minor, "2021-11-11": minor, "2021-11-25": solemn,
		"2021-11-26": major, "2021-12-24": solemn, "2021-12-25": solemn, "2021-12-31": major,
	}
	for _, y := range []int{2018, 2021} {
		for d := time.Date(y, 1, 1, 0, 0, 0, 0, time.UTC); d.Year() == y; d = d.AddDate(0, 0, 1) {
			if got := holiday(d); got != want[d.Format(time.DateOnly)] {
				t.Errorf("%s %s: %d, want %d", d.Weekday(), d.Format(time.DateOnly), got, want[d.Format(time.DateOnly)])
			}
		}
	}
}

func TestRefuses(t *testing.T) {
	chicago := zone(t, "America/Chicago")
	for _, c := range []struct {
		name   string
		config Config
		want   string
	}{
		{"no meters", Config{}, "0 meters are not possible; give a number from 1 to 1000000"},
		{"too many meters", Config{Meters: 1_000_001}, "give a number from 1 to"},
		{"an unknown zone", Config{Meters: 1, Zone: "Chicago"}, "IANA name such as America/Chicago"},
		{"this machine's zone", Config{Meters: 1, Zone: "Local"}, "IANA name"},
		{"midnight elsewhere", Config{Meters: 1, Start: time.Date(2018, 1, 1, 0, 0, 0, 0, time.UTC)}, "is 2017-12-31 18:00:00 in America/Chicago, not midnight: give the first moment of a day there, such as 2017-12-31T00:00:00-06:00"},
		{"a second past", Config{Meters: 1, Start: time.Date(2018, 1, 1, 0, 0, 1, 0, chicago)}, "not midnight"},
		{"negative days", Config{Meters: 1, Days: -1}, "-1 days are not possible; give a number from 1 to 3660"},
		{"too many days", Config{Meters: 1, Days: 4000}, "4000 days"},
		{"half an hour", Config{Meters: 1, Interval: 30 * time.Minute}, "30m0s is not possible; give 15m0s or 1h0m0s"},
		{"a percentage", Config{Meters: 1, Faults: Faults{Gap: 2}}, "a gap share of 2 is not possible; give a share"},
		{"a negative share", Config{Meters: 1, Faults: Faults{Stuck: -.1}}, "stuck share"},
		{"a share that is no number", Config{Meters: 1, Faults: Faults{Spike: math.NaN()}}, "spike share"},
		{"mostly faults", Config{Meters: 1, Faults: Faults{Gap: .1, Outage: .15}}, "lower the shares"},
	} {
		if _, err := New(c.config); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

func TestPanics(t *testing.T) {
	g := generator(t, Config{Meters: 2, Days: 1})
	for _, f := range []func(){
		func() { g.Building(2, nil) },
		func() { g.Building(-1, nil) },
		func() { g.Building(0, make([]float32, 23)) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			f()
		}()
	}
}

func TestElementary(t *testing.T) {
	for x := -4.0; x <= 4; x += 1. / 64 {
		if e := math.Abs(exp(x)/math.Exp(x) - 1); e > 1e-12 {
			t.Errorf("exp(%v) is off by %g", x, e)
		}
		if e := math.Abs(sine(x) - math.Sin(2*math.Pi*x)); e > 1e-10 {
			t.Errorf("sine(%v) is off by %g", x, e)
		}
	}
	s := newStream(1, forNoise, 0)
	var sum, squares float64
	const n = 100_000
	for range n {
		b := s.bell()
		sum += b
		squares += b * b
	}
	if mean, variance := sum/n, squares/n; math.Abs(mean) > .01 || math.Abs(variance-1) > .01 {
		t.Errorf("bell has mean %v and variance %v", mean, variance)
	}
}

func TestAllocations(t *testing.T) {
	g := generator(t, Config{Meters: 1, Days: 2, Faults: ModestFaults()})
	load := make([]float32, g.Len())
	if n := testing.AllocsPerRun(20, func() { g.Building(0, load) }); n > 3 {
		t.Errorf("%v allocations for a building, want only those for its ID", n)
	}
}

func BenchmarkBuilding(b *testing.B) {
	for _, c := range []struct {
		name     string
		interval time.Duration
	}{{"hours", time.Hour}, {"quarters", 15 * time.Minute}} {
		b.Run(c.name, func(b *testing.B) {
			g := generator(b, Config{Seed: 1, Meters: 1400, Interval: c.interval, Faults: ModestFaults()})
			load := make([]float32, g.Len())
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				g.Building(i%1400, load)
				i++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(g.Len()), "ns/value")
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		generator(b, Config{Seed: 1, Meters: 1})
	}
}
