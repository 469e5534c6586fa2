package sim

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/round"
	"loadstar/internal/testkit"
	"loadstar/lab/run"
)

// sampleCheckpoint returns a checkpoint with a value in every field.
func sampleCheckpoint() checkpoint {
	first, second := round.Assignment{Client: 3, Round: 1, Version: 1}, round.Assignment{Client: 4, Round: 2, Version: 2}
	return checkpoint{
		Dataset: "houses, 5 meters, 1h0m0s, 1234", Kernel: "portable",
		Machine: []byte(`{"state":{"round":3}}`), Server: []byte("server"), Own: []float32{0.5, -1}, Kept: []byte("kept"),
		Now: 90 * time.Second, Agenda: []event{{At: 95 * time.Second, For: first}, {At: 100 * time.Second, For: second, Lost: true}},
		Tasks: map[round.Assignment]int{first: 0, second: 1},
		Received: []fed.Task{
			{Round: 1, Version: 1, Shared: []float32{1, 2}},
			{Round: 2, Version: 2, Shared: []float32{3, 4}, Control: []float32{-0.25, 0.25}},
		},
		Offsets: run.Offsets{Rounds: 200, Evaluations: 300}, Steps: 77, RelativeMAE: 0.875,
	}
}

func TestCheckpointFormats(t *testing.T) {
	want := sampleCheckpoint()
	testkit.CheckGolden(t, "checkpoint", checkpointFormat, want.encode(), func(b []byte) error {
		var got checkpoint
		err := got.decode(b)
		if err == nil && !reflect.DeepEqual(got, want) {
			err = fmt.Errorf("%+v, want %+v", got, want)
		}
		return err
	})
}
