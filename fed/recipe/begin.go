package recipe

import "loadstar/fed"

// Values of client.begin and evaluate.weights.
const (
	beginReceived = "received"
	weightsShared = "shared"
	theirOwn      = "own"
)

// statesClient is the value of server.states for which each client has a copy of the shared
// weights.
const statesClient = "client"

// beginSettings lists the settings of clients that store their own shared weights between
// rounds. In bose2024's figure 4, AdamAMS and ProxAdam begin with the client's own weights
// (line 1), and all client optimizers store them (line 14).
var beginSettings = []setting{
	{
		path: "client.begin", about: "shared weights at the start of a turn; received: the server's weights; own: the client's weights at the end of its last turn (bose2024, figure 4, line 1)",
		initial: beginReceived, choices: []string{beginReceived, theirOwn}, quiet: true,
	},
	setting{
		path: "evaluate.weights", about: "shared layers with which a client is scored; shared: the server's; own: the client's",
		initial: weightsShared, choices: []string{weightsShared, theirOwn}, quiet: true,
		adjust: func(p *fed.Plan, _ func(string) bool) {
			if ClientStates(p) { // otherwise the copies would have no effect on scores
				p.Evaluate.Weights = theirOwn
			}
		},
	}.only(StoresOwn),
}

// BeginsOwn reports whether clients begin a turn with their own shared weights.
func BeginsOwn(p *fed.Plan) bool { return p.Client.Begin == theirOwn }

// StoresOwn reports whether clients store shared weights of their own between rounds.
func StoresOwn(p *fed.Plan) bool { return BeginsOwn(p) || ClientStates(p) }

// ScoresOwn reports whether clients are scored with their own shared weights.
func ScoresOwn(p *fed.Plan) bool { return StoresOwn(p) && p.Evaluate.Weights == theirOwn }

// ClientStates reports whether each client has a copy of the shared weights that only its own
// updates move.
func ClientStates(p *fed.Plan) bool { return p.Server.States == statesClient }

// validateBegin checks the settings for the weights with which clients begin.
func validateBegin(p *fed.Plan, add report) {
	if BeginsOwn(p) && Averaged(p) {
		add("client.begin", "client.begin own does not work with client.moments averaged: the moments would be those of other weights")
	}
}
