package simulation

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	"loadstar/fed"
	fedclient "loadstar/fed/client"
	"loadstar/fed/recipe"
	"loadstar/fed/round"
	"loadstar/fed/setup"
	"loadstar/series"
	"loadstar/server/ledger"
)

// fleetSecret is the secret of all agents.
var fleetSecret = [32]byte{5}

// replay computes the weights and personal layers that follow from the receipts of a run. It
// trains the counted clients one after the other, without agents or servers, and merges their
// updates. Whatever happened to the fleet, its weights and layers must have the same bits.
type replay struct {
	*setup.Setup
	problem *recipe.Problem
	worker  *fedclient.Worker
	server  *round.Server
	tasks   map[int64]fed.Task // by version
	clients map[string]*fedclient.Client
}

func (w *world) newReplay(fleet int64) (*replay, error) {
	p, err := recipe.Read([]byte(w.plan()))
	if err != nil {
		return nil, err
	}
	d, err := w.dataset(w.meters[:w.total()])
	if err != nil {
		return nil, err
	}
	problem, err := recipe.Frame(p, d)
	if err != nil {
		return nil, err
	}
	s, err := setup.New(p, problem, int(fleet))
	if err == nil {
		s, err = s.OfAgent(fleetSecret)
	}
	if err != nil {
		return nil, err
	}
	r := &replay{Setup: s, problem: problem, worker: s.NewWorker(w.kernel), server: s.NewServer(), clients: map[string]*fedclient.Client{}}
	r.tasks = map[int64]fed.Task{0: r.server.Task(0)}
	for i := range d.Len() {
		m := d.Meter(i)
		r.clients[m.ID] = &fedclient.Client{
			ID: fed.ClientID(m.ID), Data: []series.Examples{problem.Examples(m, problem.Framer.Ranges(m))},
			Kept: slices.Clone(s.InitialKept(r.worker)), First: true,
		}
	}
	return r, nil
}

// count trains a client that was counted, and adds its update to a fold.
func (r *replay) count(f *round.Fold, t receipt) error {
	task, ok := r.tasks[t.version]
	if !ok {
		return fmt.Errorf("%v was trained from version %d, which was never made", t.turn, t.version)
	}
	task.Run, task.Round = runID, int(t.round)
	c, u := r.clients[t.client], &fed.Update{}
	if err := r.worker.Train(context.Background(), c, task, u); err != nil {
		return fmt.Errorf("%v: %w", t.turn, err)
	}
	c.First = false
	return f.Add(u, task.Shared)
}

// replay returns the replay of the run at the hub, after checking all versions that the hub has
// kept.
func (w *world) replay(hub *site, fleet int64) (*replay, error) {
	r, err := w.newReplay(fleet)
	if err != nil {
		return nil, err
	}
	receipts, err := hub.readReceipts()
	if err != nil {
		return nil, err
	}
	// A client's turns follow each other, so sorting them by batch sorts them by round.
	slices.SortFunc(receipts, func(a, b receipt) int {
		if a.batch != b.batch {
			return int(a.batch - b.batch)
		}
		return strings.Compare(a.client, b.client)
	})
	rows, err := hub.query("SELECT round, state, last_batch FROM rounds ORDER BY round")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var number, last int64
		var state string
		if err := rows.Scan(&number, &state, &last); err != nil {
			return nil, err
		}
		if state == ledger.RoundOpen {
			break
		}
		f, chosen := round.NewFold(r.Rules), w.chosen(number)
		for ; len(receipts) > 0 && receipts[0].batch <= last; receipts = receipts[1:] {
			into := f
			if chosen != nil && !chosen[receipts[0].client] {
				into = round.NewFold(r.Rules)
			}
			if err := r.count(into, receipts[0]); err != nil {
				return nil, err
			}
		}
		if state != ledger.RoundMerged {
			continue
		}
		if err := r.server.Merge(int(number), f, nil); err != nil {
			return nil, err
		}
		r.tasks[int64(r.server.Version())] = r.server.Task(int(number) + 1)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, t := range receipts { // these were counted in a round that was never closed
		if err := r.count(round.NewFold(r.Rules), t); err != nil {
			return nil, err
		}
	}
	return r, r.compare(hub)
}

// compare compares the hub's versions with those of the replay.
func (r *replay) compare(hub *site) error {
	rows, err := hub.query("SELECT version, weights, control FROM versions")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var version int64
		var weights, control string
		if err := rows.Scan(&version, &weights, &control); err != nil {
			return err
		}
		task, ok := r.tasks[version]
		if !ok {
			return fmt.Errorf("there is a version %d, and the receipts lead to %d", version, r.server.Version())
		}
		if !bytes.Equal(hub.blobs[weights], round.AppendFloats(nil, task.Shared)) {
			return fmt.Errorf("the weights of version %d are not those of the clients that were counted", version)
		}
		if task.Control != nil && !bytes.Equal(hub.blobs[control], round.AppendFloats(nil, task.Control)) {
			return fmt.Errorf("the control variate of version %d is not that of the clients that were counted", version)
		}
	}
	return rows.Err()
}
