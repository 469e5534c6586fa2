package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"loadstar/fed/round"
	"loadstar/internal/testkit"
	"loadstar/nn/kernel"
	"loadstar/series"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// ownData returns data for the coordinator. Different numbers give different data.
func ownData(t *testing.T, number int) *terms.OwnData {
	t.Helper()
	k, err := kernel.Default()
	testkit.Must(t, err)
	return terms.NewOwnData(dataset(t, number), k)
}

func dataset(t *testing.T, number int) *series.Dataset {
	t.Helper()
	all := make([]series.Meter, 2)
	for i := range all {
		load := make([]float32, 200)
		for x := range load {
			load[x] = float32(3 + math.Sin(float64(x)/4+float64(i)))
		}
		load[77] += float32(number)
		all[i] = series.Meter{ID: fmt.Sprintf("own-%d", i), Start: 1_499_997_600, Load: load}
	}
	d, err := series.NewDataset(series.Dataset{Name: "own", Interval: time.Hour, Clock: time.UTC}, all)
	testkit.Must(t, err)
	return d
}

const (
	fedsim      = "algorithm: fedsim\npartition: head\nrounds: 3\nschedule: {cohort: 3}\nserver: {batch: 16}\nclient: {steps: 2, batch: 4}\n" + small
	fedsimEarly = "algorithm: fedsim\npartition: head\nrounds: 1\nschedule: {cohort: 3}\nserver: {batch: 16}\nclient: {steps: 2, batch: 4}\n" + small
)

// kept returns the stored state of the server's personal layers.
func (s *site) kept(id string) (b []byte) {
	s.Helper()
	l, err := s.Lead(s.Context(), s.name, lead, s.clock)
	testkit.Must(s, err)
	testkit.Must(s, s.Drive(s.Context(), l, id, func(x *ledger.Drive) error {
		d, err := x.ServerData()
		b = d.Kept
		return err
	}))
	return b
}

// TestOtherServerData checks that a run whose data on the server is missing or has changed
// waits and reports the reason. When the data with which it began is back, it continues and
// reaches the same weights.
func TestOtherServerData(t *testing.T) {
	t.Parallel()
	whole := newSite(t)
	whole.announce(0, 3)
	whole.add("run", fedsim, 0)
	whole.turn()
	for range 3 {
		whole.count(whole.tasks("run")...)
		whole.turn()
	}
	whole.wantState("run", ledger.Finished, "")

	s := newSite(t)
	s.announce(0, 3)
	s.add("run", fedsim, 0)
	s.turn()
	s.count(s.tasks("run")...)
	s.turn()
	s.count(s.tasks("run")...)
	for reason, data := range map[string]*terms.OwnData{
		"algorithm fedsim needs readings on the server, which has none":        nil,
		"the server's data has changed since the run began: 2 meters every 1h": ownData(t, 1),
	} {
		s.data = data
		s.restart()
		s.add(fmt.Sprint("other ", data == nil), "algorithm: fedavg\n"+small, 0)
		for range 3 {
			s.turn()
			s.clock = s.clock.Add(lookEvery)
		}
		s.wantState("run", ledger.Running, reason)
		s.wantState(fmt.Sprint("other ", data == nil), ledger.Running, "")
		if r := s.run("run"); r.Version != 1 || r.Code != ledger.ReasonWaits {
			t.Errorf("%s: version %d, code %q, want 1 and %s", reason, r.Version, r.Code, ledger.ReasonWaits)
		}
	}
	s.data = ownData(t, 0)
	s.restart()
	s.turn()
	s.wantState("run", ledger.Running, "")
	if code := s.run("run").Code; code != "" {
		t.Errorf("the run goes on, and its code is %q", code)
	}
	s.count(s.tasks("run")...)
	s.turn()
	s.wantState("run", ledger.Finished, "")
	if !bytes.Equal(s.weights("run"), whole.weights("run")) {
		t.Error("other weights than without the wait")
	}
	// A new run begins with the existing data, or fails with the reason.
	s.data = nil
	s.restart()
	s.add("without", fedsim, 0)
	s.turn()
	s.wantState("without", ledger.Failed, "needs readings on the server, which has none")
}

// TestServersLayersStay checks that the server's personal layers are stored in the ledger and
// not in a blob, because agents may fetch blobs, and that they are deleted at the end of the
// run.
func TestServersLayersStay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", fedsim, 0)
	s.turn()
	if b := s.kept("run"); len(b) != 0 {
		t.Errorf("%d bytes of state before the first merge", len(b))
	}
	s.count(s.tasks("run")...)
	s.turn()
	kept, err := terms.DecodeKept(s.kept("run"))
	testkit.Must(t, err)
	setup := s.terms("run").Setup()
	if n := setup.Problem.Partition.PersonalLen(); len(kept) < n || n < 8 {
		t.Fatalf("%d numbers are kept, %d of them personal", len(kept), n)
	}
	if _, initial := setup.InitialWeights(); bytes.Equal(round.AppendFloats(nil, kept[:len(initial)]), round.AppendFloats(nil, initial)) {
		t.Error("the server's personal layers were not trained")
	}
	secret := round.AppendFloats(nil, kept)
	for _, hash := range s.allBlobs() {
		b, err := s.blobs.Get(t.Context(), hash)
		testkit.Must(t, err)
		for i := 0; i+16 <= len(secret); i += 16 {
			if bytes.Contains(b, secret[i:i+16]) {
				t.Fatalf("blob %s has the server's personal weights from number %d on", hash, i/4)
			}
		}
	}
	for range 2 {
		s.count(s.tasks("run")...)
		s.turn()
	}
	s.wantState("run", ledger.Finished, "")
	l, err := s.Lead(t.Context(), s.name, lead, s.clock)
	testkit.Must(t, err)
	err = s.Drive(t.Context(), l, "run", func(x *ledger.Drive) error {
		_, err := x.ServerData()
		return err
	})
	if !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("after the end: %v", err)
	}
}

// TestLeadDuringMerge checks that a coordinator keeps the lead during a merge that takes longer
// than the lead lasts, and that the merge is cancelled if another coordinator has taken the
// lead nevertheless.
func TestLeadDuringMerge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.coordinator("a"), s.coordinator("b")
	a.Lead, b.Lead = 150*time.Millisecond, 150*time.Millisecond
	a.now, b.now = time.Now, time.Now
	if !a.holdsLead(t.Context()) {
		t.Fatal("no lead")
	}
	testkit.Must(t, a.leading(t.Context(), func(ctx context.Context) error {
		for end := time.Now().Add(6 * a.Lead); time.Now().Before(end); time.Sleep(a.Lead / 10) {
			if _, err := s.Lead(ctx, "b", b.Lead, time.Now()); !errors.Is(err, ledger.ErrRefused) && ctx.Err() == nil {
				t.Skip("this machine is too slow to renew the lead in time")
			}
		}
		return ctx.Err()
	}))
	if !a.holdsLead(t.Context()) {
		t.Error("the lead is lost after the merge")
	}
	err := a.leading(t.Context(), func(ctx context.Context) error {
		_, err := s.Lead(ctx, "b", time.Hour, time.Now().Add(time.Hour))
		testkit.Must(t, err)
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, ledger.ErrDeposed) {
		t.Errorf("%v, want %v", err, ledger.ErrDeposed)
	}
}

// TestInterruptedMerge checks that a server that is stopped during a merge leaves the run
// unchanged.
func TestInterruptedMerge(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.announce(0, 3)
	s.add("run", fedsimEarly, 0)
	s.turn()
	s.count(s.tasks("run")...)
	d := s.current.drivers["run"]
	ctx, cancel := context.WithCancel(t.Context())
	merging, err := d.step(ctx)
	testkit.Must(t, err)
	cancel()
	if err := d.merge(ctx, *merging); !errors.Is(err, context.Canceled) {
		t.Errorf("merge: %v", err)
	}
	s.wantState("run", ledger.Running, "")
	s.restart()
	s.turn()
	s.wantState("run", ledger.Finished, "")
	if got := s.rounds("run"); !strings.Contains(got, "merged") {
		t.Errorf("the rounds are\n%s", got)
	}
}
