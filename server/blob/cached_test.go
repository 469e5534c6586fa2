package blob

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"loadstar/internal/testkit"
)

// counting is a store that counts Get calls and can delay their answers.
type counting struct {
	Store
	gets atomic.Int64
	gate chan struct{} // if not nil, Get returns only after it can receive from gate
}

func (c *counting) Get(ctx context.Context, hash string) ([]byte, error) {
	data, err := c.Store.Get(ctx, hash)
	c.gets.Add(1) // counted after the read, so that a test knows that the read is complete
	if c.gate != nil {
		<-c.gate
	}
	return data, err
}

func TestCachedBounds(t *testing.T) {
	under := &counting{Store: fileBacking(t).open(t)}
	const room = 10 * (1000 + 256)
	s := Cached(under, room)
	var hashes []string
	for i := range 12 {
		hashes = append(hashes, put(t, under, random(uint64(i), 1000)))
	}
	big := put(t, under, random(100, room))
	get := func(hash string, loads int64) {
		t.Helper()
		before := under.gets.Load()
		if _, err := s.Get(t.Context(), hash); err != nil {
			t.Fatal(err)
		}
		if n := under.gets.Load() - before; n != loads {
			t.Errorf("got %d times from the store, want %d", n, loads)
		}
	}
	for i := range 8 {
		get(hashes[i], 1)
		get(hashes[i], 0)
	}
	get(big, 1) // too large for the cache; evicts nothing
	get(big, 1)
	get(hashes[0], 0) // now the most recently used
	for i := range 4 {
		get(hashes[8+i], 1)
	}
	get(hashes[0], 0)
	get(hashes[1], 1) // was evicted
	if c := s.(*cached); c.used > c.limit || len(c.entries) != c.order.Len() || len(c.entries) < 7 {
		t.Errorf("%d of %d bytes, %d entries, %d in order", c.used, c.limit, len(c.entries), c.order.Len())
	}
	for _, hash := range hashes {
		if err := s.Delete(t.Context(), hash); err != nil {
			t.Fatal(err)
		}
	}
	if c := s.(*cached); c.used != 0 || len(c.entries) != 0 {
		t.Errorf("%d bytes, %d entries of nothing", c.used, len(c.entries))
	}
}

func TestCachedLoadsOnce(t *testing.T) {
	under := &counting{Store: fileBacking(t).open(t), gate: make(chan struct{})}
	data := random(1, 5000)
	hash := put(t, under, data)
	s := Cached(under, 1<<20)

	// Cancel the call that started the load. The other calls must still succeed.
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.Get(ctx, hash)
		gone <- err
	}()
	testkit.Eventually(t, "the load begins", func() bool { return under.gets.Load() == 1 })
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if got, err := s.Get(t.Context(), hash); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(under.gate)
	wg.Wait()
	if n := under.gets.Load(); n != 1 {
		t.Errorf("got %d times from the store", n)
	}
}

// TestCachedDeleteDuringLoad checks that a blob that is deleted while it is being loaded is not
// cached.
func TestCachedDeleteDuringLoad(t *testing.T) {
	under := &counting{Store: fileBacking(t).open(t), gate: make(chan struct{})}
	hash := put(t, under, []byte("x"))
	s := Cached(under, 1<<20)
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := s.Get(t.Context(), hash); err != nil {
			t.Error(err) // the blob still existed when the load began
		}
	})
	testkit.Eventually(t, "the load begins", func() bool { return under.gets.Load() == 1 })
	if err := s.Delete(t.Context(), hash); err != nil {
		t.Fatal(err)
	}
	close(under.gate)
	wg.Wait()
	if _, err := s.Get(t.Context(), hash); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}
