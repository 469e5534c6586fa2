package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestResultsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	c := Config{Dir: t.TempDir()}
	b := open(t, c)
	for i := range 5 {
		publish(t, b, fmt.Sprint(i), payload(fmt.Sprint(i), 1000))
	}
	depthIs(t, b, 5, 0)
	for _, d := range take(t, b, 2, patient) {
		if err := d.Done(); err != nil {
			t.Fatal(err)
		}
	}
	shut(t, b) // Close sends buffered answers
	b = open(t, c)
	publish(t, b, "4", payload("4", 1000)) // discarded: it is already in the queue
	depthIs(t, b, 3, 0)
	seen := takeAll(t, b, func(d *Delivery) {
		if !bytes.Equal(d.Data(), payload(d.ID(), 1000)) {
			t.Errorf("%s arrived with other data", d.ID())
		}
	})
	if len(seen) != 3 || seen["2"] != 1 || seen["3"] != 1 || seen["4"] != 1 {
		t.Errorf("got %v", seen)
	}
	depthIs(t, b, 0, 0)
}

func TestRepeatedResultsAreFiltered(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir()})
	for range 3 {
		publish(t, b, "same", []byte("x"))
	}
	publish(t, b, "other", []byte("x"))
	depthIs(t, b, 2, 0)
}

// one takes a single delivery and checks its delivery count.
func one(t *testing.T, b *Bus, deliveries uint64) *Delivery {
	t.Helper()
	got := take(t, b, 10, patient)
	if len(got) != 1 || got[0].Deliveries() != deliveries {
		t.Fatalf("%d results, want 1 with delivery count %d", len(got), deliveries)
	}
	return got[0]
}

// A delivery without an answer is delivered again, but not before AckWait.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	const ackWait = 3 * time.Second
	b := open(t, Config{Dir: t.TempDir(), AckWait: ackWait})
	begin := time.Now()
	publish(t, b, "a", []byte("x"))
	one(t, b, 1)
	one(t, b, 2)
	if took := time.Since(begin); took < ackWait {
		t.Errorf("delivered to two takers within %v", took)
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	// AckWait is so long that only an answer can cause a redelivery.
	b := open(t, Config{Dir: t.TempDir(), AckWait: time.Hour})
	publish(t, b, "a", []byte("x"))
	d := one(t, b, 1)
	depthIs(t, b, 0, 1)
	const later = 300 * time.Millisecond
	begin := time.Now()
	if err := d.Later(later); err != nil {
		t.Fatal(err)
	}
	d = one(t, b, 2)
	if took := time.Since(begin); took < later {
		t.Errorf("delivered again after %v, want %v", took, later)
	}
	if err := d.Drop("no use"); err != nil {
		t.Fatal(err)
	}
	depthIs(t, b, 0, 0) // so it cannot be delivered again
	if d.Done() == nil {
		t.Error("two answers to one delivery")
	}
}

func TestFull(t *testing.T) {
	t.Parallel()
	const size = 10_000
	b := open(t, Config{Dir: t.TempDir(), MaxBytes: 5 * (size + 500), MaxMessage: size})
	var err error
	n := 0
	for ; err == nil && n < 100; n++ {
		err = b.Publish(t.Context(), fmt.Sprint(n), make([]byte, size))
	}
	if !errors.Is(err, ErrFull) || n != 6 {
		t.Fatalf("result %d: %v", n, err)
	}
	for _, d := range take(t, b, 2, patient) {
		if err := d.Done(); err != nil {
			t.Fatal(err)
		}
	}
	depthIs(t, b, 3, 0)
	publish(t, b, "again", make([]byte, size)) // the older results must still be in the queue
	depthIs(t, b, 4, 0)
	if err := b.Healthy(); err != nil {
		t.Errorf("a full bus must be healthy: %v", err)
	}
}

func TestDiskNearlyFull(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), MinFree: 1 << 60})
	if err := b.Publish(t.Context(), "a", []byte("x")); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir(), MaxMessage: 1 << 20})
	if err := b.Publish(t.Context(), "large", make([]byte, 1<<20+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	publish(t, b, strings.Repeat("ä", maxID/2), make([]byte, 1<<20)) // the largest message
	publish(t, b, "empty", nil)
	for _, id := range []string{"", "a\r\nNats-Rollup: all", strings.Repeat("x", maxID+1)} {
		if b.Publish(t.Context(), id, nil) == nil {
			t.Errorf("%.20q was accepted as an id", id)
		}
	}
	got := take(t, b, 10, patient)
	if len(got) != 2 || len(got[0].Data()) != 1<<20 || got[0].ID() != strings.Repeat("ä", maxID/2) {
		t.Fatalf("%d deliveries", len(got))
	}
	if _, err := b.Take(t.Context(), 0, 0, time.Second); err == nil {
		t.Error("took nothing")
	}
	if _, err := b.Take(t.Context(), 1, 0, 0); err == nil {
		t.Error("took in no time")
	}
}

// Results are delivered even if the configured limits were lowered in the meantime.
func TestLimitsLowered(t *testing.T) {
	t.Parallel()
	c := Config{Dir: t.TempDir(), MaxMessage: 4 << 20, MaxBytes: 64 << 20}
	b := open(t, c)
	for i := range 4 {
		publish(t, b, fmt.Sprint(i), make([]byte, 4<<20))
	}
	shut(t, b)
	c.MaxMessage, c.MaxBytes = 1<<20, 2<<20
	b = open(t, c)
	if err := b.Publish(t.Context(), "x", []byte("x")); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	for i := range 4 {
		got, err := b.Take(t.Context(), 64, 1000, patient)
		if err != nil || len(got) != 1 || len(got[0].Data()) != 4<<20 {
			t.Fatalf("take %d: %d results, %v", i, len(got), err)
		}
		if err := got[0].Done(); err != nil {
			t.Fatal(err)
		}
	}
	depthIs(t, b, 0, 0)
	publish(t, b, "y", []byte("y"))
}

func TestTakeLimits(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir()})
	for i := range 20 {
		publish(t, b, fmt.Sprint(i), make([]byte, 100_000))
	}
	got, err := b.Take(t.Context(), 20, 450_000, patient)
	if err != nil || len(got) < 1 || len(got) > 4 {
		t.Errorf("%d results of 100 kB in 450 kB, %v", len(got), err)
	}
	n, takes := len(got), 0
	for ; n < 20; takes++ {
		begin := time.Now()
		got := take(t, b, 7, patient)
		if len(got) < 1 || len(got) > 7 || time.Since(begin) > patient/2 {
			t.Fatalf("%d results after %v", len(got), time.Since(begin))
		}
		n += len(got)
	}
	if takes > 8 { // it takes three calls on an idle machine
		t.Errorf("%d batches for 16 results", takes)
	}
	begin := time.Now()
	if got := take(t, b, 64, 1500*time.Millisecond); len(got) != 0 || time.Since(begin) < 1500*time.Millisecond {
		t.Errorf("%d results after %v", len(got), time.Since(begin))
	}
}

// Concurrent calls of Take share the results: each result goes to one of them.
func TestConcurrentTakers(t *testing.T) {
	t.Parallel()
	const n, size = 200, 100 << 10
	b := open(t, Config{Dir: t.TempDir()})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n; i += 4 {
				if err := b.Publish(t.Context(), fmt.Sprint(i), payload(fmt.Sprint(i), size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var mu sync.Mutex
	seen := map[string]int{}
	for range 6 {
		wg.Go(func() {
			for {
				got, err := b.Take(t.Context(), 64, 1<<30, time.Second)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				for _, d := range got {
					seen[d.ID()]++
				}
				all := len(seen) == n
				mu.Unlock()
				for _, d := range got {
					if err := d.Done(); err != nil {
						t.Error(err)
					}
				}
				if all || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	for id, times := range seen {
		if times != 1 {
			t.Errorf("%s was delivered %d times", id, times)
		}
	}
	depthIs(t, b, 0, 0)
}

// A cancelled Take returns its results to the queue at once.
func TestTakeCancelled(t *testing.T) {
	t.Parallel()
	// AckWait is so long that no timeout causes a redelivery.
	b := open(t, Config{Dir: t.TempDir(), AckWait: time.Hour})
	for i := range 50 {
		publish(t, b, fmt.Sprint(i), make([]byte, 10_000))
	}
	for i := range 30 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*200*time.Microsecond)
		got, err := b.Take(ctx, 10, 0, 5*time.Second)
		cancel()
		if (err == nil) != (len(got) > 0) {
			t.Fatalf("%d results, %v", len(got), err)
		}
		for _, d := range got {
			if err := d.Later(0); err != nil {
				t.Fatal(err)
			}
		}
	}
	if seen := takeAll(t, b, func(*Delivery) {}); len(seen) != 50 {
		t.Errorf("%d results, want 50", len(seen))
	}
}

func TestWoken(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir()})
	ctx, cancel := context.WithCancel(t.Context())
	first, err := b.Woken(ctx)
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.Woken(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hear := func(c <-chan string) string {
		select {
		case run := <-c:
			return run
		case <-time.After(patient):
			return "nothing"
		}
	}
	b.Wake("run-1")
	if got := hear(first); got != "run-1" {
		t.Errorf("the first listener got %s", got)
	}
	if got := hear(second); got != "run-1" {
		t.Errorf("the second listener got %s", got)
	}
	b.Wake(strings.Repeat("x", maxRun+1)) // too long, so it is not passed on
	for range 10_000 {                    // nobody reads the channel, so Wake must not block
		b.Wake("many")
	}
	if got := hear(first); got != "many" {
		t.Errorf("got %.10s", got)
	}
	cancel()
	eventually(t, "the channel closes", func() bool {
		select {
		case _, ok := <-first:
			return !ok
		default:
			return false
		}
	})
	shut(t, b)
	for range second { // ends when the channel is closed
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	before := goleak.IgnoreCurrent()
	dir := t.TempDir()
	b, err := Open(t.Context(), Config{Dir: dir}, logOf(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Woken(t.Context()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			if got, err := b.Take(context.Background(), 10, 0, time.Minute); !errors.Is(err, ErrClosed) {
				for _, d := range got {
					_ = d.Done()
				}
			}
		})
		wg.Go(func() {
			for i := 0; ; i++ {
				if err := b.Publish(context.Background(), fmt.Sprint(w, i), []byte("x")); err != nil {
					if !errors.Is(err, ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	begin := time.Now()
	shut(t, b)
	if took := time.Since(begin); took > 9*time.Second { // less than the timeout of Close
		t.Errorf("took %v", took)
	}
	wg.Wait()
	shut(t, b) // the second call does nothing
	if err := b.Healthy(); !errors.Is(err, ErrClosed) {
		t.Errorf("healthy: %v", err)
	}
	if _, err := b.Take(t.Context(), 1, 0, time.Second); !errors.Is(err, ErrClosed) {
		t.Errorf("take: %v", err)
	}
	if _, err := b.Woken(t.Context()); err == nil {
		t.Error("subscribed to a closed bus")
	}
	b.Wake("run")
	goleak.VerifyNone(t, before)
}

func TestEmbeddedServer(t *testing.T) {
	before := len(listening(t))
	dir := filepath.Join(t.TempDir(), "bus")
	b := open(t, Config{Dir: dir})
	if c := b.server.JetStreamConfig(); c == nil || !c.SyncAlways {
		t.Errorf("the server acknowledges before data is on disk: %+v", c)
	}
	if got := listening(t); len(got) != before {
		t.Errorf("the server listens on %v", got)
	}
	if err := b.Healthy(); err != nil {
		t.Error(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir}, logOf(t)); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("two servers in one folder: %v", err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("other users can read the folder: %v, %v", info, err)
	}
}

// A stream that was deleted while the bus is running is created again when it is needed.
func TestDeletedStreamIsCreatedAgain(t *testing.T) {
	t.Parallel()
	b, err := Open(t.Context(), Config{Dir: t.TempDir()}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer shut(t, b)
	publish(t, b, "a", []byte("x"))
	for i, gone := range []func() error{
		func() error { return b.js.DeleteStream(t.Context(), streamName) },
		func() error { return b.js.DeleteConsumer(t.Context(), streamName, consumerName) },
	} {
		b.recreating.Lock()
		b.recreated = time.Time{}
		b.recreating.Unlock()
		if err := gone(); err != nil {
			t.Fatal(err)
		}
		if err := b.Healthy(); err == nil {
			t.Error("healthy without a stream")
		}
		if i == 0 {
			publish(t, b, "b", []byte("x"))
		}
		got := take(t, b, 10, patient)
		if len(got) != 1 || got[0].ID() != "b" {
			t.Fatalf("%d: %d results", i, len(got))
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]Config{
		"neither":          {},
		"both":             {Dir: dir, URLs: []string{"nats://127.0.0.1:1"}},
		"replicas":         {Dir: dir, Replicas: 3},
		"too many":         {URLs: []string{"nats://127.0.0.1:1"}, Replicas: 7},
		"no such file":     {URLs: []string{"nats://127.0.0.1:1"}, CAFile: filepath.Join(dir, "none")},
		"half a pair":      {URLs: []string{"nats://127.0.0.1:1"}, CertFile: "x"},
		"too large":        {Dir: dir, MaxMessage: 33 << 20},
		"no room":          {Dir: dir, MaxBytes: 1 << 20},
		"a file, no dir":   {Dir: "bus_test.go"},
		"negative message": {Dir: dir, MaxMessage: -1},
	} {
		if b, err := Open(t.Context(), c, logOf(t)); err == nil {
			t.Errorf("%s: accepted", name)
			shut(t, b)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := Open(ctx, Config{URLs: []string{"nats://127.0.0.1:1"}}, logOf(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no server: %v", err)
	}
}
