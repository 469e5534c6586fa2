package serveropt

var _ Rule = Adam

// Adam is the [Rule] that computes an exponential moving average of the squares (FedAdam:
// reddi2021, algorithm 2; bose2023, algorithm 1, line 25):
//
//	v = Beta2 v + (1-Beta2) s^2
//
// Deviations: none. bose2024 prints a minus sign.
func Adam(v, square, beta2 float64) float64 {
	return float64(beta2*v) + float64((1-beta2)*square)
}
