package keeper

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/mask"
	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

const (
	maxMembers = 200_000
	// oldestDays is the maximum number of days that an enrolment may take to arrive.
	oldestDays = 40
)

// membership determines which members may be in a sum, with their cells and keys.
type membership struct{ *store }

// Enrol adds members. For each agent, it returns a receipt or the reason for the refusal; a
// refused agent does not become a member. An agent keeps its first key, because a server that
// could replace the keys of all other agents could isolate one agent's update.
func (k *Keeper) Enrol(q *v1.KeeperEnrolRequest) (*v1.KeeperEnrolResponse, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fresh(); err != nil {
		return nil, err
	}
	if err := k.checkFleet(q.GetFleet()); err != nil {
		return nil, err
	}
	if len(q.Enrolments) > member.MaxEnrolled {
		return nil, refuse(ruleRequest, "%d enrolments, the maximum is %d", len(q.Enrolments), member.MaxEnrolled)
	}
	a := &v1.KeeperEnrolResponse{}
	for _, e := range q.Enrolments {
		r, err := k.membership.enrol(e)
		if refused := (*Refusal)(nil); errors.As(err, &refused) {
			r, err = &v1.Receipt{Keeper: k.pin[:], Refused: refused.Error()}, nil
			k.options.Log.Info("refused an enrolment", "agent", e.GetAgent(), "rule", refused.Rule, "reason", refused.Reason)
		}
		if err != nil {
			return nil, err
		}
		a.Receipts = append(a.Receipts, r)
	}
	a.Signature = member.Sign(k.identity, k.meta.Epoch, q, a)
	return a, nil
}

func (ms *membership) enrol(e *v1.KeeperEnrolment) (*v1.Receipt, error) {
	agent := e.GetAgent()
	if agent == "" || len(agent) > member.MaxName {
		return nil, refuse(ruleRequest, "the agent's name has %d bytes", len(agent))
	}
	id, _ := member.SealedFor(e.Sealed)
	private, known := ms.ring.sealing[id]
	if !known {
		return nil, refuse(ruleMember, "the key is sealed for a statement that is not in use: enrol with the current one")
	}
	key, day, code, err := member.Open(private.Key, ms.options.Fleet, agent, ms.pin, e.Sealed)
	if err != nil {
		return nil, refuse(ruleMember, "%s", err)
	}
	if err := ms.ring.useSealing(id, ms.options.today()); err != nil {
		return nil, err
	}
	if today := ms.options.today(); day > today+1 || day < today-oldestDays {
		return nil, refuse(ruleDay, "the key is of day %d and today is %d: one of the clocks is wrong", day, today)
	}
	now, later := key, day
	for later < ms.options.today()-1 {
		now, later = now.Next(), later+1
	}
	row := keyRow{Day: later, Key: now[:]}
	m := ms.members[agent]
	if m != nil {
		if m.Revoked {
			return nil, refuse(ruleMember, "%s is revoked", agent)
		}
		if has, ok := ms.ring.keys[agent]; ok && m.Serial != 0 && has.Serial == m.Serial {
			if !same(&has, &row) {
				return nil, refuse(ruleMember, "%s has another key: the keeper's administrators can reset it", agent)
			}
			return member.NewReceipt(&key, ms.options.Fleet, agent, ms.pin, m.Cell, m.Since), nil
		}
	}
	if m, err = ms.admit(agent, m, code, row); err != nil {
		return nil, err
	}
	return member.NewReceipt(&key, ms.options.Fleet, agent, ms.pin, m.Cell, m.Since), nil
}

// same reports whether two keys are the same on a day that both have.
func same(a, b *keyRow) bool {
	day := max(a.Day, b.Day)
	x, ok1 := a.on(day)
	y, ok2 := b.on(day)
	return ok1 && ok2 && subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

// admit stores the key of a new member, or of a member that has no key. It stores the key
// before the member, so a crash between the two leaves an unused key.
func (ms *membership) admit(agent string, old *memberRow, code member.Code, row keyRow) (m *memberRow, err error) {
	if old == nil && len(ms.members) >= maxMembers {
		return nil, refuse(ruleMember, "there are %d members already", len(ms.members))
	}
	hash := sha256.Sum256(code[:])
	invited := ms.options.Rules.Invited && ms.options.on(ruleInvitation)
	// After the keeper has lost its keys, the invitation proves that this is the same member.
	returns := old != nil && len(old.Code) > 0 && subtle.ConstantTimeCompare(old.Code, hash[:]) == 1
	row.Serial = ms.meta.Serial + 1
	if invited && !returns {
		if err := ms.valid(hash[:]); err != nil {
			return nil, err
		}
	}
	if err := ms.ring.put(map[string]keyRow{agent: row}); err != nil {
		return nil, err
	}
	err = ms.update("enrolment", func(c *change) error {
		m = &memberRow{Since: c.at.Unix()}
		if invited {
			m.Code = hash[:]
		}
		if returns {
			m.Since = old.Since
		} else if invited {
			if err := c.spend(hash[:]); err != nil {
				return err
			}
		}
		c.meta.Serial++
		m.Serial = c.meta.Serial
		if old != nil {
			m.Cell = old.Cell
		} else if err := ms.draw(c, m); err != nil {
			return err
		}
		c.members[agent] = m
		return c.log("enrol", "%s, cell %d", agent, m.Cell)
	})
	return m, err
}

// valid refuses an invitation that admit could not use.
func (ms *membership) valid(hash []byte) error {
	return ms.db.View(func(tx *bolt.Tx) error {
		_, err := findCode(tx, hash, ms.options.seconds())
		return err
	})
}

func findCode(tx *bolt.Tx, hash []byte, now int64) (*codeRow, error) {
	var r codeRow
	found, err := boltfile.Get(tx.Bucket(codesBucket), hash, &r)
	switch {
	case err != nil:
		return nil, err
	case !found || r.Uses < 1:
		return nil, refuse(ruleInvitation, "the invitation is unknown or used: ask the keeper's administrators for an invitation")
	case r.Until < now:
		return nil, refuse(ruleInvitation, "the invitation ended at %s", time.Unix(r.Until, 0).UTC().Format(time.RFC3339))
	}
	return &r, nil
}

// spend uses up one use of an invitation.
func (c *change) spend(hash []byte) error {
	r, err := findCode(c.tx, hash, c.at.Unix())
	if err != nil {
		return err
	}
	if r.Uses--; r.Uses == 0 {
		return c.tx.Bucket(codesBucket).Delete(hash)
	}
	return boltfile.Put(c.tx.Bucket(codesBucket), hash, r)
}

// draw puts a new member into a random cell. When the fleet is large enough for another cell,
// each member moves to the new cell with the same probability. Each member's cell is therefore
// uniform and independent of the other members' cells, even if a server chooses the order of
// enrolments.
func (ms *membership) draw(c *change, m *memberRow) error {
	count := int64(len(ms.members)) + 1
	if cells := max(1, count/ms.options.Rules.Cell); cells > c.meta.Cells {
		for ; c.meta.Cells < cells; c.meta.Cells++ {
			moved, err := ms.move(c)
			if err != nil {
				return err
			}
			if err := c.log("cell", "cell %d begins with %d members", c.meta.Cells, moved); err != nil {
				return err
			}
		}
	}
	if !ms.options.on(ruleCell) { // planted mistake: the order of enrolments determines the cell
		m.Cell = (count - 1) / ms.options.Rules.Cell
		return nil
	}
	at, err := ms.uniform(c.meta.Cells)
	m.Cell = at
	return err
}

// move moves each member to the new cell, with the probability that makes all cells equally
// likely.
func (ms *membership) move(c *change) (moved int, err error) {
	if !ms.options.on(ruleCell) {
		return 0, nil
	}
	for _, name := range slices.Sorted(maps.Keys(ms.members)) { // makes tests repeatable
		at, err := ms.uniform(c.meta.Cells + 1)
		if err != nil {
			return 0, err
		}
		if at == c.meta.Cells {
			r := *ms.members[name]
			if changed := c.members[name]; changed != nil {
				r = *changed
			}
			r.Cell = c.meta.Cells
			c.members[name] = &r
			moved++
		}
	}
	return moved, nil
}

// uniform draws a uniform random number below n.
func (ms *membership) uniform(n int64) (int64, error) {
	limit := ^uint64(0) - ^uint64(0)%uint64(n)
	for {
		var b [8]byte
		if _, err := io.ReadFull(ms.options.random, b[:]); err != nil {
			return 0, err
		}
		if x := binary.LittleEndian.Uint64(b[:]); x < limit {
			return int64(x % uint64(n)), nil
		}
	}
}

// list returns all members, sorted by name.
func (ms *membership) list() []*v1.KeeperMember {
	all := make([]*v1.KeeperMember, 0, len(ms.members))
	for name, m := range ms.members {
		all = append(all, &v1.KeeperMember{Agent: name, Cell: m.Cell, Since: m.Since, Revoked: m.Revoked || m.Serial == 0})
	}
	slices.SortFunc(all, func(a, b *v1.KeeperMember) int { return cmp.Compare(a.Agent, b.Agent) })
	return all
}

// key returns a member's key for a day.
func (ms *membership) key(agent string, day int64) (mask.Key, bool) {
	m := ms.members[agent]
	row, found := ms.ring.keys[agent]
	if m == nil || !found || m.Serial == 0 || row.Serial != m.Serial {
		return mask.Key{}, false
	}
	return row.on(day)
}

// maskKey returns a member's key for a day. It refuses members that may not be in a sum at the
// time at, in Unix seconds.
func (ms *membership) maskKey(agent string, day, at int64) (mask.Key, error) {
	m := ms.members[agent]
	if m == nil || m.Revoked {
		return mask.Key{}, refuse(ruleMember, "%s is not a member", agent)
	}
	if least := ms.current.Rules.Age; ms.options.on(ruleAge) && m.Since+least > at {
		return mask.Key{}, refuse(ruleAge, "%s is a member since %d s, the minimum is %d s", agent, at-m.Since, least)
	}
	if key, ok := ms.key(agent, day); ok {
		return key, nil
	}
	return mask.Key{}, refuse(ruleMember, "the keeper has no key of %s for day %d: it must enrol again", agent, day)
}
