package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/testkit/pgtest"
	v1 "loadstar/proto/loadstar/v1"
)

// flood is a way to exhaust the server's time, memory or connections.
type flood struct {
	id, name string
	// begin starts the flood and returns when it is at full strength. It ends with the
	// context. who lists the agents or the addresses that the server should name, and done
	// describes what the flood did.
	begin func(ctx context.Context, s *Server) (who []string, done func() string, err error)
	// joins and writes mean that honest joins or writes must be served as well.
	joins, writes bool
}

// allFloods lists the floods of the review, and floods that the fixes might not withstand.
func allFloods() []flood {
	return []flood{
		{id: "H2", name: "one agent announces 10,000 clients in a loop", begin: announcing, writes: true},
		{id: "H3", name: "32 large messages that trickle, of 16 agents", begin: trickling, joins: true},
		{id: "H4", name: "256 slow joins", begin: slowJoins, joins: true},
		{id: "H5", name: "17,000 anonymous connections that ask now and then", begin: anonymousCalls},
		{id: "H5b", name: "17,000 bare TCP connections", begin: bareConnections},
		{id: "L1", name: "16 agents that check in with 80,000 turns in a loop", begin: checkingIn},
		{id: "L2", name: "joins with wrong tokens in a loop", begin: wrongTokens, joins: true},
	}
}

// Durations of a flood in make attacks, whose attacks together must be fast, and of the
// measurement before the flood.
const (
	floodFor   = 8 * time.Second
	controlFor = 2 * time.Second
)

// floods lists the attacks that exhaust the server's time or its connections. Such an attack
// is repelled if honest callers are served (see service) and the server names the attacker.
func floods() (all []Attack) {
	for _, f := range allFloods() {
		all = append(all, Attack{ID: f.id, Name: f.name, Alone: true, Run: func(ctx context.Context, fleet *Fleet) (Result, error) {
			m := must(f.measure(ctx, fleet, floodFor))
			if m.repelled() {
				return repelled("%s", m), nil
			}
			r := succeeded("%s", m)
			r.Slow = m.slow()
			return r, nil
		}})
	}
	return all
}

// measured describes the service for honest callers during a flood.
type measured struct {
	flood
	*honest
	before service // check-ins before the flood
	wrote  service
	did    string
	named  bool
}

func (m *measured) repelled() bool {
	return m.checkIns.served(&m.before) && m.operators.served(&m.before) && (!m.flood.joins || m.honest.joins.served(&m.before)) && (!m.writes || m.wrote.served(&m.before)) && m.named
}

// slow reports whether all callers were answered and the attacker is named, although the
// answers took a long time.
func (m *measured) slow() bool {
	return m.named && m.checkIns.answered() >= 0.99 && m.operators.answered() >= 0.99 &&
		(!m.flood.joins || m.honest.joins.answered() >= 0.99) && (!m.writes || m.wrote.answered() >= 0.99)
}

func (m *measured) String() string {
	text := fmt.Sprintf("check-ins %s, %d ms before", m.checkIns.String(), m.before.quantile(0.99).Milliseconds())
	if m.flood.joins {
		text += ", joins " + m.honest.joins.String()
	}
	if m.writes {
		text += ", writes " + m.wrote.String()
	}
	if !m.operators.served(&m.before) {
		text += ", operators " + m.operators.String()
	}
	if !m.named {
		text += ", the attacker is not named"
	}
	return text + "; " + m.did
}

// measure starts a server, floods it, and measures the service for honest callers.
func (f flood) measure(ctx context.Context, fleet *Fleet, d time.Duration) (*measured, error) {
	var flags []string
	if fleet.postgres {
		if err := os.Mkdir(fleet.path("postgres"), 0o755); err != nil {
			return nil, err
		}
		database, err := pgtest.Start(fleet.path("postgres"), 0)
		if err != nil {
			return nil, err
		}
		fleet.later(database.Stop)
		if err := database.Create("floods"); err != nil {
			return nil, err
		}
		flags = []string{"--database", database.URL("floods")}
	}
	s, err := fleet.Serve(ctx, flags...)
	if err != nil {
		return nil, err
	}
	h, err := newHonest(ctx, s)
	if err != nil {
		return nil, err
	}
	// All agents call once, so that agents that keep a connection open have one.
	for _, call := range h.agents {
		if err := call(ctx); err != nil {
			return nil, err
		}
	}
	m := &measured{flood: f, honest: h}
	if err := h.measure(ctx, controlFor); err != nil {
		return nil, err
	}
	m.before.times, m.before.failed = h.checkIns.times, h.checkIns.failed
	h.checkIns, h.joins, h.operators = service{}, service{}, service{}
	writers, err := newWriters(ctx, s)
	if err != nil {
		return nil, err
	}
	flooding, stop := context.WithCancel(ctx)
	defer stop()
	who, did, err := f.begin(flooding, s)
	if err != nil {
		return nil, err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		if f.writes {
			writers.write(ctx, d, &m.wrote)
		}
	}()
	err = h.measure(ctx, d)
	<-written
	if err != nil {
		return nil, err
	}
	m.did = did()
	m.named = naming(s, who)
	return m, nil
}

// writers are honest agents that announce a client for the first time, which the ledger must
// store.
type writers struct{ agents []*Agent }

func newWriters(ctx context.Context, s *Server) (*writers, error) {
	t, err := s.Token(ctx, 40)
	if err != nil {
		return nil, err
	}
	w := &writers{}
	for i := range 40 {
		a, err := s.Join(ctx, t, fmt.Sprint("writer-", i))
		if err != nil {
			return nil, err
		}
		w.agents = append(w.agents, a)
	}
	return w, nil
}

func (w *writers) write(ctx context.Context, d time.Duration, into *service) {
	for i, a := range w.agents {
		start := time.Now()
		_, err := a.Host(ctx, nil, fmt.Sprint("written-", i))
		into.add(time.Since(start), err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(d/time.Duration(len(w.agents)) - time.Since(start)):
		}
	}
}

// naming reports whether the operators' page, or a log line about limits, names one of the
// callers.
func naming(s *Server, who []string) bool {
	var text strings.Builder
	for line := range strings.Lines(s.Log()) {
		if strings.Contains(line, "a limit was applied") {
			text.WriteString(line)
		}
	}
	if r, err := http.Get("http://" + s.Watch + "/limited"); err == nil {
		page, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // the part that was read counts
		r.Body.Close()
		text.Write(page)
	}
	return slices.ContainsFunc(who, func(name string) bool { return strings.Contains(text.String(), name) })
}

// hosts joins agents that may have many clients.
func hosts(ctx context.Context, s *Server, n int) (all []*Agent, who []string, err error) {
	o, err := s.Operators()
	if err != nil {
		return nil, nil, err
	}
	r, err := o.CreateToken(ctx, &v1.CreateTokenRequest{Uses: int64(n), TtlSeconds: 3600, Note: "flood", Clients: 10_000})
	if err != nil {
		return nil, nil, err
	}
	t, err := mtls.ParseJoinToken(r.Token)
	if err != nil {
		return nil, nil, err
	}
	for i := range n {
		a, err := s.Join(ctx, t, fmt.Sprint("flood-", i))
		if err != nil {
			return nil, nil, err
		}
		all, who = append(all, a), append(who, a.ID)
	}
	return all, who, nil
}
