package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/fed/setup"
	"loadstar/server/directory"
	"loadstar/server/ledger"
	"loadstar/server/terms"
)

// begin fixes the fleet and opens the first round once there are enough clients.
func (d *driver) begin(ctx context.Context, x *ledger.Drive) error {
	now, seen := d.now(), d.seenSince()
	kinds, err := x.Kinds(seen)
	if err != nil {
		return err
	}
	wanted := max(x.Run.Wanted, 1)
	d.waiting = 0
	fail := func(err error) error {
		d.log.Error("cannot begin the run", "error", err)
		return x.End(ledger.Failed, err.Error(), now)
	}
	p, err := recipe.Read([]byte(x.Run.Plan))
	if err != nil {
		return fail(err)
	}
	m, err := members(x, p, kinds, seen)
	if err != nil {
		return err
	}
	if d.present = m.seen; m.clients < wanted {
		return d.wait(x, wanted, few(m, wanted))
	}
	held, err := heldOut(x, p, m.Filter)
	if err != nil {
		return err
	}
	fleet := m.clients - int64(len(held)) // the other clients train
	if short, err := d.tooFewAgents(x, p, m.Filter); err != nil {
		return err
	} else if short != "" {
		return d.wait(x, wanted, short)
	}
	if p, err = d.settle(p, m, fleet, steps(kinds, m.Step)); err != nil {
		return fail(err)
	}
	text, err := recipe.Write(p)
	if err != nil {
		return fmt.Errorf("writing the settled plan: %w", err)
	}
	r := ledger.Run{Plan: string(text)}
	if r.PlanBlob, err = d.Blobs.Put(ctx, text); err != nil {
		return fmt.Errorf("storing the settled plan: %w", err)
	}
	t, err := terms.Read(r.Plan, r.PlanBlob, fleet)
	if err != nil {
		return fail(err)
	}
	var own *serverData
	if t.NeedsServerData() {
		if own, err = d.beginData(t, m.Step); err != nil {
			return fail(err)
		}
	}
	server := t.Server()
	if recipe.StartsOnServerData(p) {
		weights, err := d.startWeights(ctx, t, m.Step)
		if err != nil {
			return fail(err)
		}
		if weights == nil { // check again later
			return d.wait(x, wanted, "training the first weights on the server's data")
		}
		server = t.Setup().From(weights).NewServer()
	}
	if err := x.Explain("", ""); err != nil {
		return err
	}
	v, state, err := d.publish(ctx, server, 0)
	if err != nil {
		return err
	}
	r.Server, r.LeftOut = state, m.leftOut
	if len(held) > 0 {
		if err := x.HoldOut(held); err != nil {
			return err
		}
	}
	d.started = now.Truncate(time.Millisecond)
	n, err := x.Begin(r, v, m.Filter, d.started)
	if err != nil {
		return err
	}
	if n != fleet {
		return fmt.Errorf("the fleet changed while the run was being prepared")
	}
	if own != nil {
		if err := x.BeginServerData(d.Data.Fingerprint()); err != nil {
			return err
		}
	}
	d.terms, d.server, d.machine, d.own = t, server, t.Machine(), own
	d.log.Info("the run began", "plan", p.Name, "clients", n)
	if m.leftOut != "" {
		d.log.Warn("the run omits clients or inputs", "reason", m.leftOut)
	}
	return d.open(x)
}

// wait records why the run cannot begin yet. The driver checks again later.
func (d *driver) wait(x *ledger.Drive, wanted int64, why string) error {
	d.waiting, d.nextLook = wanted, d.now().Add(lookEvery)
	return x.Explain("", why)
}

// settle checks that the server has the plan's keepers, sets a deadline and calls terms.Settle.
func (d *driver) settle(given *fed.Plan, m membership, fleet int64, steps []time.Duration) (*fed.Plan, error) {
	if err := d.Keepers.Has(given.Privacy.Keepers); err != nil && recipe.Private(given) {
		return nil, err
	}
	p, err := terms.Settle(given, fleet, m.inputs, steps)
	if err != nil {
		return nil, err
	}
	if _, chosen := recipe.Sized(given, int(fleet)); chosen {
		d.log.Info(fmt.Sprintf("the plan sets no schedule.cohort: a round has %d of %d clients", p.Schedule.Cohort, fleet))
	}
	terms.SetDeadline(&p.Schedule, terms.UsualDeadline(d.Longest, d.Lease))
	return p, nil
}

// tooFewAgents returns the reason why the members of a private plan's run have too few agents
// for a sum, or "". An agent counts once, however many clients it has, because it adds up their
// updates.
func (d *driver) tooFewAgents(x *ledger.Drive, p *fed.Plan, members directory.Filter) (string, error) {
	if !recipe.Private(p) || d.Keepers.Has(p.Privacy.Keepers) != nil {
		return "", nil // a keeper that the server lacks ends the run, with the reason
	}
	all, err := x.Agents(members)
	if err != nil {
		return "", err
	}
	for _, name := range p.Privacy.Keepers {
		agents, q := d.Keepers.Agents(name, all), *p
		if needs := int64(recipe.LeastClients(p)); agents < needs {
			d.Keepers.Watch(p.Privacy.Keepers) // the keeper learns of new members behind regions before the server
			return fmt.Sprintf("%d agents can take part, and a round needs at least %d for its sum; wait for more agents, or lower privacy.least in the plan", agents, needs), nil
		}
		q.Privacy.Least = int(d.Keepers.Least(name))
		if needs := int64(recipe.LeastClients(&q)); agents < needs {
			d.Keepers.Watch(p.Privacy.Keepers)
			return fmt.Sprintf("%d agents can take part, and a round needs at least %d, because keeper %s releases no sum of fewer than %d; wait for more agents, or ask its administrators to lower least in keeper.yaml", agents, needs, name, q.Privacy.Least), nil
		}
	}
	return "", nil
}

// few explains why a run waits for clients. It states how many clients can take part, and what
// the other clients lack.
func few(m membership, wanted int64) string {
	text := fmt.Sprintf("%d of at least %d clients can take part", m.clients, wanted)
	if m.leftOut != "" {
		text += "; " + m.leftOut
	}
	return text
}

// steps returns the chosen interval, or all intervals if none was chosen.
func steps(kinds []directory.Kind, chosen time.Duration) (all []time.Duration) {
	if chosen != 0 {
		return []time.Duration{chosen}
	}
	for _, k := range kinds {
		if !slices.Contains(all, k.Step) {
			all = append(all, k.Step)
		}
	}
	slices.Sort(all)
	return all
}

// latest returns the latest end of a turn that is requested now. A turn may take at least
// the time in the plan.
func (d *driver) latest(now time.Time) time.Time {
	if d.Longest == 0 {
		return time.Time{}
	}
	s := d.terms.Plan.Schedule
	return now.Add(max(d.Longest, time.Duration(s.Deadline), time.Duration(s.Period)))
}

// heldOut returns the clients that the plan holds out. They are the same as in the simulator if
// every client has complete training examples. The simulator first omits clients without
// complete examples, but a server cannot identify these.
func heldOut(x *ledger.Drive, p *fed.Plan, m directory.Filter) (held []string, err error) {
	if p.Evaluate.Holdout == 0 {
		return nil, nil
	}
	names, err := x.Names(m)
	if err != nil {
		return nil, err
	}
	for i, out := range setup.Deal(p.Seed, setup.HeldOut, p.Evaluate.Holdout, len(names)) {
		if out {
			held = append(held, names[i])
		}
	}
	return held, nil
}
