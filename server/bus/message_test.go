package bus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// crowd publishes n results concurrently.
func crowd(t *testing.T, b *Bus, n, size int) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if err := b.Publish(t.Context(), fmt.Sprint(i), payload(fmt.Sprint(i), size)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// messages returns the number of messages in the stream.
func messages(t *testing.T, b *Bus) int64 {
	t.Helper()
	waiting, taken, err := b.Depth(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return waiting + taken
}

func TestConcurrentResultsShareMessages(t *testing.T) {
	t.Parallel()
	const n = 400
	for name, c := range map[string]struct {
		Config
		size        int
		least, most int64 // number of messages
	}{
		"grouped":  {Config{}, 10_000, (n + 63) / 64, 3 * n / 4},
		"single":   {Config{MaxGroup: 1}, 10_000, n, n},
		"by bytes": {Config{MaxMessage: 30_000}, 10_000, n / 2, n - 1}, // two results and their framing
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Dir = t.TempDir()
			b := open(t, c.Config)
			crowd(t, b, n, c.size)
			if m := messages(t, b); m < c.least || m > c.most {
				t.Errorf("%d results in %d messages, want %d to %d", n, m, c.least, c.most)
			}
			seen := takeAll(t, b, func(d *Delivery) {
				if !bytes.Equal(d.Data(), payload(d.ID(), c.size)) {
					t.Errorf("%s arrived with other data", d.ID())
				}
			})
			if len(seen) != n {
				t.Errorf("%d of %d results were delivered", len(seen), n)
			}
			depthIs(t, b, 0, 0)
		})
	}
}

// A message is answered when all of its results are answered. It is redelivered if at least
// one result must be redelivered.
func TestGroupAnswered(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir()})
	group := make([]*offer, 3)
	for i := range group {
		group[i] = &offer{ctx: t.Context(), result: result{fmt.Sprint(i), []byte("x")}}
	}
	if err := b.publishGroup(group); err != nil {
		t.Fatal(err)
	}
	if err := b.publishGroup(group); err != nil { // discarded as a repetition
		t.Fatal(err)
	}
	all := func(times uint64) []*Delivery {
		t.Helper()
		got := take(t, b, 1, time.Minute)
		if len(got) != 3 || got[0].Deliveries() != times {
			t.Fatalf("%d results", len(got))
		}
		return got
	}
	got := all(1)
	if err := errors.Join(got[0].Done(), got[1].Later(0)); err != nil {
		t.Fatal(err)
	}
	depthIs(t, b, 0, 1)
	if err := got[2].Drop("no use"); err != nil {
		t.Fatal(err)
	}
	if got[1].Done() == nil {
		t.Error("two answers to one result")
	}
	got = all(2)
	if err := errors.Join(got[0].Done(), got[1].Drop("no use"), got[2].Done()); err != nil {
		t.Fatal(err)
	}
	depthIs(t, b, 0, 0)
}

// The context of a group ends only when the contexts of all its callers have ended.
func TestGroupCancelled(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancelCause(t.Context())
	group := []*offer{{ctx: ended}, {ctx: t.Context()}}
	ctx, cancel := anyOf(group)
	defer cancel()
	end(errors.New("enough"))
	select {
	case <-ctx.Done():
		t.Error("the context ended with the first caller")
	case <-time.After(20 * time.Millisecond):
	}
	group[1].ctx = ended
	ctx, cancel = anyOf(group)
	defer cancel()
	<-ctx.Done()
	if cause := context.Cause(ctx); cause == nil || cause.Error() != "enough" {
		t.Error(cause)
	}
}

func TestForeignMessages(t *testing.T) {
	t.Parallel()
	b := open(t, Config{Dir: t.TempDir()})
	for i, data := range []string{"", "something else", "\x0a\x01a", "\x12\x01a\x0a\x01b"} {
		if err := b.store(t.Context(), fmt.Sprint("foreign", i), []byte(data), time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, b, "ours", []byte("x"))
	if seen := takeAll(t, b, func(*Delivery) {}); len(seen) != 1 || seen["ours"] != 1 {
		t.Errorf("got %v", seen)
	}
	depthIs(t, b, 0, 0)
}

func FuzzUnpack(f *testing.F) {
	for n := range 4 {
		group := make([]*offer, n)
		for i := range group {
			group[i] = &offer{result: result{fmt.Sprint(i), payload("x", i)}}
		}
		_, message := pack(group)
		f.Add(message)
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		all, err := unpack(message)
		if err != nil {
			return
		}
		group := make([]*offer, len(all))
		for i, r := range all {
			group[i] = &offer{result: r}
		}
		_, packed := pack(group)
		again, err := unpack(packed)
		if err != nil || len(again) != len(all) {
			t.Fatalf("%d results became %d: %v", len(all), len(again), err)
		}
		for i, r := range again {
			if r.id != all[i].id || !bytes.Equal(r.data, all[i].data) {
				t.Errorf("result %d changed", i)
			}
		}
	})
}
