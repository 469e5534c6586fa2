package terms

import v1 "loadstar/proto/loadstar/v1"

// maxRelativeMAE is the upper bound of a client's relative MAE, in millionths. A client with a
// larger error, or a dishonest client, must not dominate the mean of a round.
const maxRelativeMAE = 100e6

// Plausible returns the evaluation that came with a result of n clients, with an out-of-range
// sum moved to the nearest bound. It returns nil if there is no evaluation, or if its number of
// clients is impossible. The result then counts without an evaluation.
func Plausible(e *v1.Evaluation, n int) *v1.Evaluation {
	clients := e.GetClients()
	if clients < 1 || clients > int64(n) {
		return nil
	}
	return &v1.Evaluation{Clients: clients, RelativeMae: min(max(e.GetRelativeMae(), 0), clients*maxRelativeMAE)}
}
