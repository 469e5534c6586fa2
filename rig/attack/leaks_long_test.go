package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"loadstar/fed/policy"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/rig/leak"
	"loadstar/series"
	"loadstar/series/read"
)

// yearOfHomes returns a year of readings of real homes.
func yearOfHomes(t *testing.T) *series.Dataset {
	t.Helper()
	description, root := testkit.Dataset(t, "sgsc-core19")
	desc, err := read.Load(description)
	if err != nil {
		t.Fatal(err)
	}
	all, err := read.Open(desc, root)
	if err != nil {
		t.Fatal(err)
	}
	var some []series.Meter
	for i := range all.Len() {
		const from, hours = 24 * 200, 24 * 365
		m := all.Meter(i)
		m.Load = m.Load[from : from+hours]
		m.Start += from * all.Seconds()
		some = append(some, m)
	}
	d, err := series.NewDataset(*all, some)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLeaks carries out the attacks on readings against agents with all defaults and a year of real
// readings, using the best plans that the default policy accepts, and prints the results. Single
// hours must stay hidden, but means by hour need not.
func TestLeaks(t *testing.T) {
	if !testkit.Long() {
		t.Skip("takes half an hour: make leaks")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	d := yearOfHomes(t)
	n := d.Meter(0)
	cut, largest := len(n.Load)*7/10, 512 // an eighth of the training examples, which end at the end of a block
	target := func(meters ...int) *leak.Target {
		return &leak.Target{Data: d, Meters: meters, Kernel: k, Open: leak.Defended(d, k, policy.Default())}
	}
	three := []int{3, 5, 11}
	each := func(attack func(context.Context, *leak.Target) (float64, error)) func(context.Context) ([]float64, error) {
		return func(ctx context.Context) (all []float64, err error) {
			for _, home := range three {
				c, err := attack(ctx, target(home))
				if err != nil {
					return nil, err
				}
				all = append(all, c)
			}
			return all, nil
		}
	}
	for _, x := range []struct {
		id, what string
		run      func(context.Context) ([]float64, error)
	}{
		{"S1", "losses of 2,800 rounds (a week), 2 x 32 examples", each(func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Losses(ctx, t, leak.Allowed(32, 2), 2800)
		})},
		{"S2", "updates of 400 rounds, 2 x 32 examples", each(func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Weights(ctx, t, leak.Allowed(32, 2), 1e-5, 400, false, true)
		})},
		{"S4", "scores of one window", each(func(_ context.Context, t *leak.Target) (float64, error) {
			c, _, err := leak.Strides(t, leak.Allowed(32, 2), 24)
			return c, err
		})},
		{"N1", "losses of 8 x 512 examples, 240 splits an hour apart, three seeds", each(func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Cuts(ctx, t, leak.Allowed(largest, 8), cut, 240, 1)
		})},
		{"N2", "published means of eleven cohorts of ten, 250 splits an hour apart", func(ctx context.Context) ([]float64, error) {
			return leak.Updates(ctx, target(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10), leak.Allowed(largest, 8), 1/(1e-5*8), cut, 250, 1)
		}},
		{"N3", "updates of 10 rounds of 8 x 512 examples each, 240 splits an hour apart", each(func(ctx context.Context, t *leak.Target) (float64, error) {
			return mean(leak.Updates(ctx, t, leak.Allowed(largest, 8), 1/(1e-5*8), cut, 240, 10))
		})},
		{"N5", "scores, 400 splits an hour apart", each(func(_ context.Context, t *leak.Target) (float64, error) {
			return leak.Scores(t, leak.Allowed(32, 2), 800, 400)
		})},
	} {
		t.Run(x.id, func(t *testing.T) {
			begun := time.Now()
			all, err := x.run(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %s: %s (%.0f s)", x.id, x.what, figures(all), time.Since(begun).Seconds())
			for _, c := range all {
				if math.Abs(c) > learned {
					t.Errorf("a correlation of %.3f with single hours, at most %g is allowed", c, learned)
				}
			}
		})
	}
}

func figures(all []float64) string {
	var text []string
	for _, c := range all {
		text = append(text, fmt.Sprintf("%.2f", c))
	}
	return strings.Join(text, ", ")
}

// TestWhatRemains prints what such agents still reveal: means, and examples that an attacker
// singles out with suitable weights.
func TestWhatRemains(t *testing.T) {
	if !testkit.Long() {
		t.Skip("takes minutes: make leaks")
	}
	k, err := kernel.Default()
	if err != nil {
		t.Fatal(err)
	}
	d := yearOfHomes(t)
	target := func(home int) *leak.Target {
		return &leak.Target{Data: d, Meters: []int{home}, Kernel: k, Open: leak.Defended(d, k, policy.Default())}
	}
	homes := make([]int, d.Len())
	for i := range homes {
		homes[i] = i
	}
	windows := func(rounds int) func(context.Context, *leak.Target) (float64, error) {
		return func(_ context.Context, t *leak.Target) (float64, error) {
			c, _, err := leak.Windows(t, leak.Default(), 13, rounds)
			return c, err
		}
	}
	for _, x := range []struct {
		what  string
		homes []int
		run   func(context.Context, *leak.Target) (float64, error)
	}{
		{"honest weights, mean load by hour, 1 update", homes, func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.HourlyProfile(ctx, t, leak.Default(), 1)
		}},
		{"honest weights, mean load by hour, 20 updates", homes, func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.HourlyProfile(ctx, t, leak.Default(), 20)
		}},
		{"made weights (S3), mean load by hour and kind of day, 1 update", homes, func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.MadeProfile(ctx, t, leak.Default(), 1)
		}},
		{"made weights (S3), mean load by hour and kind of day, 20 updates", homes, func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.MadeProfile(ctx, t, leak.Default(), 20)
		}},
		{"losses of 156 plans (N4), mean load by hour and weekday", homes[:3], func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Seeds(ctx, t, leak.Allowed(512, 8), 156, 30, 100, 300, 1000, 3000)
		}},
		{"made weights, single windows by scores, 2 rounds each", homes[:3], windows(1)},
		{"made weights, single windows by scores, 40 rounds each", homes[:3], windows(20)},
		{"made weights, single windows by scores, 400 rounds each", homes[:3], windows(200)},
	} {
		var all []float64
		for _, home := range x.homes {
			c, err := x.run(t.Context(), target(home))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, math.Abs(c))
		}
		slices.Sort(all)
		t.Logf("%s: lowest %.2f, median %.2f, highest %.2f of %d homes", x.what, all[0], all[len(all)/2], all[len(all)-1], len(all))
	}
	found, fridays := 0, 0
	for _, home := range []int{0, 5, 11} {
		a, b, err := leak.Days(t.Context(), target(home), leak.Default(), 40)
		if err != nil {
			t.Fatal(err)
		}
		found, fridays = found+a, fridays+b
	}
	t.Logf("made weights (S3), whole Fridays from 40 updates: %d of %d", found, fridays)
	if found > 0 {
		t.Error(errors.New("whole days follow from updates of the default optimizer"))
	}
}
