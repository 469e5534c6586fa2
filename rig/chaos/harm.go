package main

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// harm is the action of a killer on parts of a system.
type harm interface {
	// hows lists the possible results of begin, which are the columns of the table of results.
	hows() []string
	// targets returns the targets that can be hit.
	targets(s *system) []*target
	// begin starts the harm to a target, and end stops it.
	begin(t *target, seed uint64) (how, detail string, err error)
	end(t *target) error
	// longest is the maximum time between begin and end.
	longest() time.Duration
}

// target is what one fault hits: usually one part, and sometimes several parts at the same
// time.
type target struct {
	system *system
	kind   string
	parts  []part
}

func (t *target) name() string {
	if len(t.parts) == 1 {
		return t.parts[0].Name()
	}
	return t.kind
}

// each calls do for all parts concurrently.
func (t *target) each(do func(part) error) error {
	var wg sync.WaitGroup
	all := make([]error, len(t.parts))
	for i, p := range t.parts {
		wg.Go(func() { all[i] = do(p) })
	}
	wg.Wait()
	return errors.Join(all...)
}

// start restarts all parts, stores before the servers that use them.
func (t *target) start() error {
	for _, p := range t.parts {
		if err := p.Start(); err != nil {
			return err
		}
	}
	return nil
}

// singles returns a target for each part that is running.
func singles(s *system) (all []*target) {
	for _, p := range s.parts() {
		if x, ok := p.(*process); ok && x.kind == kindAgent && !x.Started() {
			continue // the agent has not joined yet
		}
		all = append(all, &target{s, p.Kind(), []part{p}})
	}
	return all
}

// kills is the fault of a process that is killed or asked to end.
type kills struct{}

// toldShare determines the share of SIGTERM: one in toldShare kills uses SIGTERM instead of
// SIGKILL.
const toldShare = 5

func (kills) hows() []string              { return []string{"SIGKILL", "SIGTERM"} }
func (kills) targets(s *system) []*target { return singles(s) }
func (kills) longest() time.Duration      { return downMost }
func (kills) end(t *target) error         { return t.start() }

func (kills) begin(t *target, seed uint64) (how, detail string, err error) {
	if seed%toldShare == 0 {
		return "SIGTERM", "", t.each(part.Stop)
	}
	return "SIGKILL", "", t.each(part.Kill)
}

// cuts is the fault of machines that lose power. Their processes are killed, and their disks
// lose all data that was not synced.
type cuts struct{}

func (cuts) hows() []string         { return []string{"cut"} }
func (cuts) longest() time.Duration { return downMost }
func (cuts) end(t *target) error    { return t.start() }

// targets returns single machines, and machines that share a power supply.
func (cuts) targets(s *system) []*target {
	all := singles(s)
	site, shared := &target{system: s, kind: kindSite}, &target{system: s, kind: kindShared}
	for _, t := range all {
		p := t.parts[0]
		if t.kind != kindAgent || !s.cluster {
			site.parts = append(site.parts, p)
		}
		switch t.kind {
		case kindGateway, kindCoordinator:
			shared.parts = append(shared.parts, p)
		}
	}
	if s.cluster {
		all = append(all, shared)
	}
	return append(all, site)
}

func (cuts) begin(t *target, seed uint64) (how, detail string, err error) {
	if err := t.each(part.Kill); err != nil {
		return "cut", "", err
	}
	l := t.system.ledger
	l.away.Lock()
	defer l.away.Unlock()
	for i, at := range t.disks() {
		loss, err := t.system.disks.Cut(at, seed+uint64(i))
		if err != nil {
			return "cut", detail, err
		}
		detail += fmt.Sprintf(" (%s)", loss)
	}
	return "cut", detail, nil
}

func (t *target) disks() (all []string) {
	s := t.system
	for _, p := range t.parts {
		all = append(all, s.diskOf(p))
	}
	if s.cluster && (t.kind == kindShared || t.kind == kindSite) {
		all = append(all, s.blobs())
	}
	return all
}

func (s *system) diskOf(p part) string {
	if p.Kind() == kindPostgres {
		return s.database()
	}
	for i, h := range s.hosts {
		if h == p {
			return s.agentDir(i)
		}
	}
	return s.serverDir(p.Name())
}
