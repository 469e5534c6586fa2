package explain

import (
	"math/rand/v2"
	"runtime"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/proc"
	"loadstar/nn/kernel"
)

// measureSteps measures how many gradient steps with the plan's batch size one core takes
// per second, and how many bytes of memory a worker needs.
func measureSteps(p *fed.Plan, q *recipe.Problem, k *kernel.Set) (perSecond float64, bytes int64) {
	runtime.LockOSThread() // CPU time is measured per thread
	defer runtime.UnlockOSThread()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	net, batch := q.Model.Net(), p.Client.Batch
	n := net.Weights()
	w, g, m, v := q.Model.InitialWeights(1), make([]float32, n), make([]float32, n), make([]float32, n)
	x, y := make([]float32, batch*net.Lookback()*net.Inputs()), make([]float32, batch*q.PerExample())
	ws := net.NewWorkspace(k, batch)
	runtime.ReadMemStats(&after)
	rng := rand.New(rand.NewPCG(1, 1))
	for _, s := range [][]float32{x, y} {
		for i := range s {
			s[i] = rng.Float32()
		}
	}
	step := 0
	perSecond = proc.CPURate(400*time.Millisecond, func() {
		step++
		ws.Gradient(g, w, x, y, q.Loss)
		k.Adam(w, g, m, v, kernel.AdamStep{Rate: 0.001, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, Step: step})
	})
	return perSecond, int64(after.TotalAlloc - before.TotalAlloc)
}
