package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"loadstar/fed"
	"loadstar/fed/limit"
	"loadstar/fed/round"
	"loadstar/server/blob"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// merge computes the next version of the shared weights from the results of a closed round, and
// opens the next round. Repeating an interrupted merge gives bit-identical results.
func (d *driver) merge(ctx context.Context, r ledger.Round) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("merging round %d: %w", r.Round+1, err)
		}
	}()
	start := time.Now()
	fold, err := d.fold(ctx, &r)
	if final(err) {
		return d.refused(ctx, r, err)
	}
	if err != nil || fold == nil {
		return err
	}
	if fold.Len() != int(r.Counted) && !d.terms.Chooses() {
		why := fmt.Errorf("%w: round %d counted %d updates, but the ledger has %d", ledger.ErrDamaged, r.Round+1, r.Counted, fold.Len())
		return d.ifCurrent(ctx, r, func(*ledger.Drive) error { return why })
	}
	if d.server.Limits() != (fed.Limits{}) && !d.terms.Private() {
		if d.sizes == nil {
			var sizes limit.Tally
			if err := d.Ledger.Sizes(ctx, d.id, r, func(s ledger.Share) { addSizes(&sizes, s) }); err != nil {
				return err
			}
			d.sizes = &sizes
		}
		fold.SetTally(*d.sizes)
	}
	if d.own != nil {
		if err := d.own.open(d); err != nil {
			return fmt.Errorf("preparing the server's data: %w", err)
		}
	}
	if err := d.compute(ctx, int(r.Round), fold); err != nil {
		if ctx.Err() != nil || errors.Is(err, ledger.ErrDeposed) {
			return err // the merge was interrupted and will be repeated
		}
		return d.fail(ctx, r, err) // a merge is deterministic, so a retry would fail too
	}
	v, state, err := d.publish(ctx, d.server, d.machine.Round())
	if err != nil {
		return err
	}
	var retired []string
	err = d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
		if x.Run.State != ledger.Running {
			return nil
		}
		if d.terms.Private() {
			if err := x.Unmasked(r); err != nil {
				return err
			}
			d.machine.Postpone(d.elapsed(d.now())) // the next round's deadline was suspended while the keepers were asked
		}
		if err := x.Publish(r, v, state); err != nil {
			return err
		}
		if d.own != nil {
			if err := x.KeepServerData(terms.EncodeKept(d.own.data.Kept())); err != nil {
				return err
			}
		}
		if d.machine.Round() < d.terms.Plan.Rounds {
			if err := d.open(x); err != nil {
				return err
			}
		}
		retired, err = x.Retire(r.Version + 1)
		return err
	})
	if err != nil {
		return err
	}
	d.forgetUnmasking(d.id)
	d.metrics.merge.Observe(time.Since(start).Seconds())
	if d.terms.Private() {
		d.log.Info("round unmasked", "round", r.Round+1, "loss", r.Loss)
	}
	blob.DeleteAll(ctx, d.Blobs, retired, d.log)
	return nil
}

// addSizes counts an update by its sizes.
func addSizes(t *limit.Tally, s ledger.Share) {
	t.Add(&fed.Update{Claimed: int(s.Examples), TrainLoss: s.TrainLoss, Norm: s.Norm, ControlNorm: s.ControlNorm})
}

// publish stores the blobs of a version: the weights and control variates that its tasks
// need, and the server's state.
func (d *driver) publish(ctx context.Context, s *round.Server, next int) (v ledger.Version, state string, err error) {
	task := s.Task(next)
	if v.Weights, err = d.Blobs.Put(ctx, round.AppendFloats(nil, task.Shared)); err != nil {
		return v, "", fmt.Errorf("storing the shared weights: %w", err)
	}
	if v.Limits, err = terms.EncodeLimits(task.Limits); err != nil {
		return v, "", err
	}
	if task.Control != nil {
		if v.Control, err = d.Blobs.Put(ctx, round.AppendFloats(nil, task.Control)); err != nil {
			return v, "", fmt.Errorf("storing the control variate: %w", err)
		}
	}
	b, err := s.MarshalBinary()
	if err != nil {
		return v, "", fmt.Errorf("encoding the server's state: %w", err)
	}
	if state, err = d.Blobs.Put(ctx, b); err != nil {
		return v, "", fmt.Errorf("storing the server's state: %w", err)
	}
	return v, state, nil
}

// fold adds up the counted results of a round. It returns nil while the keepers of a private round
// have not answered.
func (d *driver) fold(ctx context.Context, r *ledger.Round) (*round.Fold, error) {
	if d.terms.Private() {
		u, err := d.masks(ctx, r)
		if err != nil || u == nil {
			return nil, err
		}
		if u.err != nil {
			return nil, u.err
		}
		return d.unmasked(ctx, r, u)
	}
	f := round.NewFold(d.terms.Rules)
	if d.terms.Folds() {
		return f, d.Ledger.Partials(ctx, d.id, r.LastBatch, func(p ledger.Partial) error {
			_, _, err := f.AddSums(int(p.Version), d.terms.Shared, p.Numbers)
			return err
		})
	}
	from := map[int64][]float32{}
	return f, d.Ledger.Singles(ctx, d.id, r.LastBatch, func(s ledger.Single) error {
		limits, err := d.terms.Limits(s.Version, func() ([]byte, error) {
			v, err := d.Ledger.Version(ctx, d.id, s.Version)
			return v.Limits, err
		})
		if err != nil {
			return err
		}
		w, ok := from[s.Version]
		if !ok {
			v, err := d.Ledger.Version(ctx, d.id, s.Version)
			if err != nil {
				return err
			}
			b, err := d.Blobs.Get(ctx, v.Weights)
			if err != nil {
				return fmt.Errorf("fetching the weights of version %d: %w", s.Version, err)
			}
			w = round.ReadFloats(nil, b)
			from[s.Version] = w
		}
		return d.terms.Add(f, &terms.Result{
			Version: int(s.Version), Numbers: s.Numbers, Limits: limits,
			Shares: []terms.Share{{Client: s.Client, Examples: int(s.Examples), Steps: int(s.Steps), Loss: s.Loss}},
		}, w)
	})
}

// ifCurrent calls do unless the run was stopped or rolled back during the merge of a round.
// Stopping or rolling back a run deletes the round's sums.
func (d *driver) ifCurrent(ctx context.Context, r ledger.Round, do func(*ledger.Drive) error) error {
	return d.Ledger.Drive(ctx, d.lead, d.id, func(x *ledger.Drive) error {
		switch {
		case x.Run.State != ledger.Running:
			return nil
		case x.Run.Version != r.Version:
			return errRolledBack
		}
		return do(x)
	})
}

// fail ends a run that cannot continue after a round, and stores the reason.
func (d *driver) fail(ctx context.Context, r ledger.Round, why error) error {
	var retired []string
	err := d.ifCurrent(ctx, r, func(x *ledger.Drive) (err error) {
		d.log.Error("the run failed", "error", why)
		retired, err = end(x, ledger.Failed, why.Error(), d.now())
		return err
	})
	if err == nil {
		blob.DeleteAll(ctx, d.Blobs, retired, d.log)
	}
	return err
}

// end ends a run. It returns the blobs that are no longer needed, because an ended run
// needs only its newest version.
func end(x *ledger.Drive, s ledger.State, reason string, now time.Time) (retired []string, err error) {
	if err := x.End(s, reason, now); err != nil {
		return nil, err
	}
	return x.Retire(x.Run.Version)
}
