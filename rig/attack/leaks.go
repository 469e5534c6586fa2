package main

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"loadstar/fed/policy"
	"loadstar/nn/kernel"
	"loadstar/rig/leak"
)

// leaks lists the attacks on readings from the second review and from the trial of its fixes. They
// call the agent's code in this process, because many rounds of a fleet take too long. Each attack
// is carried out three times. It must succeed against a client without defences. The second time,
// an agent with the default policy must decline its plan. The third time, such an agent gets the
// best plan for the attacker that the policy accepts. The attack succeeds if the correlation of
// reconstructed and true readings is above 0.2 the second or the third time.
func leaks() []Attack {
	return []Attack{
		{ID: "S1", Name: "losses of rounds with known batches give each hour", Run: leaking(s1)},
		{ID: "S2", Name: "published weights alone give each reading", Run: leaking(s2)},
		{ID: "S4", Name: "a stride makes a score that of one window", Run: leaking(s4)},
		{ID: "N1", Name: "losses of full passes over data that ends an hour later each time", Run: leaking(n1)},
		{ID: "N2", Name: "published means of cohorts that lack one home, full passes", Run: leaking(n2)},
		{ID: "N3", Name: "many rounds over data that ends an hour later each time", Run: leaking(n3)},
		{ID: "N4", Name: "losses of full passes with many seeds give the means by hour and weekday", Run: leaking(n4)},
		{ID: "N5", Name: "scores of validation data that ends an hour later each time", Run: leaking(n5)},
	}
}

// learned is the correlation above which an attack has succeeded, and solved is the correlation
// that an attack must reach without defences.
const learned, solved = 0.2, 0.8

type leaker struct {
	// before is the attack of the review, on a home with few readings.
	before func(ctx context.Context, t *leak.Target) (float64, error)
	// after is the same attack within the default policy, on a home with many readings.
	after func(ctx context.Context, t *leak.Target) (float64, error)
	// note is additional information about after.
	note string
}

// fewDays and manyDays are the numbers of days of readings that the attacked homes have.
const fewDays, manyDays = 45, 200

// leaking carries out an attack on readings.
func leaking(prepare func() leaker) func(context.Context, *Fleet) (Result, error) {
	return func(ctx context.Context, _ *Fleet) (Result, error) {
		k := must(kernel.Default())
		l := prepare()
		few := must(leak.Homes(3, fewDays))
		t := &leak.Target{Data: few, Meters: []int{0, 1, 2}, Kernel: k, Open: leak.Undefended(few, k)}
		before := must(l.before(ctx, t))
		if math.Abs(before) < solved {
			return Result{}, fmt.Errorf("without defences the correlation is %.3f, so this attack proves nothing", before)
		}
		t.Open = leak.Defended(few, k, policy.Default())
		same, err := l.before(ctx, t)
		declined := declinedBy(err)
		if err != nil && declined == "" {
			return Result{}, err
		}
		many := must(leak.Homes(3, manyDays))
		t = &leak.Target{Data: many, Meters: []int{0, 1, 2}, Kernel: k, Open: leak.Defended(many, k, policy.Default())}
		after := must(l.after(ctx, t))
		text := fmt.Sprintf("correlation %.3f without defences; with all defaults ", before)
		if declined != "" {
			text += "the plan is declined by " + declined
		} else {
			text += fmt.Sprintf("%.3f", same)
		}
		text += fmt.Sprintf(", the best accepted plan gives %.3f%s", after, l.note)
		if math.Abs(same) > learned || math.Abs(after) > learned {
			return succeeded("%s", text), nil
		}
		return repelled("%s", text), nil
	}
}

var policyKey = regexp.MustCompile(`\(policy\.(\w+)\)`)

// declinedBy returns the keys of the policy that an error names.
func declinedBy(err error) string {
	if err == nil {
		return ""
	}
	var keys []string
	for _, m := range policyKey.FindAllStringSubmatch(err.Error(), -1) {
		if !slices.Contains(keys, m[1]) {
			keys = append(keys, m[1])
		}
	}
	return strings.Join(keys, ", ")
}

// mean returns the mean correlation of several homes. With a hundred hours, a correlation of up to
// 0.2 occurs by chance. A mean over several homes avoids such correlations.
func mean(all []float64, err error) (float64, error) {
	sum := 0.0
	for _, c := range all {
		sum += c / float64(len(all))
	}
	return sum, err
}

func s1() leaker {
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Losses(ctx, t, leak.Still(), 750)
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Losses(ctx, t, leak.Allowed(32, 2), 400)
		},
	}
}

func s2() leaker {
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			two := *t
			two.Meters = t.Meters[:2]
			return leak.Weights(ctx, &two, leak.Descent(0.5, 32, 2), 0.5, 200, true, false)
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Weights(ctx, t, leak.Allowed(32, 2), 1e-5, 100, false, true)
		},
		note: ", with the updates of one home in the place of means",
	}
}

func s4() leaker {
	strides := func(_ context.Context, t *leak.Target) (float64, error) {
		c, n, err := leak.Strides(t, leak.Allowed(32, 2), 24)
		if err == nil && n == 0 {
			c = 0
		}
		return c, err
	}
	return leaker{before: strides, after: strides, note: ": no score leaves"}
}

func n1() leaker {
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Cuts(ctx, t, leak.FullPass(), 700, 24, 1)
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Cuts(ctx, t, leak.Allowed(256, 4), 3300, 100, 1)
		},
	}
}

func n2() leaker {
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			return mean(leak.Updates(ctx, t, leak.FullPass(), 1, 700, 48, 1))
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			return mean(leak.Updates(ctx, t, leak.Allowed(256, 4), 1/(1e-5*4), 3300, 100, 1))
		},
	}
}

func n3() leaker {
	one := func(t *leak.Target) *leak.Target {
		first := *t
		first.Meters = t.Meters[:1]
		return &first
	}
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			return mean(leak.Updates(ctx, one(t), leak.Descent(1e-4, 64, 8), 1/(8*1e-4), 700, 24, 80))
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			return mean(leak.Updates(ctx, one(t), leak.Allowed(256, 4), 1/(1e-5*4), 3300, 100, 4))
		},
	}
}

func n4() leaker {
	return leaker{
		before: func(ctx context.Context, t *leak.Target) (float64, error) {
			return leak.Seeds(ctx, t, leak.FullPass(), 300, 3000)
		},
		after: func(ctx context.Context, t *leak.Target) (float64, error) {
			var all []float64
			for _, home := range t.Meters[:2] {
				one := *t
				one.Meters = []int{home}
				c, err := leak.Seeds(ctx, &one, leak.Allowed(256, 4), 156, 100)
				if err != nil {
					return 0, err
				}
				all = append(all, c)
			}
			return mean(all, nil)
		},
		note: ", from three plans a week for a year",
	}
}

func n5() leaker {
	return leaker{
		before: func(_ context.Context, t *leak.Target) (float64, error) {
			return leak.Scores(t, leak.Still(), 160, 48)
		},
		after: func(_ context.Context, t *leak.Target) (float64, error) {
			return leak.Scores(t, leak.Allowed(32, 2), 700, 200)
		},
	}
}
