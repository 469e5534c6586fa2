package serveropt

var _ Rule = Adagrad

// Adagrad is the [Rule] that sums the squares (FedAdagrad: reddi2021, algorithm 2):
//
//	v = v + s^2
//
// Steps get smaller over time. reddi2021 uses Beta1 = 0.
//
// Deviations: none. bose2024 prints v = s^2.
func Adagrad(v, square, _ float64) float64 { return v + square }
