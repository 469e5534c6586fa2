package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/fed"
	fedclient "loadstar/fed/client"
	"loadstar/fed/round"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// serverData is the coordinator's own data, as used in one run.
type serverData struct {
	// data is nil until the first merge after a restart. Preparing its examples takes too
	// long for the transaction that restores the run.
	data *fedclient.ServerData
	kept []byte // state to restore, empty at version 0
}

// beginData prepares the coordinator's data for a run. interval is the time between the
// clients' readings. An error ends the run.
func (d *driver) beginData(t *terms.Terms, interval time.Duration) (*serverData, error) {
	data, err := d.Data.Open(t.Setup(), interval)
	return &serverData{data: data}, err
}

// restoreData reads the state of the server's data. It returns false if this coordinator
// does not have the data with which the run began. The run then waits for a coordinator
// that does, and shows the reason.
func (d *driver) restoreData(x *ledger.Drive) (fits bool, err error) {
	d.own, d.unfit = nil, false
	if !d.terms.NeedsServerData() {
		return true, nil
	}
	s, err := x.ServerData()
	if err != nil {
		return false, err
	}
	var why error
	switch d.Data.Fingerprint() {
	case s.Fingerprint:
		d.own = &serverData{kept: s.Kept}
		if x.Run.Code == ledger.ReasonWaits { // written below
			err = x.Explain("", "")
		}
		return true, err
	case "":
		p := *d.terms.Plan
		p.Start = "" // the start is over, and the merges need the data
		why = terms.MissingOwnData(&p)
	default:
		why = d.Data.Changed(s.Fingerprint)
	}
	d.unfit = true
	d.log.Error("the run waits", "error", why)
	return false, x.Explain(ledger.ReasonWaits, why.Error())
}

// compute computes the next version of the shared weights. Gradients on the server's data
// may take longer than the lead lasts, so compute renews the lead.
func (d *driver) compute(ctx context.Context, in int, fold *round.Fold) error {
	if d.own == nil {
		return d.server.Merge(in, fold, nil)
	}
	return d.leading(ctx, func(ctx context.Context) error {
		if err := d.own.data.Begin(ctx, d.server.Task(in)); err != nil {
			return fmt.Errorf("round %d: training the server's personal layers: %w", in+1, err)
		}
		return d.server.Merge(in, fold, interruptible{ctx, d.own.data})
	})
}

// open prepares the examples and restores the state, unless this has already been done. An
// unreadable state does not end the run, because a newer coordinator may have written it.
func (s *serverData) open(d *driver) error {
	if s.data != nil {
		return nil
	}
	data, err := d.Data.Open(d.terms.Setup(), 0)
	if err != nil {
		return err
	}
	if len(s.kept) > 0 {
		kept, err := terms.DecodeKept(s.kept)
		if err != nil {
			return err
		}
		if err := data.Restore(kept); err != nil {
			return err
		}
	}
	s.data, s.kept = data, nil
	return nil
}

// interruptible is data for which the computation of a gradient stops when the context ends.
type interruptible struct {
	ctx context.Context
	fed.ServerData
}

// Gradient implements [fed.ServerData].
func (i interruptible) Gradient(g, shared []float32) error {
	if err := i.ctx.Err(); err != nil {
		return context.Cause(i.ctx)
	}
	return i.ServerData.Gradient(g, shared)
}

// leading calls do and renews the lead until do returns. If another coordinator takes the lead,
// leading cancels the context of do with ErrDeposed as the cause.
func (k *coordinator) leading(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	over, ended := make(chan struct{}), make(chan struct{})
	var until time.Time
	go func() {
		defer close(ended)
		tick := time.NewTicker(k.Lead / 3)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			now := k.now()
			lead, err := k.Ledger.Lead(ctx, k.Name, k.Lead, now)
			switch {
			case errors.Is(err, ledger.ErrRefused) || err == nil && lead != k.lead:
				cancel(ledger.ErrDeposed)
				return
			case err != nil:
				k.warn(ctx, "keeping the lead", err)
			default:
				until = now.Add(k.Lead)
			}
		}
	}()
	err := do(ctx)
	if errors.Is(context.Cause(ctx), ledger.ErrDeposed) {
		err = ledger.ErrDeposed
	}
	close(over)
	cancel(nil)
	<-ended
	if until.After(k.until) {
		k.until, k.renew = until, until.Add(-2*k.Lead/3)
	}
	return err
}
