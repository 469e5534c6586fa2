package server

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/internal/protocol"
	"loadstar/internal/testkit"
	v1 "loadstar/proto/loadstar/v1"
)

// counter forwards TCP connections and counts their bytes.
type counter struct {
	url         string
	up, down    atomic.Int64
	connections atomic.Int64
}

func (st *station) count() *counter {
	st.Helper()
	c := &counter{}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(st, err)
	c.url = "https://" + l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(st.url, "https://"))
			if err != nil {
				in.Close()
				continue
			}
			c.connections.Add(1)
			wg.Go(func() { pass(out, in, &c.up) })
			wg.Go(func() { pass(in, out, &c.down) })
		}
	})
	st.Cleanup(func() { l.Close(); wg.Wait() })
	return c
}

func pass(to, from net.Conn, n *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 64<<10)
	for {
		k, err := from.Read(b)
		n.Add(int64(k))
		if _, failed := to.Write(b[:k]); failed != nil || err != nil {
			return
		}
	}
}

// TestTraffic checks that a client's traffic in a round equals the prediction of
// recipe.TrafficOf: the numbers once in each direction. It allows a few headers for every call.
// The test also counts calls and connections, because a slow machine needs more check-ins, and
// an agent opens a second connection if two calls overlap.
func TestTraffic(t *testing.T) {
	t.Parallel()
	// perCall is the maximum number of bytes of a call without its numbers, in either direction:
	// headers, padding, names of runs and clients, hashes of blobs, heads of versions, and TLS
	// records.
	const rounds, perCall = 15, 1250
	st := newStation(t, func(c *Config) { c.Poll, c.MaxPoll = 250*time.Millisecond, 250*time.Millisecond })
	// Measure the bytes of a new connection with one check-in.
	connection := st.count()
	a := st.join()
	_, err := v1.NewAgentServiceClient(a.http, connection.url, protocol.Client()).Exchange(t.Context(), &v1.ExchangeRequest{})
	testkit.Must(t, err)
	before := st.calls()

	d := homes(t, 2)
	var all []*counter
	var stops []func()
	for i := range d.Len() {
		c := st.count()
		all = append(all, c)
		stops = append(stops, st.host(fmt.Sprint("home-", i), c.url, firstHomes(t, d, i, i+1)))
	}
	plan := fmt.Sprintf("{algorithm: fedavg, partition: head, rounds: %d, model: {name: bose2023}, client: {steps: 1, batch: 8}, evaluate: {every: 0}}", rounds)
	s, err := st.operator.StartRun(t.Context(), &v1.StartRunRequest{Plan: plan, Clients: int64(d.Len())})
	testkit.Must(t, err)
	r := st.finished(s.Run)
	for _, stop := range stops {
		stop()
	}

	p, err := recipe.Read([]byte(plan))
	testkit.Must(t, err)
	problem, err := recipe.Frame(p, d)
	testkit.Must(t, err)
	want := recipe.TrafficOf(problem, fed.Needs{})
	var up, down, connections int64
	for _, c := range all {
		up, down, connections = up+c.up.Load(), down+c.down.Load(), connections+c.connections.Load()
	}
	turns := int64(rounds * d.Len())
	// Plan and weights come with the tasks. Stopping an agent may interrupt a call that the server
	// has not counted.
	calls := st.calls() - before + int64(d.Len())
	for _, way := range []struct {
		name                string
		got, numbers, fixed int64
	}{
		{"up", up, turns * want.Up, connections * connection.up.Load()},
		{"down", down, turns * want.Down, connections*connection.down.Load() + int64(d.Len()*len(r.Plan))},
	} {
		rest := way.got - way.numbers - way.fixed
		t.Logf("%s: %d bytes, of which %d numbers, %d for %d connections and plans, and %d for each of %d calls", way.name, way.got, way.numbers, way.fixed, connections, rest/calls, calls)
		if way.got < way.numbers || rest > calls*perCall {
			t.Errorf("%s: %d bytes for each of %d calls, want at most %d", way.name, rest/calls, calls, perCall)
		}
	}
	// A client needs one call per round.
	if most := want.Up / 15; perCall > most {
		t.Errorf("calls take %d bytes of a round, want at most %d, which is 7 %% of the numbers", perCall, most)
	}
	if connections > calls/10 {
		t.Errorf("%d connections for %d calls: they are not kept open", connections, calls)
	}
}

// calls returns the number of agents' calls that the gateway has answered, not counting fetches
// of blobs.
func (st *station) calls() (n int64) {
	st.Helper()
	families, err := st.registry.Gather()
	testkit.Must(st, err)
	for _, f := range families {
		if f.GetName() != "loadstar_gateway_call_seconds" {
			continue
		}
		for _, m := range f.Metric {
			n += int64(m.GetHistogram().GetSampleCount())
		}
	}
	return n
}
