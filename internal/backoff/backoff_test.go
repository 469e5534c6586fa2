package backoff_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"loadstar/internal/backoff"
)

func lowest(int64) int64    { return 0 }
func highest(n int64) int64 { return n - 1 }

func TestNext(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		random func(int64) int64
		want   []time.Duration
	}{
		"shortest": {lowest, []time.Duration{s / 2, s, 2 * s, 5 * s / 2, 5 * s / 2}},
		"longest":  {highest, []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			b := backoff.Backoff{Base: s, Cap: 5 * s, Rand: c.random}
			for range 2 {
				var got []time.Duration
				for range c.want {
					got = append(got, b.Next())
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("delays %v, want %v", got, c.want)
				}
				b.Reset()
			}
		})
	}
}

func TestDefaultRand(t *testing.T) {
	different := map[time.Duration]bool{}
	for range 100 {
		b := backoff.Backoff{Base: time.Second, Cap: time.Minute}
		d := b.Next()
		if d < time.Second/2 || d > time.Second {
			t.Fatalf("a first delay of %v is not between half of a second and a second", d)
		}
		different[d] = true
	}
	if len(different) == 1 {
		t.Error("all delays are the same")
	}
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff.Backoff{Base: time.Second, Cap: time.Minute, Rand: highest}
		start := time.Now()
		for _, want := range []time.Duration{time.Second, 3 * time.Second, 7 * time.Second} {
			if err := b.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := time.Since(start); got != want {
				t.Errorf("waited %v in all, want %v", got, want)
			}
		}
	})
}

func TestWaitEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(stopped) })
		b := backoff.Backoff{Base: time.Hour, Cap: time.Hour, Rand: lowest}
		start := time.Now()
		if err := b.Wait(ctx); !errors.Is(err, stopped) {
			t.Errorf("error %v, want the cause", err)
		}
		if got := time.Since(start); got != 3*time.Second {
			t.Errorf("waited %v, want 3s", got)
		}
	})
}
