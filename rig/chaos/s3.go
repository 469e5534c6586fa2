package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"loadstar/rig/product"
)

// badStore is an S3 store that can fail.
type badStore struct {
	good http.Handler
	mu   sync.Mutex
	how  string         // the current fault, or empty
	hit  map[string]int // number of calls that met a fault
	n    int            // calls so far
}

// These are the faults of an S3 store.
const (
	s3Error    = "500"
	s3SlowDown = "503 SlowDown"
	s3CutDown  = "reset in an answer"
	s3CutUp    = "reset in a request"
	s3Torn     = "answer too short"
	s3Slow     = "answers after 30 s"
	s3Away     = "no answer"
)

// A fault lasts at least s3Least, and until s3Hits calls have met it, but not longer than
// s3Most.
const (
	s3Least, s3Most = 4 * time.Second, 45 * time.Second
	s3Hits          = 2
)

var s3Faults = []string{s3Error, s3SlowDown, s3CutDown, s3CutUp, s3Torn, s3Away, s3Slow}

// startStore starts an S3 store in this process and returns its address.
func (s *system) startStore() (string, error) {
	const bucket = "weights"
	memory := s3mem.New()
	if err := memory.CreateBucket(bucket); err != nil {
		return "", err
	}
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} {
		if err := os.Setenv(name, "test"); err != nil {
			return "", err
		}
	}
	s.store = &badStore{good: gofakes3.New(memory).Server(), hit: map[string]int{}}
	server := httptest.NewServer(s.store)
	s.closers = append(s.closers, closer(server.CloseClientConnections))
	return "s3+http://" + server.Listener.Addr().String() + "/" + bucket + "/fleet/", nil
}

type closer func()

func (c closer) Close() error { c(); return nil }

// set makes the store fail, or work if how is empty.
func (b *badStore) set(how string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.how = how
}

// hits returns the number of calls that met a fault.
func (b *badStore) hits(how string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hit[how]
}

// meet returns the fault of a call. Three of four calls meet one, so that retries of the same
// call meet it several times.
func (b *badStore) meet() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.n++
	if b.how == "" || b.n%4 == 0 && b.how != s3Away {
		return ""
	}
	b.hit[b.how]++
	return b.how
}

func (b *badStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch how := b.meet(); how {
	case s3Error:
		http.Error(w, "internal error", http.StatusInternalServerError)
	case s3SlowDown:
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`)
	case s3CutUp:
		_, _ = io.CopyN(io.Discard, r.Body, r.ContentLength/2) // half of the blob
		abort(w)
	case s3CutDown, s3Torn:
		b.half(w, r, how == s3Torn)
	case s3Slow:
		if product.Sleep(r.Context(), 30*time.Second) == nil {
			b.good.ServeHTTP(w, r)
		}
	case s3Away:
		_ = product.Sleep(r.Context(), time.Minute) // the code below ends with the context too
		abort(w)
	default:
		b.good.ServeHTTP(w, r)
	}
}

// half carries out the call and sends half of the answer. The answer then ends with a reset, or
// it ends in an orderly way and states the length of the part that was sent.
func (b *badStore) half(w http.ResponseWriter, r *http.Request, orderly bool) {
	whole := httptest.NewRecorder()
	b.good.ServeHTTP(whole, r)
	body := whole.Body.Bytes()
	maps.Copy(w.Header(), whole.Header())
	if orderly {
		w.Header().Set("Content-Length", fmt.Sprint(len(body)/2))
	}
	w.WriteHeader(whole.Code)
	_, _ = w.Write(body[:len(body)/2]) // the client may have disconnected
	if !orderly {
		if f, ok := w.(http.Flusher); ok {
			f.Flush()
		}
		abort(w)
	}
}

// abort resets the connection.
func abort(w http.ResponseWriter) {
	h, ok := w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler)
	}
	c, _, err := h.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0) // without this the connection ends in an orderly way
	}
	c.Close()
}

// newBadStore returns an injector that makes the S3 store fail.
func newBadStore(t *trial, log io.Writer) injector {
	r := newRepeated(t, log, s3Faults...)
	r.once = func(ctx context.Context, i int) error {
		how := s3Faults[i%len(s3Faults)]
		r.begin(how, "at the S3 store")
		t.system.store.set(how)
		for begun := time.Now(); time.Since(begun) < s3Least || t.system.store.hits(how) < s3Hits && time.Since(begun) < s3Most; {
			if product.Sleep(ctx, lookEvery) != nil {
				break
			}
		}
		t.system.store.set("")
		return nil
	}
	return &storeReport{r}
}

// storeReport prints the number of calls that met each fault, in addition to the usual table.
type storeReport struct{ *repeated }

func (s *storeReport) print(out io.Writer) {
	b := s.system.store
	b.mu.Lock()
	for _, how := range slices.Sorted(maps.Keys(b.hit)) {
		s.note("calls of the S3 store that met %q: %d", how, b.hit[how])
	}
	b.mu.Unlock()
	s.repeated.print(out)
}
