package serveropt

var _ Rule = Yogi

// Yogi moves towards the square by a share of the square itself, so that v falls more
// slowly than Adam's after large displacements (FedYogi: reddi2021, algorithm 2):
//
//	v = v - (1-Beta2) s^2 sign(v - s^2)
//
// Deviations: none. bose2024 prints Beta2 v in place of v.
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
