package readings

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series/store"
)

var start = time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)

func at(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }

// feed passes samples to a track and returns the steps as a string, such as "12:15 2.000 OK".
func feed(interval time.Duration, net bool, now float64, samples ...Sample) string {
	var out []store.Reading
	j := &judge{interval: interval.Milliseconds(), client: "a", net: net, out: &out}
	var k track
	for _, s := range samples {
		k.add(j, s)
		if again, err := decodeTrack(k.encode()); err != nil || again != k {
			return fmt.Sprint("the state changed on disk: ", err)
		}
	}
	if now > 0 {
		k.tick(j, at(now).UnixMilli())
	}
	text := ""
	for _, r := range out {
		text += fmt.Sprintf("%s %.3f %s, ", time.Unix(r.Time, 0).UTC().Format("15:04"), r.KW, []string{"OK", "EST", "MISSING", "BAD"}[r.Quality])
	}
	return text
}

func counter(minutes, kwh float64) Sample { return Sample{"a", at(minutes), kwh, Counter} }

func power(minutes, kw float64) Sample { return Sample{"a", at(minutes), kw, Power} }

func TestSteps(t *testing.T) {
	quarter := 15 * time.Minute
	every := func(from, to, by float64, sample func(float64) Sample) (all []Sample) {
		for m := from; m <= to; m += by {
			all = append(all, sample(m))
		}
		return all
	}
	steady := func(m float64) Sample { return counter(m, 100+m/60*2) } // 2 kW
	hold := func(m float64) Sample { return power(m, 3) }
	add := func(parts ...[]Sample) (all []Sample) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for _, c := range []struct {
		name     string
		interval time.Duration
		net      bool
		now      float64
		samples  []Sample
		want     string
	}{
		{"counter every minute", quarter, false, 0, every(0, 31, 1, steady), "12:00 2.000 OK, 12:15 2.000 OK, "},
		{"counter across edges", quarter, false, 0, every(-3, 33, 6, steady), "12:00 2.000 OK, 12:15 2.000 OK, "},
		{"counter waits for a sample after the edge", quarter, false, 20, every(0, 14, 1, steady), ""},
		{"counter begins late", quarter, false, 0, every(5, 31, 1, steady), "12:00 2.000 EST, 12:15 2.000 OK, "},
		{"counter begins too late", quarter, false, 0, every(8, 31, 1, steady), "12:15 2.000 OK, "},
		{"counter with a gap of 45 minutes", quarter, false, 0, []Sample{steady(0), steady(10), steady(55), steady(61)}, "12:00 2.000 EST, 12:15 2.000 EST, 12:30 2.000 EST, 12:45 2.000 EST, "},
		{"counter with a gap of 70 minutes", quarter, false, 0, []Sample{steady(0), steady(10), steady(80), steady(91)}, "12:00 2.000 EST, 13:15 2.000 EST, "},
		{"counter that ends", quarter, false, 90, []Sample{steady(0), steady(10)}, "12:00 2.000 EST, "},
		{"counter every hour", time.Hour, false, 0, []Sample{steady(0), steady(60.2), steady(120.1)}, "12:00 2.000 OK, 13:00 2.000 OK, "},
		{"counter that stands still", quarter, false, 0, []Sample{counter(0, 5), counter(8, 5), counter(16, 5)}, "12:00 0.000 OK, "},
		{"counter that rounds down", quarter, false, 0, []Sample{counter(0, 5), counter(8, 4.9995), counter(16, 5)}, "12:00 0.000 OK, "},
		{"counter that is reset within a minute", quarter, false, 0, add(every(0, 7, 1, steady),
			every(8, 32, 1, func(m float64) Sample { return counter(m, (m-8)/60*2) })), "12:00 2.000 OK, 12:15 2.000 OK, "},
		{"counter that is reset with a gap", quarter, false, 0, add(every(0, 5, 1, steady),
			every(9, 32, 1, func(m float64) Sample { return counter(m, (m-9)/60*2) })), "12:15 2.000 OK, "},
		{"counter delivered again", quarter, false, 0, add(every(0, 7, 1, steady),
			[]Sample{counter(7.1, 100.1), counter(7.2, 100.15), counter(7.3, 100.2)}, every(8, 16, 1, steady)), "12:00 2.000 OK, "},
		{"the same samples again", quarter, false, 0, add(every(0, 9, 1, steady), every(4, 16, 1, steady)), "12:00 2.000 OK, "},
		{"counter that jumps", quarter, false, 0, []Sample{counter(0, 1), counter(5, 1.1), counter(9, 5000), counter(16, 5000.1), counter(31, 5000.3)}, "12:00 19996.344 OK, 12:15 0.804 OK, "},
		{"power every minute", quarter, false, 0, every(0, 31, 1, hold), "12:00 3.000 OK, 12:15 3.000 OK, "},
		{"power changes", quarter, false, 15.2, []Sample{power(0, 1), power(5, 2), power(10, 3)}, "12:00 2.000 OK, "},
		{"power with a pause", quarter, false, 0, add(every(0, 3, 1, hold), every(10, 16, 1, hold)), "12:00 3.000 EST, "},
		{"power with a long pause", quarter, false, 0, add([]Sample{power(0, 3)}, every(14, 16, 1, hold)), ""},
		{"power every ten minutes, which the second sample shows", quarter, false, 0, every(0, 70, 10, hold), "12:00 3.000 EST, 12:15 3.000 OK, 12:30 3.000 OK, 12:45 3.000 OK, "},
		{"power that ends", quarter, false, 40, every(0, 14, 1, hold), "12:00 3.000 OK, "},
		{"feed-in", quarter, true, 16, every(0, 14, 1, func(m float64) Sample { return power(m, -3) }), "12:00 -3.000 OK, "},
		{"negative without feed-in", quarter, false, 16, every(0, 14, 1, func(m float64) Sample { return power(m, -3) }), "12:00 -3.000 BAD, "},
		{"a sensor's zero", quarter, false, 16, every(0, 14, 1, func(m float64) Sample { return power(m, -.01) }), "12:00 0.000 OK, "},
		{"power beside a counter", quarter, false, 0, add(every(0, 10, 1, steady), []Sample{power(10.5, 9)}, every(11, 16, 1, steady)), "12:00 2.000 OK, "},
	} {
		if got := feed(c.interval, c.net, c.now, c.samples...); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestEnergyIsKept checks that a counter's steps add up to exactly its energy, regardless of
// the samples' times and of repeated deliveries.
func TestEnergyIsKept(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	for range 200 {
		var out []store.Reading
		j := &judge{interval: 15 * 60e3, client: "a", out: &out}
		var k track
		var all []Sample
		minutes, kwh := 0.0, rng.Float64()*1e5
		for minutes < 60*6 {
			all = append(all, counter(minutes, kwh))
			minutes += 0.1 + 14*rng.Float64()
			kwh += rng.Float64()
		}
		all = append(all, counter(60*6, kwh))
		for i, s := range all {
			for back := rng.IntN(4); back > 0 && back <= i; back-- {
				k.add(j, all[i-back])
			}
			k.add(j, s)
		}
		var sum float64
		for _, r := range out {
			if r.Quality != store.OK {
				t.Fatalf("a step is %+v", r)
			}
			sum += float64(r.KW) / 4
		}
		if want := kwh - all[0].Value; len(out) != 24 || math.Abs(sum-want) > 1e-4*want {
			t.Fatalf("%d steps have %g kWh, want %g", len(out), sum, want)
		}
	}
}

func TestTrackFormat(t *testing.T) {
	want := track{
		kind: Power, any: true, since: 1, value: 2.5, upTo: 3, pause: 4.5, fallen: true, fallAt: 5, fallValue: 6.5,
		step: 7, energy: 8.5, measured: 9.5, estimated: 10.5, reset: true,
	}
	testkit.CheckGolden(t, "track", trackFormat, want.encode(), func(b []byte) error {
		got, err := decodeTrack(b)
		if err == nil && got != want {
			err = fmt.Errorf("got %+v", got)
		}
		return err
	})
}
