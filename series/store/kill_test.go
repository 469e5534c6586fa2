//go:build unix

package store

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/testkit"
)

const (
	childEnv = "LOADSTAR_STORE_CHILD"
	limitEnv = "LOADSTAR_STORE_LIMIT"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		child(path)
	}
	os.Exit(m.Run())
}

// child stores readings of two clients, step by step, with a note of its progress. It prints
// each step once the step is on disk.
func child(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", 0)
			os.Exit(3)
		}
	}
	if limit, err := strconv.ParseUint(os.Getenv(limitEnv), 10, 64); err == nil {
		fail(syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}))
	}
	s, err := Open(path, Config{Interval: 15 * time.Minute})
	fail(err)
	if lost := s.Lost(); lost != nil {
		fail(errors.New("lost something"))
	}
	note, err := s.Note("next")
	fail(err)
	next, _ := strconv.ParseInt(string(note), 10, 64) // 0 without a note
	for ; ; next++ {
		at := noon.Unix() + next*quarter
		rows := []Reading{{Client: "a", Time: at, KW: float32(next)}, {Client: "b", Time: at, KW: -float32(next)}}
		_, err := s.Put(time.Unix(at+quarter, 0), rows, map[string][]byte{"next": []byte(strconv.FormatInt(next+1, 10))})
		fail(err)
		fmt.Println("put", next)
	}
}

// run starts a child, kills it after a given time, and returns the last step that the child
// printed.
func run(t *testing.T, path string, after time.Duration, env ...string) (last int64, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+path), env...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() }) // fails if the process has exited
	defer timer.Stop()
	last = -1
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break
		}
		var what string
		var n int64
		if _, err := fmt.Sscan(line, &what, &n); err == nil && what == "put" {
			last = n
		}
	}
	cmd.Wait() // returns an error because the process was killed
	return last, cmd.ProcessState.ExitCode()
}

// check checks that the store contains all steps before the step in its note, and no other
// steps.
func check(t *testing.T, path string, last int64) int64 {
	t.Helper()
	s := open(t, path)
	defer s.Close()
	note, err := s.Note("next")
	if err != nil {
		t.Fatal(err)
	}
	next, _ := strconv.ParseInt(string(note), 10, 64)
	if next <= last || s.Lost() != nil {
		t.Fatalf("step %d was stored, the note says %d; lost %v", last, next, s.Lost())
	}
	a, b := load(t, s, "a", noon.Unix(), noon.Unix()+next*quarter), load(t, s, "b", noon.Unix(), noon.Unix()+next*quarter)
	for i := range a {
		if a[i] != float32(i) || b[i] != -float32(i) {
			t.Fatalf("step %d: %g and %g", i, a[i], b[i])
		}
	}
	if _, end, ok, err := s.Span("a"); err != nil || ok && end != noon.Unix()+next*quarter {
		t.Fatalf("readings up to %d, the note says %d steps: %v", end, next, err)
	}
	return next
}

func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	path := filepath.Join(t.TempDir(), "readings.db")
	var next int64
	for range testkit.Pick(15, 200) {
		last, code := run(t, path, time.Duration(20+rng.IntN(100))*time.Millisecond)
		if code != -1 {
			t.Fatalf("the child ended by itself with %d", code)
		}
		next = check(t, path, last)
	}
	t.Logf("%d steps", next)
	if next == 0 {
		t.Error("no step was stored")
	}
}

// TestFullDisk checks that the store returns an error if its file cannot grow, and that it
// continues when there is space again.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	path := filepath.Join(t.TempDir(), "readings.db")
	last, code := run(t, path, time.Minute, limitEnv+"=65536")
	if code != 3 {
		t.Fatalf("ended with %d after step %d, want an error", code, last)
	}
	before := check(t, path, last)
	last, _ = run(t, path, 2*time.Second)
	if check(t, path, last) <= before {
		t.Error("it did not go on")
	}
}

// TestFailedWrite checks that a store reopens its file after a failed write.
func TestFailedWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "readings.db")
	s := open(t, path)
	put(t, s, noon, Reading{Client: "a", Time: noon.Unix() - quarter, KW: 1})
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []Reading
	for i := range int64(4000) {
		rows = append(rows, Reading{Client: "a", Time: noon.Unix() - (i+2)*quarter, KW: 2})
	}
	small := old
	small.Cur = uint64(info.Size())
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	_, failed := s.Put(noon, rows, nil)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if failed == nil {
		t.Fatal("stored more than the file may hold")
	}
	if got := put(t, s, noon, rows...); got.Accepted != 4000 {
		t.Errorf("after the failed write: %+v", got)
	}
	if got := load(t, s, "a", noon.Unix()-quarter, noon.Unix()); got[0] != 1 {
		t.Errorf("the first reading is %v", got)
	}
}
