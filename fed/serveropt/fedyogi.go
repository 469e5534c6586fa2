package serveropt

var _ Rule = Yogi

// Yogi is the [Rule] that moves v towards the square by an amount proportional to the
// square. After large displacements, v falls more slowly than with [Adam] (FedYogi:
// reddi2021, algorithm 2):
//
//	v = v - (1-Beta2) s^2 sign(v - s^2)
//
// Deviations: none. bose2024 prints Beta2 v instead of v.
func Yogi(v, square, beta2 float64) float64 {
	step := (1 - beta2) * square
	switch {
	case v > square:
		return v - float64(step)
	case v < square:
		return v + float64(step)
	}
	return v
}
