//go:build unix

package readings

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"loadstar/internal/testkit"
	"loadstar/series/store"
)

const (
	childEnv = "LOADSTAR_READINGS_CHILD" // folder
	nextEnv  = "LOADSTAR_READINGS_NEXT"  // the next sample, request and file, and the clock
	limitEnv = "LOADSTAR_READINGS_LIMIT" // maximum bytes of a file
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := child(dir); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(3)
		}
		os.Exit(4)
	}
	os.Exit(m.Run())
}

// early is the first step of requests and files.
var early = start.Add(-20 * 24 * time.Hour)

const maxRows = 1900

// stepPower is the power of a client in a step of samples, requests or files.
func stepPower(n int) float64 { return float64(1 + n%7) }

// meter returns the value of a counter after n minutes.
func meter(n int) float64 {
	kwh := 0.0
	for step := range n / 15 {
		kwh += stepPower(step) / 4
	}
	return kwh + stepPower(n/15)*float64(n%15)/60
}

// child ingests samples, requests and files, starting with the first ones that were not
// acknowledged. It prints every acknowledgement.
func child(dir string) error {
	var next [4]int
	if _, err := fmt.Sscan(os.Getenv(nextEnv), &next[0], &next[1], &next[2], &next[3]); err != nil {
		return err
	}
	if limit, err := strconv.ParseUint(os.Getenv(limitEnv), 10, 64); err == nil {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return err
		}
	}
	s, err := store.Open(filepath.Join(dir, "readings.db"), store.Config{Interval: 15 * time.Minute})
	if err != nil {
		return err
	}
	var minute atomic.Int64
	// A clock does not go back when a process restarts, so begin after samples that were stored
	// but not acknowledged.
	minute.Store(int64(max(next[0], next[3])))
	i, err := NewIntake(Config{
		Store: s, Interval: 15 * time.Minute, Clients: map[string]Client{"a": {}, "b": {}, "roof": {}}, Flush: 20 * time.Millisecond,
		Now: func() time.Time { return start.Add(time.Duration(minute.Load()) * time.Minute) },
	})
	if err != nil {
		return err
	}
	failed := make(chan error, 4)
	ctx := context.Background()
	b, err := OpenInbox(filepath.Join(dir, "inbox"), i)
	if err != nil {
		return err
	}
	b.settled = 5 * time.Millisecond
	go func() { failed <- i.Run(ctx) }()
	go func() { failed <- b.Run(ctx) }()
	go func() { failed <- sendRequests(i, next[1]) }()
	go func() { failed <- sendFiles(dir, next[2]) }()
	go func() {
		for n := next[0]; ; n++ {
			if i.Err() != nil {
				failed <- i.Err()
				return
			}
			if int64(n) > minute.Load() {
				fmt.Println("clock", n)
				minute.Store(int64(n))
			}
			i.Add([]Sample{{"a", start.Add(time.Duration(n) * time.Minute), meter(n), Counter}}, func(err error) {
				if err == nil {
					fmt.Println("sample", n)
				}
			})
			time.Sleep(400 * time.Microsecond)
		}
	}()
	return <-failed
}

func sendRequests(i *Intake, next int) error {
	server := httptest.NewServer(i.Handler())
	for n := next; n < maxRows; n++ {
		at := early.Add(time.Duration(n) * 15 * time.Minute)
		body := fmt.Sprintf(`{"unique_id":"b","ds":%q,"y":%g}`, at.Format(time.RFC3339), stepPower(n))
		r, err := http.Post(server.URL+"/v1/readings", "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || r.StatusCode != http.StatusOK {
			return fmt.Errorf("%d %s: %w", r.StatusCode, text, err)
		}
		fmt.Println("request", n)
		time.Sleep(5 * time.Millisecond)
	}
	select {}
}

func sendFiles(dir string, next int) error {
	for n := next; n < maxRows; n++ {
		at := early.Add(time.Duration(n) * 15 * time.Minute)
		name := fmt.Sprintf("%d.csv", n)
		tmp := filepath.Join(dir, "inbox", "."+name)
		text := fmt.Sprintf("unique_id,ds,y\nroof,%s,%g\n", at.Format(time.RFC3339), stepPower(n))
		if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
			return err
		}
		if err := os.Rename(tmp, filepath.Join(dir, "inbox", name)); err != nil {
			return err
		}
		for !exists(dir, "inbox", "done", name) {
			if exists(dir, "inbox", "refused", name) {
				return fmt.Errorf("%s was refused", name)
			}
			time.Sleep(time.Millisecond)
		}
		fmt.Println("file", n)
	}
	select {}
}

// run starts a child, kills it after the given time, and advances next beyond what was
// acknowledged.
func run(t *testing.T, dir string, next *[4]int, after time.Duration, env ...string) int {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+dir, nextEnv+"="+fmt.Sprint(next[0], next[1], next[2], next[3])), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() }) // fails if the process has exited
	defer timer.Stop()
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if err == io.EOF {
			break
		}
		var what string
		var n int
		if _, err := fmt.Sscan(line, &what, &n); err != nil {
			t.Fatal(line, err)
		}
		for k, name := range []string{"sample", "request", "file", "clock"} {
			if what == name {
				next[k] = n + 1
			}
		}
	}
	cmd.Wait() // returns an error because the process was killed
	return cmd.ProcessState.ExitCode()
}

// check checks that everything acknowledged is stored exactly once.
func check(t *testing.T, dir string, next [4]int) {
	t.Helper()
	s := openStore(t, filepath.Join(dir, "readings.db"))
	defer s.Close()
	if s.Lost() != nil {
		t.Fatalf("lost %v", s.Lost())
	}
	for _, c := range []struct {
		client string
		from   time.Time
		n      int
	}{{"a", start, max(0, next[0]-1) / 15}, {"b", early, next[1]}, {"roof", early, next[2]}} {
		values, qualities, err := s.Values(c.client, c.from.Unix(), c.from.Unix()+int64(c.n)*900)
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range values {
			if math.Abs(float64(v)-stepPower(k)) > 1e-3 || qualities[k] != store.OK {
				t.Fatalf("client %s, step %d of %d: %g kW, quality %d; want %g", c.client, k, c.n, v, qualities[k], stepPower(k))
			}
		}
	}
}

// TestKill kills a process that ingests samples, requests and files. Nothing that it
// acknowledged may be lost, and no energy may be counted twice, although everything that was
// not acknowledged is sent again.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 3))
	dir := t.TempDir()
	var next [4]int
	for range testkit.Pick(20, 200) {
		if code := run(t, dir, &next, time.Duration(30+rng.IntN(250))*time.Millisecond); code != -1 {
			t.Fatalf("the child ended by itself with %d", code)
		}
		check(t, dir, next)
	}
	t.Logf("%d samples, %d requests, %d files", next[0], next[1], next[2])
	if next[0] < 30 || next[1] == 0 || next[2] == 0 {
		t.Error("too little was acknowledged to show anything")
	}
}

// TestFullDisk checks that the intake acknowledges nothing that a full disk could not store.
func TestFullDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts processes")
	}
	dir := t.TempDir()
	var next [4]int
	if code := run(t, dir, &next, time.Minute, limitEnv+"=57344"); code != 3 {
		t.Fatalf("ended with %d after %v, want an error", code, next)
	}
	check(t, dir, next)
	before := next
	if code := run(t, dir, &next, 2*time.Second); code != -1 {
		t.Fatalf("ended with %d", code)
	}
	check(t, dir, next)
	if next[0] <= before[0] || next[1] <= before[1] {
		t.Errorf("it did not go on: %v, before %v", next, before)
	}
}
