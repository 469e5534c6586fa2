package demo

import "fmt"

// The training of the demo. Rounds, steps, rates and decay were chosen on the fleets with the
// seeds 101, 102 and 103; the demo uses other fleets (decision 30).
const (
	defaultRounds = 40
	steps         = 16  // steps of a client in a round
	aloneSteps    = 640 // as many as a client takes in the federated plan
	deadline      = 5   // seconds
	quorum        = 0.7
)

// fleetPlan returns plans/day-ahead.yaml with fewer and longer rounds. Because of its deadline
// and quorum, a round continues without an agent that was killed. A plan must leave a share of
// the data for testing, so one day of the readings is unused.
func fleetPlan(rounds int) []byte {
	return fmt.Appendf(nil, `name: day-ahead
model:
  name: dense
  targets: %d
  split: {train: %g, validation: %g}
algorithm: fedavg
rounds: %d
client:
  steps: %d
  weight_decay: {correction: 128}
schedule: {deadline: %ds, quorum: %g}
evaluate: {every: 8}
`, ahead, float64(trainDays)/(trainDays+checkDays), float64(checkDays-1)/(trainDays+checkDays), rounds, steps, deadline, quorum)
}

// alonePlan returns the plan for buildings that train alone, with the same model and the same
// days. Its rate and its number of steps were chosen separately, on the same fleets. Of all
// combinations that were tried, they had the lowest error.
func alonePlan() []byte {
	return fmt.Appendf(nil, `name: alone
model:
  name: dense
  targets: %d
  split: {train: %g, validation: %g}
algorithm: local
rounds: %d
client: {steps: %d}
evaluate: {every: 0, forecasts: 0}
`, ahead, split().Train, split().Validation, aloneSteps/steps, steps)
}
