package demo

import (
	"bytes"
	"encoding/binary"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"loadstar/internal/proc"
	"loadstar/series"
)

func meters(t *testing.T, load ...float32) *series.Dataset {
	t.Helper()
	d, err := series.NewDataset(series.Dataset{Name: "x", Interval: time.Hour, Clock: time.UTC}, []series.Meter{{ID: "a", Load: load}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestLookout plants readings in bodies at every offset, in one piece and in pieces of one
// byte, and checks that each is found once.
func TestLookout(t *testing.T) {
	missing := float32(math.NaN())
	l := newLookout(meters(t, 12.34, 15.61, 15.61, 0, 3.25, missing, 8.125, 9.75))
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the test checks only what was sent
	}))
	defer server.Close()
	four := func(x ...float32) (b []byte) {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		return b
	}
	eight := func(x ...float32) (b []byte) {
		for _, v := range x {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
		}
		return b
	}
	noise := make([]byte, 5000)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	for _, c := range []struct {
		name  string
		plant []byte
		want  int64
	}{
		{"nothing", nil, 0},
		{"a pair", four(12.34, 15.61), 1},
		{"a pair of float64", eight(12.34, 15.61), 1},
		{"the last pair", four(8.125, 9.75), 1},
		{"one reading", four(12.34, 1), 0},
		{"another order", four(15.61, 12.34), 0},
		{"repeated values", four(15.61, 15.61), 0},
		{"zeros", four(0, 0, 0, 0), 0},
		{"both forms", append(four(12.34, 15.61), eight(8.125, 9.75)...), 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			for at := 0; at < len(noise)+1; at += 1 + len(noise)/23 {
				body := append(append(bytes.Clone(noise[:at]), c.plant...), noise[at:]...)
				if at%2 == 0 {
					body = body[:at+len(c.plant)] // at the very end
				}
				for form, r := range map[string]io.Reader{"whole": bytes.NewReader(body), "by the byte": iotest.OneByteReader(bytes.NewReader(body))} {
					w := &wire{base: http.DefaultTransport, looking: l}
					w.dieAt.Store(-1)
					answer, err := (&http.Client{Transport: w}).Post(server.URL, "text/plain", r)
					if err != nil {
						t.Fatal(err)
					}
					answer.Body.Close()
					if w.found.Load() != c.want || w.bytes.Load() != int64(len(body)) {
						t.Fatalf("%s at %d of %d: found %d in %d bytes, want %d", form, at, len(body), w.found.Load(), w.bytes.Load(), c.want)
					}
				}
			}
		})
	}
}

// TestEncoded checks that a body that cannot be searched is reported, and that a dead agent
// sends nothing.
func TestEncoded(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer server.Close()
	w := &wire{base: http.DefaultTransport, looking: newLookout(meters(t, 1, 2))}
	w.dieAt.Store(-1)
	q, err := http.NewRequest(http.MethodPost, server.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Encoding", "gzip")
	if r, err := w.RoundTrip(q); err != nil || w.unread.Load() != 1 {
		t.Fatalf("%v, %d", err, w.unread.Load())
	} else {
		r.Body.Close()
	}
	w.dead.Store(true)
	if r, err := (&http.Client{Transport: w}).Post(server.URL, "text/plain", strings.NewReader("x")); err == nil {
		r.Body.Close()
		t.Error("a dead agent was answered")
	}
	if asked != 1 {
		t.Errorf("%d requests arrived", asked)
	}
}

// TestLookoutCost checks that searching the bytes that a demo sends takes little time.
func TestLookoutCost(t *testing.T) {
	if testing.Short() {
		t.Skip("searches 17 MB")
	}
	s, err := newStage(1, 42, Defaults().Today)
	if err != nil {
		t.Fatal(err)
	}
	began := proc.CPUTime()
	l := newLookout(s.all)
	body := make([]byte, 1<<20)
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(body); i += 8 {
		binary.LittleEndian.PutUint64(body[i:], random.Uint64())
	}
	for range 17 {
		if n := l.search(body, len(body)); n != 0 {
			t.Errorf("%d readings in random bytes", n)
		}
	}
	spent := proc.CPUTime() - began
	t.Logf("%.2f s of CPU time", spent.Seconds())
	if spent > 5*time.Second { // about 0.2 s on an idle machine
		t.Errorf("searching took %s of CPU time", spent)
	}
}
