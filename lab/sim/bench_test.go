package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
	"loadstar/series"
)

// BenchmarkRounds is for profiling whole rounds. To compare the simulator with the
// training engine alone, use loadstar-lab bench simulate.
func BenchmarkRounds(b *testing.B) {
	for _, clients := range []int{42, 2000} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) {
			cohort := min(clients, 100)
			plan, err := recipe.Read(fmt.Appendf(nil, "algorithm: fedavg\npartition: head\nrounds: %d\nschedule: {cohort: %d}\n", b.N, cohort))
			if err != nil {
				b.Fatal(err)
			}
			rng := rand.New(rand.NewPCG(1, 1))
			meters := make([]series.Meter, clients)
			for i := range meters {
				load := make([]float32, 8760)
				for j := range load {
					load[j] = rng.Float32()
				}
				meters[i] = series.Meter{ID: fmt.Sprint(i), Load: load}
			}
			d, err := series.NewDataset(series.Dataset{Name: "bench", Interval: time.Hour, Clock: time.UTC}, meters)
			if err != nil {
				b.Fatal(err)
			}
			k, err := kernel.Default()
			if err != nil {
				b.Fatal(err)
			}
			s, err := Run(b.Context(), Config{Plan: plan, Dataset: d, Dir: b.TempDir(), Kernel: k, Workers: 2, Memory: 512 << 20, Save: 10 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(s.StepsPerS, "steps/s")
			b.ReportMetric(s.EngineShare, "engine-share")
		})
	}
}
