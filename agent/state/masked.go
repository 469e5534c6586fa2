package state

import (
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"loadstar/internal/boltfile"
)

// Member is the agent's stored data about its membership with a keeper.
type Member struct {
	// Key is the member key of a day since 1970, UTC. Earlier keys cannot be computed from it.
	Key [32]byte `json:"key"`
	Day int64    `json:"day"`
	// Since is the time at which the keeper accepted the key, in Unix seconds, and Cell is the
	// member's cell. Enrolled means that the keeper's receipt has arrived.
	Since    int64 `json:"since,omitempty"`
	Cell     int64 `json:"cell,omitempty"`
	Enrolled bool  `json:"enrolled,omitempty"`
	// For is the number of the statement for which the agent enrolled.
	For int64 `json:"for,omitempty"`
	// Statement is the number of the keeper's newest statement that the agent has seen.
	Statement int64 `json:"statement,omitempty"`
}

// Member returns the membership with the keeper of the given identity, and whether there is
// one.
func (s *Store) Member(keeper [32]byte) (m Member, found bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		found, err = boltfile.Get(tx.Bucket(membersBucket), keeper[:], &m)
		return err
	})
	return m, found, err
}

// ChangeMember changes a membership, which may be new. When it returns, the change is on disk.
func (s *Store) ChangeMember(keeper [32]byte, change func(m *Member)) error {
	return s.update("member", func(tx *bolt.Tx) error {
		var m Member
		b := tx.Bucket(membersBucket)
		if _, err := boltfile.Get(b, keeper[:], &m); err != nil {
			return err
		}
		change(&m)
		return boltfile.Put(b, keeper[:], &m)
	})
}

// maskedRounds is the number of rounds per run whose masked results are remembered. Older
// rounds are never masked again.
const maskedRounds = 4

// privateRuns is the number of deleted private runs that are remembered. Beyond this number, no
// run is masked, because the store could not tell a new run from a deleted one.
const privateRuns = 1 << 14

// maskedRecord contains the context for which a round's results were masked.
type maskedRecord struct {
	Round   int64    `json:"round"`
	Context [32]byte `json:"context"`
	Parts   int64    `json:"parts"`
	Clients []string `json:"clients"`
}

// ErrMasked means that a result must not be masked. Either the round was masked in another
// context, or one of the clients is already in a masked result of the round.
var ErrMasked = errors.New("masking refused")

// Mask returns the number of a round's next masked result, counted from 0, and the clients in
// earlier masked results. A round is masked in only one context, the first. The run must have
// begun.
func (s *Store) Mask(run string, round int64, context [32]byte) (part int64, clients []string, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		_, r, err := maskedOf(tx, run, round, context)
		part, clients = r.Parts, slices.Clone(r.Clients)
		return err
	})
	return part, clients, err
}

// maskedOf returns the records of a run and of one of its rounds. The round's record may be
// new.
func maskedOf(tx *bolt.Tx, run string, round int64, context [32]byte) (all runRecord, r maskedRecord, err error) {
	found, err := boltfile.Get(tx.Bucket(runsBucket), []byte(run), &all)
	switch {
	case err != nil:
		return all, r, err
	case !found || all.Forgotten:
		return all, r, ErrForgotten
	}
	if i := slices.IndexFunc(all.Masked, func(r maskedRecord) bool { return r.Round == round }); i >= 0 {
		if r = all.Masked[i]; r.Context != context {
			return all, r, fmt.Errorf("%w: this agent has masked round %d for another task", ErrMasked, round+1)
		}
		return all, r, nil
	}
	if len(all.Masked) == 0 {
		runs := 0
		err := boltfile.Each(tx.Bucket(runsBucket), func(_ []byte, r *runRecord) error {
			if r.Private {
				runs++
			}
			return nil
		})
		if err == nil && runs >= privateRuns {
			err = fmt.Errorf("%w: this agent has masked results of %d earlier runs, which is the maximum that it can distinguish", ErrMasked, runs)
		}
		if err != nil {
			return all, r, err
		}
	}
	if len(all.Masked) == maskedRounds && round < all.Masked[0].Round {
		return all, r, fmt.Errorf("%w: round %d is older than round %d, which this agent has masked", ErrMasked, round+1, all.Masked[0].Round+1)
	}
	return all, maskedRecord{Round: round, Context: context}, nil
}

// Masked is the context for which a result is masked, and the number that Mask has returned for
// the result.
type Masked struct {
	Context [32]byte
	Part    int64
}

// noteMasked records that the clients of a result are in a masked result of its round.
func noteMasked(tx *bolt.Tx, x *resultRecord, m *Masked) error {
	all, r, err := maskedOf(tx, x.Run, x.Round, m.Context)
	if err != nil {
		return err
	}
	if r.Parts != m.Part {
		return fmt.Errorf("%w: result %d of round %d has number %d", ErrMasked, r.Parts, x.Round+1, m.Part)
	}
	r.Parts++
	for _, c := range x.Clients {
		if slices.Contains(r.Clients, c.Name) {
			return fmt.Errorf("%w: client %s is in another masked result of round %d", ErrMasked, c.Name, x.Round+1)
		}
		r.Clients = append(r.Clients, c.Name)
	}
	all.Masked = slices.DeleteFunc(all.Masked, func(r maskedRecord) bool { return r.Round == x.Round })
	all.Masked = append(all.Masked, r)
	slices.SortFunc(all.Masked, func(a, b maskedRecord) int { return int(min(max(a.Round-b.Round, -1), 1)) })
	all.Masked = all.Masked[max(len(all.Masked)-maskedRounds, 0):]
	return boltfile.Put(tx.Bucket(runsBucket), []byte(x.Run), &all)
}
