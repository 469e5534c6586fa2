package keeper

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"loadstar/fed/member"
	"loadstar/internal/boltfile"
	v1 "loadstar/proto/loadstar/v1"
)

// The methods in this file are for the keeper's administrators. A server cannot call them.

const maxCodes = 100_000

// Invite returns an invitation for a number of agents. The keeper stores only its hash.
func (k *Keeper) Invite(uses int64, until time.Time, note string) (member.Code, error) {
	if uses < 1 || uses > maxMembers || len(note) > member.MaxName {
		return member.Code{}, fmt.Errorf("an invitation is for 1 to %d agents, and its note has at most %d bytes", maxMembers, member.MaxName)
	}
	code := member.NewCode()
	hash := sha256.Sum256(code[:])
	return code, k.do("invitation", func(c *change) error {
		b := c.tx.Bucket(codesBucket)
		if b.Stats().KeyN >= maxCodes {
			return fmt.Errorf("there are %d invitations already", maxCodes)
		}
		if err := boltfile.Put(b, hash[:], &codeRow{Uses: uses, Until: until.Unix(), Note: note}); err != nil {
			return err
		}
		return c.log("invite", "%d uses until %s, note %q", uses, until.UTC().Format(time.RFC3339), note)
	})
}

// Revoke ends a membership. From now on, the agent's masks are in no sum, not even in that of a
// repeated release.
func (k *Keeper) Revoke(agent string) error {
	return k.changeMember("revoke", agent, func(m *memberRow) { m.Revoked = true })
}

// Reset removes the key of a member, so that the member can enrol again, with an invitation if
// the keeper requires one. Its age is then counted from the new enrolment.
func (k *Keeper) Reset(agent string) error {
	return k.changeMember("reset", agent, func(m *memberRow) { *m = memberRow{Cell: m.Cell} })
}

func (k *Keeper) changeMember(kind, agent string, do func(m *memberRow)) error {
	return k.do(kind, func(c *change) error {
		old := k.members[agent]
		if old == nil {
			return fmt.Errorf("%.128q is not a member", agent)
		}
		m := *old
		do(&m)
		c.members[agent] = &m
		return c.log(kind, "%s", agent)
	})
}

// Approve allows a plan. plan is the SHA-256 of the settled plan, which tasks also contain.
func (k *Keeper) Approve(plan, note string) error {
	if plan == "" || len(plan) > member.MaxName || len(note) > member.MaxName {
		return errors.New("want the SHA-256 of a plan")
	}
	return k.do("approval", func(c *change) error {
		if err := boltfile.Put(c.tx.Bucket(plansBucket), []byte(plan), note); err != nil {
			return err
		}
		return c.log("approve", "plan %s %s", plan, note)
	})
}

func (s *store) approved(plan string) error {
	if !s.options.Approved {
		return nil
	}
	return s.db.View(func(tx *bolt.Tx) error {
		var note string
		found, err := boltfile.Get(tx.Bucket(plansBucket), []byte(plan), &note)
		if err == nil && !found {
			err = refuse(rulePlan, "plan %s is not approved", plan)
		}
		return err
	})
}

func (k *Keeper) do(step string, change func(c *change) error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.fresh(); err != nil {
		return err
	}
	return k.update(step, change)
}

// Members returns all members, sorted by name.
func (k *Keeper) Members() []*v1.KeeperMember {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.membership.list()
}

// Log returns the last n entries of the log, oldest first.
func (k *Keeper) Log(n int) (all []Entry, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.db.View(func(tx *bolt.Tx) error {
		return k.state.readLog(tx, func(e *Entry) {
			if all = append(all, *e); len(all) > n {
				all = all[1:]
			}
		})
	})
	return all, err
}

// Statement returns the current statement, without its signature.
func (k *Keeper) Statement() *v1.KeeperStatement {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}
