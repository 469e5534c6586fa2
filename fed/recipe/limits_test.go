package recipe

import (
	"math"
	"testing"
)

// The coordinate limit depends on the learning rate without its warm-up. If the learning rate
// and the number of steps do not bound an honest update, the plan has no coordinate limit.
func TestCoordinateLimit(t *testing.T) {
	for text, want := range map[string]map[int]float64{
		"algorithm: fedavg":                                                                 {0: 0.006, 1999: 0.006}, // 1.5 times 4 steps of 0.001
		"{algorithm: fedavg, server: {coordinate: 3}}":                                      {7: 0.012},
		"{algorithm: fedadam, client: {decay: {factor: 0.1, every: 10}}}":                   {9: 0.006, 10: 0.0006},
		"{algorithm: fedprox}":                                                              {0: 0.006},
		"{algorithm: fedbuff, client: {optimizer: amsgrad, steps: 2}}":                      {0: 0.003},
		"{algorithm: fedavg, rounds: 2, client: {lr: 1, lr_end: 0.5, steps: 1, warmup: 9}}": {0: 1.5, 1: 1.125, 2: 0.75}, // a quarter of a turn per step
		"{algorithm: fedavg, server: {coordinate: 0}}":                                      nil,
		"{algorithm: fedavg, server: {clip: 0}}":                                            nil,
		"{algorithm: fedavg, client: {optimizer: sgd}}":                                     nil,
		"{algorithm: fedavg, client: {optimizer: prox}}":                                    nil,
		"{algorithm: fedavg, client: {epochs: 1}}":                                          nil,
		"{algorithm: fedavg, client: {moments: averaged}}":                                  nil,
		"algorithm: scaffold":                                                               nil,
		"algorithm: fedsgd":                                                                 nil,
		"algorithm: perfedavg":                                                              nil,
		"algorithm: fedmeta":                                                                nil,
		"algorithm: pfedme":                                                                 nil,
		"algorithm: local":                                                                  nil,
	} {
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatal(text, err)
		}
		limit := CoordinateLimit(p)
		if (limit == nil) != (want == nil) {
			t.Errorf("%s: limited %t", text, limit != nil)
			continue
		}
		for version, w := range want {
			if got := limit(version); math.Abs(got-w) > 1e-12 {
				t.Errorf("%s: the limit of version %d is %g, want %g", text, version, got, w)
			}
		}
	}
}
