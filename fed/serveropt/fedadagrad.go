package serveropt

var _ Rule = Adagrad

// Adagrad adds squares up (FedAdagrad: reddi2021, algorithm 2):
//
//	v = v + s^2
//
// Steps become smaller and smaller. reddi2021 has a Beta1 of 0 with it.
//
// Deviations: none. bose2024 prints v = s^2.
func Adagrad(v, square, _ float64) float64 { return v + square }
