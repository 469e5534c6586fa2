package fed

import (
	"testing"
	"time"
)

func TestTimespan(t *testing.T) {
	for s, want := range map[string]Timespan{
		"24": Steps(24), "0": Steps(0), "-1": Steps(-1), "24h": Lasting(24 * time.Hour), "1h30m": Lasting(90 * time.Minute), "45m": Lasting(45 * time.Minute),
	} {
		got, err := ParseTimespan(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("%s: %s, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "x", "1.5", "0h", "-24h", "90s", "1m1ns", "99999999h"} {
		if got, err := ParseTimespan(s); err == nil {
			t.Errorf("%q: %s", s, got)
		}
	}
	if n, err := Lasting(24 * time.Hour).In(15 * time.Minute); n != 96 || err != nil {
		t.Errorf("a day of quarters: %d, %v", n, err)
	}
	for _, step := range []time.Duration{0, 7 * time.Minute, 48 * time.Hour} {
		if n, err := Lasting(24 * time.Hour).In(step); err == nil {
			t.Errorf("a day in steps of %s: %d", step, n)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a duration has a number of steps without data")
		}
	}()
	Lasting(time.Hour).Steps()
}
