package bus

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childJob is an environment variable that turns this test binary into a child process to
// be killed.
const childJob = "LOADSTAR_TEST_BUS_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childJob) {
	case "":
		goleak.VerifyTestMain(m)
	case "publish":
		publishForever(os.Getenv("DIR"), os.Getenv("PREFIX"))
	case "node":
		var c NodeConfig
		if err := json.Unmarshal([]byte(os.Getenv("NODE")), &c); err != nil {
			panic(err)
		}
		c.Ready = func() { fmt.Println("ready") }
		if err := RunNode(context.Background(), c, slog.New(slog.DiscardHandler)); err != nil {
			panic(err)
		}
	}
}

// publishForever publishes results until the process is killed. It prints the id of each
// accepted result.
func publishForever(dir, prefix string) {
	ctx := context.Background()
	b, err := Open(ctx, Config{Dir: dir}, slog.New(slog.DiscardHandler))
	if err != nil {
		panic(err)
	}
	var out sync.Mutex
	for w := range 24 { // enough goroutines that some results share a message
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s/%d/%d", prefix, w, i)
				if err := b.Publish(ctx, id, payload(id, 4<<10)); err != nil {
					panic(err)
				}
				out.Lock()
				fmt.Println(id)
				out.Unlock()
			}
		}()
	}
	select {}
}

// child is a second process that runs this test binary.
type child struct {
	cmd   *exec.Cmd
	lines *bufio.Scanner
}

func startChild(t *testing.T, job string, env ...string) *child {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), append(env, childJob+"="+job)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// payload returns the expected data of the result with the given id.
func payload(id string, size int) []byte {
	return []byte(strings.Repeat(id+" ", size/(len(id)+1)+1)[:size])
}

// logOf returns a logger that shows warnings and errors in the test's log.
func logOf(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

func open(t *testing.T, c Config) *Bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	b, err := Open(ctx, c, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, b) })
	return b
}

func shut(t *testing.T, b *Bus) {
	t.Helper()
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func publish(t *testing.T, b *Bus, id string, data []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if err := b.Publish(ctx, id, data); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
}

func take(t *testing.T, b *Bus, max int, wait time.Duration) []*Delivery {
	t.Helper()
	got, err := b.Take(t.Context(), max, 0, wait)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// patient is how long a test waits for an event that must happen. It is long enough for a
// machine under heavy load.
const patient = 5 * time.Minute

// takeAll takes all results from the bus and returns how often each id was delivered.
func takeAll(t *testing.T, b *Bus, check func(d *Delivery)) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for end := time.Now().Add(patient); ; {
		got := take(t, b, 256, 500*time.Millisecond)
		for _, d := range got {
			check(d)
			seen[d.ID()]++
			if err := d.Done(); err != nil {
				t.Fatal(err)
			}
		}
		if len(got) > 0 {
			continue
		}
		waiting, taken, err := b.Depth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if waiting+taken == 0 {
			return seen
		}
		if time.Now().After(end) {
			t.Fatalf("%d messages wait and %d are taken, but none is delivered", waiting, taken)
		}
	}
}

// eventually waits for a condition that the server meets after a moment.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patient); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patient, what)
		}
	}
}

func depthIs(t *testing.T, b *Bus, waiting, taken int64) {
	t.Helper()
	var w, k int64
	for end := time.Now().Add(patient); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var err error
		if w, k, err = b.Depth(t.Context()); err != nil {
			t.Fatal(err)
		}
		if w == waiting && k == taken {
			return
		}
	}
	t.Fatalf("%d wait and %d are taken, want %d and %d", w, k, waiting, taken)
}

// listening returns the addresses on which this process accepts connections.
func listening(t *testing.T) []string {
	t.Helper()
	mine := map[string]bool{}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil || len(fds) == 0 {
		t.Skip("no /proc")
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil {
			mine[to] = true
		}
	}
	var found []string
	for _, table := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		text, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && mine["socket:["+f[9]+"]"] {
				found = append(found, f[1])
			}
		}
	}
	return found
}
