package synth

import (
	"math"
	"math/rand/v2"
)

// purpose identifies the use of a random stream, so that each use of a seed has its own
// stream.
type purpose uint64

const (
	forWeather purpose = iota + 1
	forTypes
	forTraits
	forDays
	forNoise
	forFaults
)

// stream is a sequence of random numbers.
type stream struct{ pcg rand.PCG }

// newStream returns the stream for a seed, a purpose and a number, such as the number of a
// building.
func newStream(seed uint64, p purpose, i int) stream {
	// Mix the bits, so that consecutive numbers give unrelated streams (the finalizer of
	// splitmix64).
	x := uint64(p)<<32 + uint64(i)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	var s stream
	s.pcg.Seed(seed, x^x>>31)
	return s
}

// uniform returns a number in [0, 1).
func (s *stream) uniform() float64 { return float64(s.pcg.Uint64()>>11) / (1 << 53) }

func (s *stream) between(lo, hi float64) float64 { return lo + float64((hi-lo)*s.uniform()) }

func (s *stream) chance(p float64) bool { return s.uniform() < p }

// below returns an integer in [0, n), for n far below 2^32.
func (s *stream) below(n int) int { return int(s.pcg.Uint64() >> 32 * uint64(n) >> 32) }

// bell returns a random number with mean 0, variance 1 and a nearly normal distribution. The
// number is a sum of four uniform numbers, because computing the sum needs no logarithm. Its
// absolute value is below 3.5.
func (s *stream) bell() float64 {
	const mean, deviation = 2 * 65535, 37837.2
	u := s.pcg.Uint64()
	return float64(int64(u&0xffff+u>>16&0xffff+u>>32&0xffff+u>>48)-mean) / deviation
}

// factor returns a random positive factor with median 1 and a nearly log-normal
// distribution.
func (s *stream) factor(sigma float64) float64 { return exp(sigma * s.bell()) }

// exp returns e to the power of x for |x| < 4, with an error of about 1e-12.
func exp(x float64) float64 {
	y := x / 1024
	e := 1 + float64(y*(1+float64(y/2*(1+float64(y/3*(1+float64(y/4*(1+y/5))))))))
	for range 10 {
		e *= e
	}
	return e
}

// sine returns the sine of an angle in turns, with an error of about 1e-10.
func sine(turns float64) float64 {
	x := turns - math.Floor(turns+0.5) // in [-0.5, 0.5)
	if x > 0.25 {
		x = 0.5 - x
	} else if x < -0.25 {
		x = -0.5 - x
	}
	x *= 2 * math.Pi
	z := x * x
	p := 1.0
	for n := 14.0; n >= 2; n -= 2 {
		p = 1 - float64(z/(n*(n+1))*p)
	}
	return float64(x * p)
}

func cosine(turns float64) float64 { return sine(turns + 0.25) }

// hinge returns a smooth version of max(x, 0). Width is the approximate width of the bend at 0.
func hinge(x, width float64) float64 {
	return float64((x + math.Sqrt(float64(x*x)+float64(width*width))) / 2)
}

func clamp(x, lo, hi float64) float64 { return min(max(x, lo), hi) }
