package calibrate

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"loadstar/internal/testkit"
)

// run adds days on which the errors of the model and of last week's load have the given ratio,
// and returns the number of days until the first alarm, or 0.
func run(d *Detector, rng *rand.Rand, days int, ratio float64) int {
	for day := 1; day <= days; day++ {
		week := 1 + 0.3*rng.Float64()
		if d.Add(week*ratio*(0.9+0.2*rng.Float64()), week) == Worse {
			return day
		}
	}
	return 0
}

// TestDetector checks that a model that becomes clearly worse raises an alarm within days, and
// that no alarm is raised by a model that stays the same, improves, or has a few bad days.
func TestDetector(t *testing.T) {
	for _, c := range []struct {
		ratio       float64
		least, most int
	}{{0.6, 0, 0}, {0.3, 0, 0}, {0.63, 0, 0}, {0.9, 3, 5}, {1.5, 3, 3}, {1000, 3, 3}} {
		var d Detector
		rng := rand.New(rand.NewPCG(1, 2))
		if day := run(&d, rng, 28, 0.6); day != 0 || !d.Ready() {
			t.Fatalf("alarm on day %d while what is usual is learned", day)
		}
		if day := run(&d, rng, 300, 0.6); day != 0 {
			t.Fatalf("alarm on day %d without a change", day)
		}
		if day := run(&d, rng, 2, 3); day != 0 {
			t.Fatalf("alarm after %d bad days", day)
		}
		run(&d, rng, 20, 0.6) // after these days the sum is 0 again
		if day := run(&d, rng, 60, c.ratio); day < c.least || day > c.most {
			t.Errorf("ratio %v: alarm on day %d, want %d to %d", c.ratio, day, c.least, c.most)
		}
	}
}

func TestDaysWithoutErrors(t *testing.T) {
	var d Detector
	for range 100 {
		for _, v := range [][2]float64{{0, 0}, {math.NaN(), 1}, {1, math.NaN()}, {math.Inf(1), 1}} {
			if d.Add(v[0], v[1]) != "" {
				t.Fatal("alarm")
			}
		}
	}
	if d.Ready() || len(d.baseline) != 0 {
		t.Error("days without errors were counted")
	}
	for range 60 {
		d.Add(0, 1)
	}
	if !d.Ready() || d.Sum() != 0 {
		t.Error("a perfect model is not usual")
	}
}

func TestCheckCoverage(t *testing.T) {
	for _, c := range []struct {
		coverage float64
		targets  int
		want     Alarm
	}{{0.8, 5000, ""}, {0.71, 5000, ""}, {0.69, 5000, Coverage}, {0.91, 336, Coverage}, {0.5, 335, ""}, {math.NaN(), 0, ""}} {
		if got := CheckCoverage(c.coverage, 0.8, c.targets); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestDetectorFormat(t *testing.T) {
	for name, days := range map[string]int{"learning": 5, "ready": 40} {
		var d Detector
		rng := rand.New(rand.NewPCG(3, 4))
		run(&d, rng, days, 0.6)
		run(&d, rng, 1, 2)
		want, err := d.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		testkit.CheckGolden(t, name, detectorFormat, want, func(b []byte) error {
			var got Detector
			if err := got.UnmarshalBinary(b); err != nil {
				return err
			}
			if again, _ := got.AppendBinary(nil); !bytes.Equal(again, want) {
				return fmt.Errorf("%+v, want %+v", got, d)
			}
			return nil
		})
	}
}
