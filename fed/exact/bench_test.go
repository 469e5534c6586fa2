package exact

import (
	"fmt"
	"testing"
)

// BenchmarkAdd adds updates of two lengths: those of bose2023's model if only the bottom LSTM
// stacks are shared, and if the whole model is shared.
func BenchmarkAdd(b *testing.B) {
	for _, length := range []int{5760, 42181} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			scale, err := NewScale(1, 1<<20, 1<<40/(1<<22)) // 21-bit weights, 19-bit count
			if err != nil {
				b.Fatal(err)
			}
			s, x := NewSum(scale, length), make([]float32, length)
			for i := range x {
				x[i] = float32(i%201-100) / 101
			}
			for b.Loop() {
				if s.n == scale.updates {
					s.Reset()
				}
				if err := s.Add(17520, x); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(length), "ns/number")
		})
	}
}
