package textfmt

import (
	"math"
	"testing"
	"time"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "meter-1": "meter-1", "a=b": "a=b", "'=x": "'=x", "é": "é",
		"=cmd|calc": "'=cmd|calc", "@SUM(1)": "'@SUM(1)", "+A1": "'+A1", "-A1": "'-A1", "\t=1": "'\t=1", "\r=1": "'\r=1", "\n=1": "'\n=1",
		"-": "'-", "-1.5": "-1.5", "+3": "+3", "-1e-05": "-1e-05", "-Inf": "-Inf", "-1+2": "'-1+2",
	} {
		if got := Cell(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		if got := Plain(want); got != in && in != "'=x" {
			t.Errorf("%q is read as %q", want, got)
		}
	}
}

func TestSparkline(t *testing.T) {
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{
		{nil, 10, ""},
		{[]float64{1, 2, math.NaN(), 8}, 10, "▁▂ █"},
		{[]float64{-1e308, 1e308}, 0, "▁▁"},
		{[]float64{3, 3}, 10, "▅▅"},
		{[]float64{0, 0, 0, 0, 7, 7, 7, 7}, 2, "▁█"},
		{[]float64{math.NaN(), math.NaN(), 1, 2}, 2, " ▅"},
	} {
		if got := Sparkline(c.values, c.width); got != c.want {
			t.Errorf("%v: %q, want %q", c.values, got, c.want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Hour: "1h", 15 * time.Minute: "15m", 90 * time.Minute: "1h30m", 10 * time.Hour: "10h", 10 * time.Minute: "10m", 30 * time.Second: "30s", 24 * time.Hour: "24h",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v is written as %s, want %s", d, got, want)
		}
	}
}
