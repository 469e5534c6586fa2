package readings

import (
	"testing"
	"time"
)

// TestReceiving checks the description of a new meter, which sends messages for minutes before
// it has a reading.
func TestReceiving(t *testing.T) {
	i, _, now := intake(t, nil)
	add := func(after time.Duration, samples ...Sample) {
		now.set(start.Add(after))
		for n := range samples {
			samples[n].At = start.Add(after)
		}
		i.Add(samples, func(err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	check := func(client string, messages int, complete time.Duration) {
		t.Helper()
		r, ok := i.Receiving(client)
		if ok != (messages > 0) || r.Messages != messages || ok && !r.Complete.Equal(start.Add(complete)) {
			t.Errorf("%s: %+v, want %d messages and %s", client, r, messages, start.Add(complete))
		}
	}
	check("a", 0, 0)
	add(3*time.Minute, Sample{Client: "a", Value: 1, Kind: Power}, Sample{Client: "a", Value: 2, Kind: Power}, Sample{Client: "stranger", Value: 1, Kind: Power})
	add(4*time.Minute, Sample{Client: "a", Value: 1, Kind: Power}, Sample{Client: "b", Value: -1, Kind: Counter})
	check("a", 2, 15*time.Minute)
	check("b", 0, 0) // a negative counter cannot be used
	check("stranger", 0, 0)
	add(8*time.Minute, Sample{Client: "b", Value: 5, Kind: Counter}) // less than half of the step is left
	check("b", 1, 30*time.Minute)
	now.set(start.Add(16 * time.Minute)) // the step is being stored
	check("a", 2, 15*time.Minute)
	now.set(start.Add(20 * time.Minute)) // the step had gaps
	check("a", 2, 30*time.Minute)
}
