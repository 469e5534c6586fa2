package cli

import (
	"testing"
	"time"
)

func TestParseSteps(t *testing.T) {
	for s, want := range map[string]map[time.Duration]int{
		"48":          {time.Hour: 48, 30 * time.Minute: 96, 15 * time.Minute: 192},
		"24h":         {time.Hour: 24, 30 * time.Minute: 48, 7 * time.Minute: 0},
		"2d":          {time.Hour: 48},
		"90m":         {time.Hour: 0, 30 * time.Minute: 3, 15 * time.Minute: 6},
		"0":           {time.Hour: 0},
		"-3":          {time.Hour: 0},
		"x":           {time.Hour: 0},
		"99999999999": {time.Hour: 0},
	} {
		for step, want := range want {
			if n, err := ParseSteps(s, step); n != want || (err == nil) != (want > 0) {
				t.Errorf("%s of %s: %d steps, %v", s, step, n, err)
			}
		}
	}
}

func TestStride(t *testing.T) {
	for step, want := range map[time.Duration]int{time.Hour: 6, 30 * time.Minute: 12, 15 * time.Minute: 24, 24 * time.Hour: 1} {
		if one, n := Stride(1, step), Stride(2, step); one != 1 || n != want {
			t.Errorf("%s: %d and %d, want 1 and %d", step, one, n, want)
		}
	}
}
