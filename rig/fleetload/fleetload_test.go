package fleetload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"log/slog"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
	"loadstar/server"
)

func TestLatencies(t *testing.T) {
	if (Latencies{}).Quantile(0.5) != 0 {
		t.Error("none is something")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var h histogram
	var exact []time.Duration
	for range 10_000 {
		d := time.Duration(float64(time.Millisecond) * math.Exp(2*rng.NormFloat64()))
		h.add(d)
		exact = append(exact, d)
	}
	slices.Sort(exact)
	l := h.load()
	for _, q := range []float64{0.05, 0.5, 0.99, 1} {
		want := float64(exact[int(math.Ceil(q*10_000))-1])
		if got := float64(l.Quantile(q)); math.Abs(got/want-1) > 0.011 {
			t.Errorf("quantile %g is %v, want %v", q, time.Duration(got), time.Duration(want))
		}
	}
	h.add(0)
	h.add(24 * time.Hour)
	if n := h.load().since(l).Len(); n != 2 {
		t.Errorf("%d durations since, want 2", n)
	}
	if two := l.Plus(l); two.Len() != 20_000 || two.Quantile(0.5) != l.Quantile(0.5) {
		t.Error("twice the same is something else")
	}
}

// TestNumbers checks that a server would accept the generated updates: they are finite and
// small, match their checksum, and differ from each other.
func TestNumbers(t *testing.T) {
	var n numbers
	for _, size := range []int{4, 60, 64, 68, 124, 128, 132, 23_040, 168_724} {
		seen := map[uint32]bool{}
		for push := range uint32(4) {
			for agent := range 4 {
				b, sum := n.take(size, agent, push)
				if len(*b) != size || protocol.Checksum(*b) != sum {
					t.Fatalf("%d bytes, push %d of agent %d: %d bytes, or another checksum", size, push, agent, len(*b))
				}
				for i := 0; i < size; i += 4 {
					if x := math.Float32frombits(binary.LittleEndian.Uint32((*b)[i:])); !(x > -1 && x < 1) {
						t.Fatalf("a change of %g", x)
					}
				}
				seen[sum] = true
				n.put(b)
			}
		}
		if size >= 8 && len(seen) != 16 {
			t.Errorf("%d bytes: %d of 16 updates are distinct", size, len(seen))
		}
	}
}

func TestCheck(t *testing.T) {
	var n numbers
	blob := bytes.Repeat([]byte("weights!"), 20_000)
	sum := sha256.Sum256(blob)
	name := hex.EncodeToString(sum[:])
	if _, err := n.check(name, bytes.NewReader(blob[1:])); err == nil {
		t.Error("another blob was taken")
	}
	for range 2 {
		if length, err := n.check(name, bytes.NewReader(blob)); err != nil || length != len(blob) {
			t.Errorf("%d bytes, %v", length, err)
		}
	}
	if _, err := n.check(name, bytes.NewReader(blob[1:])); err == nil {
		t.Error("a shorter blob was taken")
	}
}

const plan = `
algorithm: fedavg
model: {name: bose2023}
partition: head
rounds: 1000
schedule: {cohort: 8}
`

// TestFleet checks that a fleet's updates are counted by a real server.
func TestFleet(t *testing.T) {
	defer goleak.VerifyNone(t)
	dir := t.TempDir()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, server.Config{
			Dir: dir, Roles: server.Roles(), Listen: "127.0.0.1:0", Hosts: []string{"127.0.0.1"}, AgentClients: 1,
			Certificates: time.Hour, Lease: time.Minute, Lead: 10 * time.Second, Poll: 20 * time.Millisecond, MaxPoll: time.Minute, Rate: 1000,
			Log: slog.New(slog.DiscardHandler), Ready: func(address string) { ready <- address },
		})
	}()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	var address string
	select {
	case address = <-ready:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	trusted, err := mtls.ReadFolder(filepath.Join(dir, "operator"))
	if err != nil {
		t.Fatal(err)
	}
	transport := mtls.Transport(trusted.TLS())
	defer transport.CloseIdleConnections()
	operator := v1.NewOperatorServiceClient(mtls.Client(transport), "https://"+address)
	made, err := operator.CreateToken(ctx, &v1.CreateTokenRequest{Uses: 16, TtlSeconds: 3600})
	if err != nil {
		t.Fatal(err)
	}
	token, err := mtls.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{Server: "https://" + address, Root: trusted.Root, Token: token, Agents: 16}
	joined := 0
	f, err := Join(ctx, config, func(n int) { joined = max(joined, n) })
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if joined != 16 {
		t.Errorf("%d agents have joined", joined)
	}
	if _, err := Join(ctx, config, func(int) {}); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("16 more agents joined with the used-up token: %v", err)
	}
	if err := f.Connect(ctx); err != nil {
		t.Fatal(err)
	}
	run, err := operator.StartRun(ctx, &v1.StartRunRequest{Plan: plan, Clients: 16})
	if err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.CheckIn.Len() > 0 {
		t.Error("a fleet that rests checks in")
	}
	for range 2 { // work, rest, work
		before := f.Stats()
		f.Go()
		until := time.Now().Add(5 * time.Minute)
		for f.Stats().Since(before).Heard.Len() < 20 && time.Now().Before(until) {
			time.Sleep(10 * time.Millisecond)
		}
		f.Rest()
		after := f.Stats()
		if after.Since(before).Heard.Len() < 20 {
			t.Fatalf("agents heard of %d results in five minutes", after.Since(before).Heard.Len())
		}
		time.Sleep(100 * time.Millisecond)
		if more := f.Stats().Since(after); more.CheckIn.Len()+more.Push.Len() > 0 {
			t.Error("a fleet that rests goes on")
		}
	}
	s := f.Stats()
	if s.Rejected+s.Failed+s.Busy > 0 {
		t.Errorf("rejected %d, failed %d, busy %d: %v", s.Rejected, s.Failed, s.Busy, f.Err())
	}
	r, err := operator.GetRun(ctx, &v1.GetRunRequest{Run: run.Run, Rounds: 1000})
	if err != nil {
		t.Fatal(err)
	}
	counted := int64(8) // the open round has counted at most 8
	for _, x := range r.Rounds {
		counted += x.Counted
	}
	if s.Heard.Len() > counted || s.Accepted < s.Heard.Len() || s.Fetch.Len() > 0 { // the weights come with the tasks
		t.Errorf("fetched %d, accepted %d, heard of %d, want at most %d counted", s.Fetch.Len(), s.Accepted, s.Heard.Len(), counted)
	}
}
