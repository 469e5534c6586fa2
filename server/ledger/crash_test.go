package ledger

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/internal/testkit/pgtest"
	"loadstar/server/sqlstore"
)

// child is the main function of a second process. Depending on args, it either only opens the
// ledger or counts all turns of a round in random order and prints those that it counted.
func child(at string, args []string) error {
	ctx := context.Background()
	l, err := Open(ctx, at)
	for tries := 0; sqlstore.Unreachable(err) && tries < 1000; tries++ {
		time.Sleep(10 * time.Millisecond)
		l, err = Open(ctx, at)
	}
	if err != nil {
		return err
	}
	defer l.Close()
	if args[0] == "open" {
		return nil
	}
	turns, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	seed, err := strconv.ParseUint(args[2], 10, 64)
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 0))
	names := named("c", turns)
	rng.Shuffle(turns, func(i, k int) { names[i], names[k] = names[k], names[i] })
	for deadline := time.Now().Add(time.Minute); len(names) > 0; {
		var batch []Arrival
		rest := names
		for len(rest) > 0 && len(batch) < 2 {
			n := min(1+rng.IntN(3), len(rest))
			batch = append(batch, one("agent", 0, 0, rest[:n]...))
			rest = rest[n:]
		}
		counted, err := l.Counter.Count(ctx, "run", batch, sums(batch))
		if err != nil {
			if !sqlstore.Unreachable(err) || time.Now().After(deadline) {
				return fmt.Errorf("not away: %w", err)
			}
			time.Sleep(10 * time.Millisecond)
			continue // it is unknown whether the call counted anything, so try again
		}
		var said bytes.Buffer
		for _, i := range counted {
			for _, s := range batch[i].Shares {
				fmt.Fprintln(&said, s.Client)
			}
		}
		if _, err := os.Stdout.Write(said.Bytes()); err != nil {
			return err
		}
		names = rest
	}
	// A sum does not count if one of its clients was counted before, so the update of each
	// client is also counted separately.
	for part := range slices.Chunk(named("c", turns), 100) {
		var batch []Arrival
		for _, c := range part {
			batch = append(batch, one("agent", 0, 0, c))
		}
		if _, err := l.Counter.Count(ctx, "run", batch, sums(batch)); err != nil {
			return err
		}
	}
	return nil
}

// counter is a child process that counts turns.
type counter struct {
	cmd  *exec.Cmd
	said []string // output of the process, once it has ended
	done chan error
	some chan struct{} // closed when the process has counted its first turn
}

func count(t *testing.T, at string, turns int, seed uint64) *counter {
	t.Helper()
	c := &counter{cmd: exec.Command(os.Args[0], "count", strconv.Itoa(turns), strconv.FormatUint(seed, 10)), done: make(chan error, 1), some: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), "LEDGER_CHILD="+at)
	var trouble bytes.Buffer
	c.cmd.Stderr = &trouble
	out, err := c.cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, c.cmd.Start())
	t.Cleanup(func() { c.cmd.Process.Kill() }) // it has already ended unless the test failed
	go func() {
		first := sync.OnceFunc(func() { close(c.some) })
		for lines := bufio.NewScanner(out); lines.Scan(); first() {
			c.said = append(c.said, lines.Text())
		}
		first()
		err := c.cmd.Wait()
		if trouble.Len() > 0 {
			err = errors.Join(err, errors.New(trouble.String()))
		}
		c.done <- err
	}()
	return c
}

// kept checks that all turns that a child reported as counted have a receipt.
func (s *site) kept(said []string) {
	s.t.Helper()
	for part := range slices.Chunk(said, 500) {
		where, err := s.Counter.Standings(context.Background(), "agent", "run", 0, part)
		testkit.Must(s.t, err)
		for _, c := range part {
			if where[c].State != Counted {
				s.t.Errorf("%s was counted, but is %v", c, where[c])
				return
			}
		}
	}
}

// TestKill checks that no turn is lost or added to the sums twice if processes are killed while
// they count and other processes continue.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	pgtest.OnBoth(t, &cluster, func(t *testing.T, at string) {
		const turns, kills = 1500, 4
		s := plant(t, at, turns)
		s.ask(0, 0, upTo(turns)...)
		testkit.Must(t, s.Close()) // so that the next reader must recover from the killed process
		rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
		receipts := 0
		for k := range uint64(kills) {
			both := []*counter{count(t, at, turns, 2*k), count(t, at, turns, 2*k+1)}
			<-both[0].some
			for _, c := range both {
				time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
				if err := c.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
					testkit.Must(t, err)
				}
			}
			for _, c := range both {
				<-c.done
			}
			l, err := Open(t.Context(), at)
			testkit.Must(t, err)
			now := &site{l, t, s.lead, s.run, 0}
			leases, n := now.balance()
			now.kept(slices.Concat(both[0].said, both[1].said))
			if leases+n != turns || n < receipts {
				t.Errorf("%d leases, %d receipts, and %d before", leases, n, receipts)
			}
			receipts = n
			testkit.Must(t, l.Close())
		}
		if receipts == 0 || receipts == turns {
			t.Logf("the kills tested little: %d of %d turns were already counted", receipts, turns)
		}
		last := count(t, at, turns, 99)
		if err := <-last.done; err != nil {
			t.Error(err)
		}
		now := &site{open(t, at), t, s.lead, s.run, 0}
		if leases, n := now.balance(); leases != 0 || n != turns {
			t.Errorf("%d leases, %d receipts in the end", leases, n)
		}
	})
}

// TestPostgresCrashes checks that two counting processes continue after the database server
// is killed and restarted.
func TestPostgresCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	t.Parallel()
	server := pgtest.Single(t)
	testkit.Must(t, server.Create("ledger"))
	at := server.URL("ledger")
	const turns = 1500
	s := plant(t, at, turns)
	s.ask(0, 0, upTo(turns)...)
	testkit.Must(t, s.Close())
	both := []*counter{count(t, at, turns, 1), count(t, at, turns, 2)}
	<-both[0].some
	for range 2 {
		time.Sleep(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		testkit.Must(t, server.Crash())
		testkit.Must(t, server.Start())
		pgtest.Equal(t, "where the server is", server.URL("ledger"), at)
		l, err := Open(t.Context(), at)
		testkit.Must(t, err)
		(&site{l, t, s.lead, s.run, 0}).balance()
		testkit.Must(t, l.Close())
	}
	for _, c := range both {
		if err := <-c.done; err != nil {
			t.Error(err)
		}
	}
	now := &site{open(t, at), t, s.lead, s.run, 0}
	leases, n := now.balance()
	if leases != 0 || n != turns {
		t.Errorf("%d leases, %d receipts in the end", leases, n)
	}
	now.kept(slices.Concat(both[0].said, both[1].said))
}
