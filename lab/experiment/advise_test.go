package experiment

import (
	"math"
	"testing"

	"loadstar/metric"
)

func TestBootstrap(t *testing.T) {
	same := []float64{0.9, 0.9, 0.9, 0.9}
	if mid, low, high := bootstrap(same); mid != 0.9 || low != 0.9 || high != 0.9 {
		t.Errorf("equal values: %v (%v to %v)", mid, low, high)
	}
	var wide []float64
	for i := range 101 {
		wide = append(wide, 0.5+float64(i)/100)
	}
	mid, low, high := bootstrap(wide)
	// The standard error of the median of n uniform values is about half their range divided
	// by √n.
	if se := 0.5 / math.Sqrt(101); math.Abs(mid-1) > 1e-9 || math.Abs(low-(1-1.96*se)) > 0.03 || math.Abs(high-(1+1.96*se)) > 0.03 {
		t.Errorf("median %v with the interval %v to %v", mid, low, high)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		low, high metric.Number
		want      string
	}{
		{-0.2, -0.1, "worth it"},
		{-0.05, -0.01, "a little"},
		{-0.05, 0.01, "do not bother: no clear gain"},
		{0.01, 0.2, "do not bother: worse"},
	} {
		if got := (&AdviceOfDays{Low: c.low, High: c.high}).verdict(); got != c.want {
			t.Errorf("%v to %v: %s, want %s", c.low, c.high, got, c.want)
		}
	}
}
