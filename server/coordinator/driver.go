package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"loadstar/fed/limit"
	"loadstar/fed/round"
	"loadstar/server/blob"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// driver drives one run. Its fields are a copy of the run's state in the ledger. After an
// error the driver is discarded and the state is read again.
type driver struct {
	*coordinator
	id  string
	log *slog.Logger

	terms   *terms.Terms // nil until the run is loaded
	machine *round.Machine
	server  *round.Server
	own     *serverData // nil unless the plan needs data on the server
	started time.Time

	seen     int64 // the newest batch that the machine has processed
	losses   float64
	tally    limit.Tally  // sizes of the updates that were counted since the last round closed
	sizes    *limit.Tally // those of the closed round, or nil after a restart
	nextLook time.Time    // when to advance the run again, even without a change in the ledger
	waiting  int64        // number of clients for which the run waits; 0 if it does not wait
	present  int64        // number of clients when the run last looked for its members
	lacking  bool         // the run reports that the store lacks what it needs
	unfit    bool         // this coordinator does not have the data that the run needs
	asked    bool         // leases were added about which gateways have not been notified yet

	silent      map[int]bool  // members whose agents were not seen recently
	silentUntil time.Time     // when to look for silent members again
	benched     map[int]bench // members that did not answer recently
	wave        string        // reason why many clients declined the last round, or empty

	merging *ledger.Round // closed round whose keepers have not answered, or nil
	away    error         // reason why no results can be checked now, or nil
	looked  time.Time     // time at which this was found
	opened  int           // the round whose tasks are fixed, in a private run
}

// errRolledBack means that an operator has returned to an earlier version since the driver
// read the run.
var errRolledBack = errors.New("the run was rolled back")

// lookEvery is the interval between checks for expired leases, and the minimum interval between
// counts of the clients. If a count takes long, the interval between counts is longer.
const lookEvery = time.Second

// needsLook reports whether there may be work to do for the run.
func (d *driver) needsLook(a ledger.Activity, now time.Time) bool {
	if d.unfit {
		return false // only another coordinator can continue
	}
	if d.merging != nil && d.unmaskings[d.id].over() {
		return true
	}
	return d.terms == nil && d.waiting == 0 || a.Batch != d.seen || !now.Before(d.nextLook)
}

// advance does all work that is due for the run now. If the store lacks weights of the run, or
// the database lacks its rows, the run's reason states this. Weights are missing, for example,
// if a database is restored without the matching weights.
func (d *driver) advance(ctx context.Context) error {
	err := d.work(ctx)
	d.tellGateways()
	missing, damaged := errors.Is(err, blob.ErrNotFound) || errors.Is(err, blob.ErrDamaged), errors.Is(err, ledger.ErrDamaged)
	if missing || damaged {
		why := "the store lacks what the run needs: " + err.Error()
		if missing {
			why += "; restore the file from a backup of that time, roll the run back, or stop it"
		}
		err = errors.Join(err, d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
			if x.Run.State != ledger.Running {
				return nil
			}
			return x.Explain(ledger.ReasonLacks, why)
		}))
	}
	return err
}

// tellGateways notifies gateways of new leases. After an error, the notification may be wrong,
// but that only costs each gateway a query.
func (d *driver) tellGateways() {
	if d.asked && d.WakeAgents != nil {
		d.WakeAgents(d.id)
	}
	d.asked = false
}

func (d *driver) work(ctx context.Context) error {
	if d.waiting > 0 {
		// Count outside the transaction, because counting millions of clients takes a
		// while.
		start := time.Now() // the database's clock may jump during the count
		n, err := d.Ledger.Directory.CountClients(ctx, d.seenSince())
		if err != nil {
			return err
		}
		rest := func() { d.nextLook = d.now().Add(max(lookEvery, 20*time.Since(start))) }
		rest()
		if n < d.waiting && n == d.present {
			return nil // the reason that operators see is still correct
		}
		defer func() {
			if d.waiting > 0 {
				rest()
			}
		}()
	}
	if d.terms == nil {
		if err := d.load(ctx); err != nil {
			return fmt.Errorf("loading the run: %w", err)
		}
		if d.terms == nil || d.unfit {
			return nil
		}
	}
	for {
		var merging *ledger.Round
		var err error
		if d.merging != nil {
			err = d.merge(ctx, *d.merging)
		}
		if err == nil && d.merging != nil {
			return nil
		}
		if err == nil {
			merging, err = d.step(ctx)
		}
		if errors.Is(err, errRolledBack) {
			d.merging = nil
			d.terms = nil
			return d.load(ctx)
		} else if err != nil {
			return fmt.Errorf("advancing round %d: %w", d.machine.Round()+1, err)
		}
		if merging == nil {
			return d.found(ctx)
		}
		if err := d.merge(ctx, *merging); err != nil {
			return err
		}
		d.tellGateways()
		d.Wake(d.id)
	}
}

// found removes the reason from a run that lacked weights, but has now advanced.
func (d *driver) found(ctx context.Context) error {
	if !d.lacking {
		return nil
	}
	d.lacking = false
	return d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
		if x.Run.Code != ledger.ReasonLacks {
			return nil
		}
		return x.Explain("", "")
	})
}

// elapsed converts a time to the machine's clock, which counts from the start of the run.
// timeAt is its inverse.
func (d *driver) elapsed(now time.Time) time.Duration { return now.Sub(d.started) }
func (d *driver) timeAt(at time.Duration) time.Time   { return d.started.Add(at) }

// load reads the state of a run. If the run has not begun, load begins it if there are
// enough clients. It also finishes an interrupted merge.
func (d *driver) load(ctx context.Context) error {
	var merging *ledger.Round
	err := d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
		if x.Run.State == ledger.Waiting {
			return d.begin(ctx, x)
		}
		if err := d.restore(ctx, x); err != nil || d.unfit {
			return err
		}
		r, ok, err := x.Merging()
		if ok {
			merging = &r
		}
		return err
	})
	if err != nil {
		d.terms = nil
		return err
	}
	if merging != nil {
		return d.merge(ctx, *merging)
	}
	return nil
}

// restore reads the state of a run that has begun.
func (d *driver) restore(ctx context.Context, x *ledger.Drive) (err error) {
	if d.terms, err = terms.Read(x.Run.Plan, x.Run.PlanBlob, x.Run.Fleet); err != nil {
		return fmt.Errorf("reading the plan: %w", err)
	}
	if fits, err := d.restoreData(x); err != nil || !fits {
		return err
	}
	d.server = d.terms.Server()
	state, err := d.Blobs.Get(ctx, x.Run.Server)
	if err != nil {
		return fmt.Errorf("fetching the server's state: %w", err)
	}
	if err := d.server.UnmarshalBinary(state); err != nil {
		return fmt.Errorf("decoding the server's state: %w", err)
	}
	// After a rollback, the state belongs to an earlier version.
	d.server.Renumber(int(x.Run.Version))
	d.machine = d.terms.Machine()
	d.started, d.losses, d.tally, d.sizes, d.wave = x.Run.Started, 0, limit.Tally{}, nil, x.Run.Reason
	if x.Run.Code != "" {
		d.wave = ""
	}
	d.lacking = x.Run.Code == ledger.ReasonLacks
	if d.seen, err = x.LastBatch(); err != nil {
		return err
	}
	machine, err := x.Machine()
	if errors.Is(err, ledger.ErrNotFound) { // the run was rolled back
		d.machine.Restart(int(x.Run.Round), int(x.Run.Version), d.elapsed(d.now()))
		d.log.Info("the run was rolled back", "version", x.Run.Version)
		if d.machine.Round() >= d.terms.Plan.Rounds {
			return nil
		}
		return d.open(x)
	} else if err != nil {
		return err
	}
	if err := d.machine.UnmarshalJSON([]byte(machine)); err != nil {
		return fmt.Errorf("decoding the state of the rounds: %w", err)
	}
	return nil
}

// open asks the clients of a round that was just opened, and stores the round.
func (d *driver) open(x *ledger.Drive) error {
	_, err := d.ask(x, d.machine.Situation(0).Opened)
	if err != nil {
		return err
	}
	return d.save(x)
}

// ask creates leases for the clients that the machine selects now. It replaces clients whose
// agents were not seen recently. If this takes long, ask continues in the next transaction,
// because no results of the run are counted during a transaction.
func (d *driver) ask(x *ledger.Drive, at time.Duration) (asked bool, err error) {
	if why, err := d.openPrivate(x); err != nil {
		return false, err
	} else if why != nil {
		return false, x.Explain(ledger.ReasonWaits, why.Error())
	}
	d.setAway()
	began := time.Now()
	for time.Since(began) < askFor {
		all := d.machine.Ask(at)
		if len(all) == 0 {
			break
		}
		numbers := make([]int64, len(all))
		by := make(map[int64]round.Assignment, len(all))
		for i, a := range all {
			numbers[i] = int64(a.Client)
			by[numbers[i]] = a
		}
		now := d.now()
		q := ledger.Asking{
			Round: int64(all[0].Round), Version: int64(all[0].Version), Members: numbers,
			Until: now.Add(d.Lease + d.reach), Latest: d.latest(now), Seen: d.seenSince(),
		}
		if !q.Latest.IsZero() && q.Latest.Before(q.Until) {
			q.Until = q.Latest
		}
		gone, silent, err := x.Ask(q)
		if err != nil {
			return asked, err
		}
		for _, no := range gone {
			d.machine.Lose(by[no])
		}
		for _, no := range silent {
			d.machine.TakeBack(by[no])
			d.silent[int(no)] = true
		}
		d.metrics.turns.WithLabelValues("asked").Add(float64(len(all) - len(silent)))
		d.metrics.turns.WithLabelValues("lost").Add(float64(len(gone)))
		asked = asked || len(silent) < len(all)
		d.asked = d.asked || asked
		if len(silent) == 0 {
			break
		}
	}
	code, reason := ledger.ReasonCode(""), d.wave
	if s := d.machine.Situation(at); s.Asked == 0 && s.Running == 0 && s.Waiting == 0 {
		code, reason = ledger.ReasonWaits, "no client of the run was seen since "+d.seenSince().UTC().Format("2006-01-02 15:04 MST")
	}
	if d.away != nil {
		code, reason = ledger.ReasonWaits, d.away.Error()
	}
	return asked, x.Explain(code, reason)
}

// save stores the machine and its open round.
func (d *driver) save(x *ledger.Drive) error {
	text, err := d.machine.MarshalJSON()
	if err != nil {
		return fmt.Errorf("encoding the state of the rounds: %w", err)
	}
	s := d.machine.Situation(0)
	return x.Save(string(text), ledger.Round{
		Round: int64(d.machine.Round()), Version: int64(d.server.Version()), Opened: d.timeAt(s.Opened),
		Asked: int64(s.Asked), Lost: int64(s.Lost),
	})
}

// step passes new receipts and expired leases to the machine, and closes the round if it is
// due. It returns a round that must be merged, or nil.
func (d *driver) step(ctx context.Context) (merging *ledger.Round, err error) {
	now := d.now()
	var closed round.Outcome
	var retired []string
	err = d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
		if x.Run.State != ledger.Running {
			return nil
		}
		if x.Run.Version != int64(d.server.Version()) {
			return errRolledBack
		}
		if d.machine.Round() >= d.terms.Plan.Rounds {
			if d.server.Version() == 0 {
				reason := "no round had enough results, so nothing was trained"
				if d.wave != "" {
					reason += "; " + d.wave
				}
				retired, err = end(x, ledger.Failed, reason, now)
				return err
			}
			d.log.Info("the run finished", "version", d.server.Version())
			retired, err = end(x, ledger.Finished, "", now)
			return err
		}
		changed, err := d.updateMachine(x, now)
		if err != nil {
			return err
		}
		d.waitForKeepers(now)
		var over bool
		if closed, over = d.machine.Close(d.elapsed(now)); over {
			merging, err = d.close(x, closed)
			return err
		}
		d.machine.Postpone(d.elapsed(now))
		asked, err := d.ask(x, d.elapsed(now))
		if err != nil {
			return err
		}
		if asked || changed {
			return d.save(x)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	blob.DeleteAll(ctx, d.Blobs, retired, d.log)
	d.nextLook = now.Add(lookEvery)
	if at, ok := d.machine.Wake(d.elapsed(now)); ok && d.timeAt(at).Before(d.nextLook) {
		d.nextLook = d.timeAt(at)
	}
	if closed.Closed > 0 && merging == nil {
		d.nextLook = now // the next round may already be due to close
		d.Wake(d.id)
	}
	return merging, nil
}

// updateMachine passes new receipts and expired leases to the machine. It reports whether
// the machine must be saved. Lost clients are stored only in the machine, but receipts are
// also in the ledger.
func (d *driver) updateMachine(x *ledger.Drive, now time.Time) (changed bool, err error) {
	receipts, updates, err := x.Receipts(d.seen)
	if err != nil {
		return false, err
	}
	for i, r := range receipts {
		a := assignment(r.No, r.Round, r.Version)
		if d.machine.Return(a) != round.Counted {
			return false, fmt.Errorf("client %d was counted in round %d, but had not been asked", a.Client, a.Round+1)
		}
		delete(d.benched, a.Client)
		d.losses += r.TrainLoss
		addSizes(&d.tally, updates[i])
		d.metrics.turns.WithLabelValues("counted").Inc()
		d.metrics.staleness.Observe(float64(d.server.Version() - a.Version))
	}
	d.seen = x.Run.Batch
	lost, err := x.Withdraw(now)
	for _, l := range lost {
		d.machine.Lose(assignment(l.No, l.Round, l.Version))
		if l.Expired {
			d.lost(int(l.No), int(l.Round))
		}
		d.metrics.turns.WithLabelValues("lost").Inc()
	}
	return len(lost) > 0, err
}

func assignment(no, in, version int64) round.Assignment {
	return round.Assignment{Client: int(no), Round: int(in), Version: int(version)}
}

// close stores the outcome of a round. If the round is abandoned, it opens the next one.
func (d *driver) close(x *ledger.Drive, o round.Outcome) (*ledger.Round, error) {
	r := ledger.Round{
		Round: int64(o.Round), Version: int64(o.Version), State: ledger.RoundMerging,
		Closed: d.timeAt(o.Closed), Asked: int64(o.Asked), Counted: int64(len(o.Counted)), Late: int64(o.Late), Lost: int64(o.Lost),
		LastBatch: x.Run.Batch,
	}
	if r.Counted > 0 {
		r.Loss = d.losses / float64(r.Counted)
	}
	sizes := d.tally
	d.losses, d.tally, d.sizes = 0, limit.Tally{}, &sizes
	var err error
	if r.Evaluation, err = x.Evaluation(); err != nil {
		return nil, err
	}
	outcome := ledger.RoundMerged
	if !o.Merged {
		r.State, outcome = ledger.RoundAbandoned, ledger.RoundAbandoned
	}
	text, err := d.machine.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("encoding the state of the rounds: %w", err)
	}
	// No round follows the last one, so its open leases must not carry over.
	carries := d.terms.Carries() && d.machine.Round() < d.terms.Plan.Rounds
	if err := x.Close(r, string(text), carries); err != nil {
		return nil, err
	}
	if err := d.noteWave(x, o); err != nil {
		return nil, err
	}
	d.metrics.rounds.WithLabelValues(outcome).Inc()
	d.metrics.turns.WithLabelValues("late").Add(float64(o.Late))
	d.metrics.length.Observe((o.Closed - o.Opened).Seconds())
	said := []any{"round", o.Round + 1, "version", o.Version, "outcome", outcome, "asked", o.Asked, "counted", len(o.Counted), "late", o.Late, "lost", o.Lost}
	if !d.terms.Private() { // the loss of a private round is not known yet
		said = append(said, "loss", r.Loss)
	}
	d.log.Info("round closed", said...)
	if o.Merged {
		return &r, nil
	}
	if d.machine.Round() >= d.terms.Plan.Rounds {
		return nil, nil
	}
	return nil, d.open(x)
}

// noteWave stores the reason why many clients declined their turns in a closing round as the
// run's reason. If most clients trained, it removes the reason.
func (d *driver) noteWave(x *ledger.Drive, o round.Outcome) error {
	reason, n, err := x.Wave(int64(o.Round))
	if err != nil {
		return err
	}
	d.wave = ""
	if n > 0 && 2*n >= int64(o.Asked) {
		d.wave = fmt.Sprintf("%d of %d clients declined round %d: %s", n, o.Asked, o.Round+1, reason)
	}
	return x.Explain("", d.wave)
}
