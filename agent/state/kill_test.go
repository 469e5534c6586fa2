package state

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"
)

const childEnv = "LOADSTAR_KEEP_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
	}
	os.Exit(m.Run())
}

// The child process stores results of two clients, round after round. Every third round
// is dropped. It prints each step that it has completed.
const (
	childFloats = 20000
	childRun    = "run"
)

func childCounted(round int64) bool { return round%3 != 2 }

func child(dir string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	s, err := Open(dir)
	fail(err)
	_, err = s.Begin(childRun)
	fail(err)
	round := int64(0)
	if all, err := s.Results(); err != nil || len(all) > 1 {
		fail(fmt.Errorf("%d results: %w", len(all), err))
	} else if len(all) == 1 {
		round = all[0].Round
		fail(finish(s, all[0]))
		fmt.Println("decided", round)
		round++
	} else {
		k, err := s.Load(childRun, "a", make([]float32, childFloats))
		fail(err)
		if !k.First {
			round = k.Round + 1 // if the next round was dropped, it is dropped again
		}
	}
	for ; ; round++ {
		var staged []Staged
		for i, c := range []string{"a", "b"} {
			g, err := s.Stage(childRun, c, numbers(uint64(10*round)+uint64(i)+1, childFloats), []byte(fmt.Sprint(c, round)))
			fail(err)
			staged = append(staged, g)
		}
		r, err := s.Put(childRun, round, staged, []byte("head"), raw(numbers(uint64(10*round)+5, 1000)), nil)
		fail(err)
		fmt.Println("put", round)
		fail(finish(s, r))
		fmt.Println("decided", round)
	}
}

func finish(s *Store, r Result) error {
	if childCounted(r.Round) {
		return s.Decide([]uint64{r.ID}, nil)
	}
	return s.Decide(nil, []uint64{r.ID})
}

// TestKill checks that a store survives when its process is killed during a write. Every step
// that the process printed must be on disk, and both clients must be in the same round.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	dir := t.TempDir()
	for i := range 25 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rng.ExpFloat64() * float64(60*time.Millisecond))
		kill := func() {
			time.Sleep(after)
			cmd.Process.Kill() // fails if the process has exited, which is checked below
		}
		// Half of the kills may hit a process that is still starting and opening the store.
		// The other kills wait until the process has written something, so that the test
		// makes progress even on a slow machine.
		killing := i%2 == 0
		if killing {
			go kill()
		}
		put, decided := int64(-1), int64(-1)
		in := bufio.NewReader(out)
		for {
			line, err := in.ReadString('\n')
			if err == io.EOF {
				break
			}
			var what string
			var round int64
			if _, err := fmt.Sscan(line, &what, &round); err != nil {
				t.Fatal(line, err)
			}
			if what == "put" {
				put = round
				continue
			}
			decided = round
			if !killing && put == decided && childCounted(decided) {
				killing = true
				go kill()
			}
		}
		cmd.Wait() // returns an error because the process was killed
		if code := cmd.ProcessState.ExitCode(); code != -1 {
			t.Fatalf("it ended by itself with %d", code)
		}
		s := open(t, dir)
		all, err := s.Results()
		if err != nil || len(all) > 1 {
			t.Fatalf("%d results: %v", len(all), err)
		}
		at := make([]float32, childFloats)
		k, err := s.Load(childRun, "a", at)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []string{"a", "b"} {
			seed := uint64(0)
			if !k.First {
				seed = uint64(10*k.Round) + uint64(i) + 1
			}
			keeps(t, s, childRun, c, k.Round, seed, childFloats)
			// The scaling is that of the first counted round.
			if scaling, err := s.Scaling(childRun, c); err != nil || !k.First && string(scaling) != c+"0" {
				t.Errorf("%s: scaling %q, %v", c, scaling, err)
			}
		}
		last := int64(-1)
		if !k.First {
			last = k.Round
		}
		if childCounted(decided) && decided >= 0 && last < decided {
			t.Errorf("round %d was decided on, and clients are in round %d", decided, last)
		}
		if put > decided && last < put && (len(all) == 0 || all[0].Round != put) && childCounted(put) {
			t.Errorf("the result of round %d is lost", put)
		}
		if n, want := values(t, s), 4*min(int(last)+1, 1)+5*len(all); n != want {
			t.Errorf("%d values, want %d", n, want)
		}
		s.Close()
	}
	s := open(t, dir)
	k, err := s.Load(childRun, "a", make([]float32, childFloats))
	t.Logf("round %d", k.Round)
	if err != nil || k.Round < 5 {
		t.Errorf("only %d rounds: %v", k.Round, err)
	}
}
