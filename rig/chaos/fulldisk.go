package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"loadstar/rig/faultfs"
)

// fullDisks is the fault of disks that are full, or that the system has made read-only because
// of errors. After a while, the disks work again. A supervisor restarts processes that ended in
// the meantime.
type fullDisks struct{}

const (
	howFull, howNearly, howReadOnly = "full", "nearly full", "read-only"
	fullLongest                     = 4 * time.Second
)

// storeShare is the share of each kind of part; most faults hit the disks of stores.
var storeShare = map[string]int{
	kindServer: 30, kindGateway: 5, kindCoordinator: 5, kindPostgres: 35, kindAgent: 25,
	kindShared: 8, kindSite: 8,
}

func (fullDisks) hows() []string              { return []string{howFull, howNearly, howReadOnly} }
func (fullDisks) targets(s *system) []*target { return cuts{}.targets(s) }
func (fullDisks) longest() time.Duration      { return fullLongest }

func (fullDisks) begin(t *target, seed uint64) (how, detail string, err error) {
	rng := rand.New(rand.NewPCG(seed, 2))
	f := faultfs.Fault{}
	switch how = (fullDisks{}).hows()[seed%3]; how {
	case howFull:
		f.Full = true
	case howNearly:
		f.Full, f.Room = true, rng.Int64N(1<<20)
		detail = fmt.Sprintf(" (%d bytes left)", f.Room)
	case howReadOnly:
		f.ReadOnly = true
	}
	return how, detail, t.set(f)
}

func (fullDisks) end(t *target) error {
	if err := t.set(faultfs.Fault{}); err != nil {
		return err
	}
	for _, p := range t.parts {
		if p.Kind() == kindPostgres {
			if err := t.system.revive(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *target) set(f faultfs.Fault) error {
	for _, at := range t.disks() {
		if err := t.system.disks.Set(at, f); err != nil {
			return err
		}
	}
	return nil
}

// revive restarts PostgreSQL if it has ended, as a supervisor does with other processes.
func (s *system) revive(p part) error {
	for range 3 {
		if _, err := s.ledger.number(context.Background(), "SELECT 1"); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return errors.Join(p.Kill(), p.Start())
}

// saysFull reports whether a process that ended by itself reported that it could not write.
func saysFull(exit string) bool {
	lower := strings.ToLower(exit)
	return strings.Contains(lower, "no space left on device") ||
		strings.Contains(lower, "read-only file system") || strings.Contains(lower, "disk is full")
}
