package coordinator

import (
	"bytes"
	"testing"

	"loadstar/fed/round"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/server/ledger"
)

// until runs the coordinator until ok returns true. Training the initial weights takes real
// time.
func (s *site) until(what string, ok func() bool) {
	s.Helper()
	testkit.Eventually(s, what, func() bool {
		if ok() {
			return true
		}
		s.clock = s.clock.Add(lookEvery)
		s.turn()
		return false
	})
}

// TestStartOnServerData checks that a run that starts on the server's data waits until its
// initial weights are trained. Other runs continue, and stopping the run stops the training.
// Version 0 has the weights that were trained on the data.
func TestStartOnServerData(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	const (
		plan  = "algorithm: fedavg\nstart: server-data\nrounds: 2\nclient: {steps: 1, batch: 16}\n" + small
		long  = plan + "server: {start_steps: 10000000}\n"
		short = plan + "server: {start_steps: 20}\n"
	)
	s.add("long", long, 0)
	s.add("short", short, 0)
	s.add("other", "algorithm: fedavg\nrounds: 2\n"+small, 0)
	s.turn()
	s.wantState("other", ledger.Running, "")
	s.wantState("long", ledger.Waiting, "training the first weights on the server's data")
	s.wantState("short", ledger.Waiting, "training the first weights on the server's data")
	training := s.current.start
	testkit.Must(t, s.StopRun(t.Context(), "long", "test", s.clock))
	s.until("the short run begins", func() bool { return s.run("short").State == ledger.Running })
	<-training.done
	if training.err == nil {
		t.Error("the training of a stopped run came to its end")
	}
	s.wantState("short", ledger.Running, "")
	k, err := kernel.Default()
	testkit.Must(t, err)
	x := s.terms("short").Setup()
	examples, err := x.ServerExamples(dataset(t, 0), nil)
	testkit.Must(t, err)
	want, err := x.TrainStart(t.Context(), k, examples)
	testkit.Must(t, err)
	if !bytes.Equal(s.weights("short"), round.AppendFloats(nil, want)) {
		t.Error("version 0 does not have the trained weights")
	}
	if initial, _ := x.InitialWeights(); bytes.Equal(s.weights("short"), round.AppendFloats(nil, initial)) {
		t.Error("version 0 has random weights")
	}
	// Once the run has begun, it no longer needs the data.
	s.data = nil
	s.restart()
	s.turn()
	for range 2 {
		s.count(s.tasks("short")...)
		s.turn()
	}
	s.wantState("short", ledger.Finished, "")
	s.add("without", short, 0)
	s.until("the run fails", func() bool { return s.run("without").State == ledger.Failed })
	s.wantState("without", ledger.Failed, "start server-data needs readings on the server, which has none")
	s.current.trainings.Wait()
}
