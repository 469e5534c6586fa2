package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
)

// The honest agents during a flood. Half of them keep a connection open and share the
// attackers' address, as behind the same router. The other agents have another address and open
// a connection for every check-in, like agents that check in rarely.
const (
	honestAgents = 16
	honestEvery  = 250 * time.Millisecond
	honestFrom   = "127.0.0.2"
	// A check-in must be answered before agents would stop trying to connect.
	honestFor = 15 * time.Second
)

// service measures the answers to honest callers.
type service struct {
	mu     sync.Mutex
	times  []time.Duration // durations of the answered calls
	failed int
	last   error
}

func (s *service) add(took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failed++
		s.last = err
		return
	}
	s.times = append(s.times, took)
}

// calls returns the number of calls.
func (s *service) calls() int { return len(s.times) + s.failed }

// answered returns the share of calls that were answered.
func (s *service) answered() float64 { return float64(len(s.times)) / float64(max(1, s.calls())) }

// quantile returns a quantile of the times of answered calls.
func (s *service) quantile(q float64) time.Duration {
	if len(s.times) == 0 {
		return honestFor
	}
	slices.Sort(s.times)
	return s.times[min(int(q*float64(len(s.times))), len(s.times)-1)]
}

// served reports whether at least 99 % of the calls were answered, and 99 % of the answers took
// at most a second longer than check-ins without a flood. Check-ins without a flood take
// milliseconds unless the machine is busy.
func (s *service) served(before *service) bool {
	return s.answered() >= 0.99 && s.quantile(0.99) <= time.Second+min(before.quantile(0.99), 2*time.Second)
}

func (s *service) String() string {
	text := fmt.Sprintf("%d of %d, p99 %d ms", len(s.times), s.calls(), s.quantile(0.99).Milliseconds())
	if s.last != nil {
		text += fmt.Sprintf(" (%.80v)", s.last)
	}
	return text
}

// honest is the honest part of a fleet.
type honest struct {
	server *Server
	agents []func(ctx context.Context) error // check-ins
	join   func(ctx context.Context) error

	checkIns, joins, operators service
}

// newHonest makes the honest agents join and connect.
func newHonest(ctx context.Context, s *Server) (*honest, error) {
	h := &honest{server: s}
	t, err := s.Token(ctx, honestAgents+1000)
	if err != nil {
		return nil, err
	}
	for i := range honestAgents {
		a, err := s.Join(ctx, t, fmt.Sprint("honest-", i))
		if err != nil {
			return nil, err
		}
		if _, err := a.Host(ctx, nil, fmt.Sprint("honest-", i)); err != nil {
			return nil, err
		}
		service := a.AgentServiceClient
		if i%2 == 1 {
			service = v1.NewAgentServiceClient(mtls.Client(anew(mtls.AgentTransport(a.TLS))), a.Base, protocol.Client())
		}
		h.agents = append(h.agents, func(ctx context.Context) error {
			_, err := service.Exchange(ctx, &v1.ExchangeRequest{})
			return err
		})
	}
	anonymous, err := s.Anonymous()
	if err != nil {
		return nil, err
	}
	service := v1.NewAgentServiceClient(mtls.Client(anew(mtls.AgentTransport(anonymous))), "https://"+s.Host, protocol.Client())
	h.join = func(ctx context.Context) error {
		_, csr, err := request()
		if err != nil {
			return err
		}
		_, err = service.Join(ctx, &v1.JoinRequest{Secret: t.Secret(), Csr: csr, Name: "newcomer"})
		return err
	}
	return h, nil
}

// anew makes a transport open a new connection for every call, from the honest agents' address.
func anew(t *http.Transport) *http.Transport {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(honestFrom)}}
	t.DialContext, t.DisableKeepAlives = d.DialContext, true
	return t
}

// measure runs the honest agents for the duration d.
func (h *honest) measure(ctx context.Context, d time.Duration) error {
	operators, err := h.server.Operators()
	if err != nil {
		return err
	}
	until, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var wg sync.WaitGroup
	repeat := func(first, every time.Duration, into *service, call func(context.Context) error) {
		wg.Go(func() {
			for at := time.After(first); ; at = time.After(every) {
				select {
				case <-until.Done():
					return
				case <-at:
				}
				one, end := context.WithTimeout(ctx, honestFor)
				start := time.Now()
				err := call(one)
				end()
				if ctx.Err() == nil {
					into.add(time.Since(start), err)
				}
			}
		})
	}
	for i, call := range h.agents {
		repeat(honestEvery*time.Duration(i)/honestAgents, honestEvery, &h.checkIns, call)
	}
	repeat(0, time.Second, &h.joins, h.join)
	repeat(0, time.Second, &h.operators, func(ctx context.Context) error {
		_, err := operators.ListRuns(ctx, &v1.ListRunsRequest{Limit: 10})
		return err
	})
	wg.Wait()
	return ctx.Err()
}
