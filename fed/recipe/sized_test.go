package recipe

import "testing"

// A plan without a cohort asks all clients of a fleet of up to 500 clients, and 200 clients of
// a larger fleet. Nothing else changes.
func TestSized(t *testing.T) {
	for text, want := range map[string]map[int]int{
		"algorithm: fedavg\n":                                      {500: 0, 501: 200, 5000: 200},
		"algorithm: fedavg\nschedule: {cohort: 600}\n":             {5000: 600},
		"algorithm: local\n":                                       {5000: 0},
		"algorithm: pooled\n":                                      {5000: 0},
		"algorithm: fedbuff\nschedule: {buffer: 300}\n":            {500: 0, 501: 300},
		"algorithm: fedbuff\nschedule: {buffer: 10, cohort: 20}\n": {501: 20},
	} {
		p, err := Read([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		for fleet, cohort := range want {
			q, chosen := Sized(p, fleet)
			if q.Schedule.Cohort != cohort || chosen != (q != p) || chosen != (p.Schedule.Cohort != cohort) {
				t.Errorf("%s with %d clients: cohort %d, chosen %v, want %d", text, fleet, q.Schedule.Cohort, chosen, cohort)
			}
		}
	}
}
