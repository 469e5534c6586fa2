package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/rig/bench"
)

// SoakConfig is the configuration of a soak test.
type SoakConfig struct {
	Backends
	Agents int
	Length time.Duration
	Size   string  // size of results, see sizes
	Rate   float64 // check-ins per second that the fleet is paced to
}

func (c *SoakConfig) check() error {
	if err := c.Backends.check(); err != nil {
		return err
	}
	if _, ok := sizes[c.Size]; !ok || c.Agents < 8 || c.Agents > maxAgents || c.Length < 2*time.Second || !(c.Rate > 0) {
		return fmt.Errorf("--agents must be 8 to %d, --for at least 2s, --size %s, and --rate above 0", maxAgents, knownSizes)
	}
	return nil
}

// SoakResult contains the measurements of a soak test.
type SoakResult struct {
	Length          time.Duration
	Rounds, Updates int64
	// EarlyRSS and LateRSS are the server's median memory use in bytes, in the second and
	// the last quarter of the test.
	EarlyRSS, LateRSS int64
	// Grown is an error that names the vitals that have grown, or nil.
	Grown error
}

// vitals are the server's measurements that must not grow during the test.
type vitals struct{ rss, files, goroutines float64 }

// Soak puts the server under load for c.Length and samples its memory, files and
// goroutines. It returns an error if a result is rejected, lost or counted twice. Growth
// does not cause an error; it is part of the result.
func Soak(ctx context.Context, c SoakConfig, progress bench.Progress) (*SoakResult, error) {
	if err := c.check(); err != nil {
		return nil, &UsageError{err}
	}
	bed, err := newTestbed(ctx, c.Backends, c.Agents, false, progress)
	if err != nil {
		return nil, err
	}
	defer bed.close()
	if err := bed.serve(ctx, "--set", "agents.poll=50ms", "--set", fmt.Sprintf("limits.rate=%g", c.Rate)); err != nil {
		return nil, err
	}
	run, err := bed.start(ctx, planOf(c.Size, max(c.Agents/2, 1)), c.Agents)
	if err != nil {
		return nil, err
	}
	seen := bed.fleet.Stats()
	bed.fleet.Go()
	if err := pause(ctx, min(c.Length/10, 5*time.Minute)); err != nil {
		return nil, err
	}
	var (
		start   = time.Now()
		every   = min(max(c.Length/720, 200*time.Millisecond), 5*time.Second)
		samples []vitals
		before  map[string]float64
		m       map[string]float64
	)
	for time.Since(start) < c.Length {
		if m, err = bed.metrics(ctx); err != nil {
			return nil, err
		}
		if before == nil {
			before = m
		}
		u, err := bed.usage()
		if err != nil {
			return nil, err
		}
		samples = append(samples, vitals{float64(u.RSS), m["process_open_fds"], m["go_goroutines"]})
		progress(int(time.Since(start)/time.Second), int(c.Length/time.Second), "")
		if err := pause(ctx, every); err != nil {
			return nil, err
		}
	}
	if err := bed.rest(ctx); err != nil {
		return nil, err
	}
	s := &SoakResult{Length: c.Length, Rounds: int64(m[bed.merged] - before[bed.merged]), Updates: int64(m[bed.counted] - before[bed.counted])}
	if err := bed.sound(ctx, run, bed.fleet.Stats().Since(seen)); err != nil {
		return nil, err
	}
	if s.Rounds == 0 {
		return nil, bed.because(errors.New("no round ended: use a longer --for"))
	}
	early, late, grown := growth(samples, allowed(c.Length))
	s.EarlyRSS, s.LateRSS, s.Grown = int64(early.rss), int64(late.rss), grown
	return s, nil
}

// tolerance is the allowed growth: a share, and additional bytes of memory.
type tolerance struct{ share, memory float64 }

// allowed returns a wider tolerance for a short test, in which caches are still filling.
func allowed(length time.Duration) tolerance {
	if length < 10*time.Minute {
		return tolerance{share: 0.25, memory: 32 << 20}
	}
	return tolerance{share: 0.05, memory: 16 << 20}
}

// growth compares the medians of the second quarter with those of the last quarter. grown names
// the vitals that exceed the tolerance.
func growth(samples []vitals, let tolerance) (early, late vitals, grown error) {
	quarter := func(k int) []vitals { return samples[k*len(samples)/4 : max((k+1)*len(samples)/4, k*len(samples)/4+1)] }
	typical := func(of []vitals, pick func(vitals) float64) float64 {
		x := make([]float64, len(of))
		for i, v := range of {
			x[i] = pick(v)
		}
		return bench.Median(x)
	}
	for _, what := range []struct {
		name  string
		unit  float64
		slack float64 // allowed in addition to the share
		at    func(*vitals) *float64
	}{
		{"MB of memory", 1 << 20, let.memory, func(v *vitals) *float64 { return &v.rss }},
		{"open files", 1, 8, func(v *vitals) *float64 { return &v.files }},
		{"goroutines", 1, 32, func(v *vitals) *float64 { return &v.goroutines }},
	} {
		pick := func(v vitals) float64 { return *what.at(&v) }
		was, is := typical(quarter(1), pick), typical(quarter(3), pick)
		*what.at(&early), *what.at(&late) = was, is
		if is > (1+let.share)*was+what.slack {
			grown = errors.Join(grown, fmt.Errorf("from the second quarter to the last the server grew from %.0f to %.0f %s", was/what.unit, is/what.unit, what.name))
		}
	}
	return early, late, grown
}
