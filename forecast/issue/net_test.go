package issue

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/series"
)

// netMeter returns the load of a home with solar panels, which feeds in around noon. The
// weather of each day is random. The panels are mounted after the given number of days.
func netMeter(days, mounted int) series.Meter {
	m := meter(days, time.UTC)
	random := rand.New(rand.NewPCG(3, 4))
	sun := 0.0
	for i := range m.Load {
		if i%24 == 0 {
			sun = 4 + 4*random.Float64()
		}
		if i >= 24*mounted {
			m.Load[i] -= float32(sun * max(math.Sin(float64(i%24-6)/12*math.Pi), 0))
		}
	}
	return m
}

// TestNetLoad checks that no forecast for a home that feeds in is cut off at 0, and that soon
// after the panels are mounted, intervals, means, energies and the blend work as for other
// loads.
func TestNetLoad(t *testing.T) {
	m := netMeter(200, 60)
	s := state(t, Config{})
	var n, inside, noon, noonInside, zeros, negative float64
	for at := m.Start + 30*day; at <= m.Start+196*day; at += 6 * hour {
		f := s.Issue(m, Models{Own: newFake(m, 24)}, at)
		for k, r := range f.Rows[:24] {
			load := float64(m.Load[(at-m.Start)/hour+int64(k)])
			if at < m.Start+60*day {
				if r.Values[0] < 0 {
					t.Fatalf("P10 is %g before any load was negative", r.Values[0])
				}
				continue
			}
			if at < m.Start+75*day {
				continue
			}
			in := 0.0
			if r.Values[0] <= load && load <= r.Values[2] {
				in = 1
			}
			n++
			inside += in
			for _, v := range r.Values {
				if v == 0 {
					zeros++
				}
			}
			if at := time.Unix(r.Time, 0).UTC().Hour(); at >= 11 && at <= 13 {
				noon++
				noonInside += in
				if r.Mean < 0 {
					negative++
				}
				if !(r.Values[0] < r.Values[1] && r.Values[0] < 0) {
					t.Fatalf("at noon the quantiles are %v and the mean is %g", r.Values, r.Mean)
				}
			}
		}
		if at >= m.Start+75*day {
			if d := f.Days[len(f.Days)-1]; !(d.P10 < d.Mean && d.Mean < d.P90) {
				t.Fatalf("the energy of a day is %+v", d)
			}
			if !(f.Peak.P10 <= f.Peak.P50 && f.Peak.P50 <= f.Peak.P90) {
				t.Fatalf("the peak is %+v", f.Peak)
			}
		}
	}
	if c := inside / n; c < 0.76 || c > 0.84 {
		t.Errorf("P10 to P90 has %.3f of the loads, want 0.8", c)
	}
	if c := noonInside / noon; c < 0.7 || c > 0.9 {
		t.Errorf("P10 to P90 has %.3f of the loads at noon, want about 0.8", c)
	}
	if zeros > 0 {
		t.Errorf("%g quantiles are exactly 0", zeros)
	}
	if negative/noon < 0.9 {
		t.Errorf("%.3f of the means at noon are negative", negative/noon)
	}
	t.Logf("P10 to P90 has %.3f of the loads, at noon %.3f; %.3f of the means at noon are negative", inside/n, noonInside/noon, negative/noon)
}
