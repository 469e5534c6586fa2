package client

import "math"

// Copy moves a client's own copy of the shared weights by its updates (FedAvgAdaptive:
// bose2024, figure 5, lines 7 and 8, without the sum over clients):
//
//	v_c     = Beta1 v_c + (1-Beta1) delta_c^2,   v_c = 0 at first
//	theta_c = theta_c + Rate · delta_c / (sqrt(v_c) + Epsilon)
//
// The caption of the figure says that FedAvgAdaptive "uses N distinct states for each of the
// clients", and section 3 says that it "maintains distinct parameters for each client, thereby
// providing a degree of personalization from the outset". Line 8 as printed sums over the
// clients, which makes all copies equal. This reading is the default, and aggregate.PerClient
// implements it.
//
// A copy depends only on the updates of its client. It is therefore stored at the client, where
// it changes when the update is counted, and all clients receive the same tasks. The server's
// shared weights still move by the mean over clients. New clients start from the server's
// weights, and releases contain them.
//
// Deviations: in this reading, clients learn nothing from each other; the paper does not
// mention this. The paper prints sqrt(v + epsilon). Copies and second moments are float32.
type Copy struct{ Rate, Beta1, Epsilon float64 }

// move returns the next value of a weight and updates its second moment.
func (c *Copy) move(theta, delta float32, v *float32) float32 {
	d := float64(delta)
	second := float64(c.Beta1*float64(*v)) + float64((1-c.Beta1)*float64(d*d))
	*v = float32(second)
	return float32(float64(theta) + float64(c.Rate*float64(d/(math.Sqrt(second)+c.Epsilon))))
}
