package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"loadstar/internal/mtls"
	"loadstar/internal/protocol"
	v1 "loadstar/proto/loadstar/v1"
)

// loop calls a function repeatedly, several calls at a time, until the context ends. It
// counts the calls that succeed and those that fail.
func loop(ctx context.Context, atOnce int, call func(ctx context.Context, worker int) error) (done func() string) {
	var ok, failed atomic.Int64
	for i := range atOnce {
		go func() {
			for ctx.Err() == nil {
				if err := call(ctx, i); err == nil {
					ok.Add(1)
					continue
				}
				failed.Add(1)
				select { // a short pause, which saves the attacker's own CPU time
				case <-ctx.Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		}()
	}
	return func() string {
		return fmt.Sprintf("the flood had %d calls served and %d refused", ok.Load(), failed.Load())
	}
}

// announcing is a flood by an agent that announces its 10,000 clients, in 8 concurrent calls.
// The inputs change from call to call, so that every announcement changes all rows.
func announcing(ctx context.Context, s *Server) ([]string, func() string, error) {
	all, who, err := hosts(ctx, s, 1)
	if err != nil {
		return nil, nil, err
	}
	list := names("ann-", 10_000)
	var n atomic.Int64
	done := loop(ctx, 8, func(ctx context.Context, _ int) error {
		_, err := all[0].Announce(ctx, &v1.AnnounceRequest{Clients: list, Inputs: []string{fmt.Sprint("input", n.Add(1))}, StepSeconds: 3600})
		return err
	})
	time.Sleep(time.Second)
	return who, done, nil
}

// checkingIn is a flood by 16 agents that name the maximum number of turns in each check-in, in
// 16 concurrent calls.
func checkingIn(ctx context.Context, s *Server) ([]string, func() string, error) {
	all, who, err := hosts(ctx, s, 16)
	if err != nil {
		return nil, nil, err
	}
	q := &v1.ExchangeRequest{}
	list := names("c", 5_000)
	for i := range 8 {
		q.Pushed = append(q.Pushed, &v1.Turns{Run: fmt.Sprint("run", i), Round: 1, Clients: list})
		q.Training = append(q.Training, &v1.Turns{Run: fmt.Sprint("run", i), Round: 1, Clients: list})
	}
	body, err := proto.Marshal(q) // encoded once, because the attacker's CPU time must not hide the server's
	if err != nil {
		return nil, nil, err
	}
	done := loop(ctx, 16*len(all), func(ctx context.Context, i int) error {
		r, err := all[i%len(all)].post(ctx, v1.AgentServiceExchangeProcedure, body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = errors.New(r.Status)
		}
		return err
	})
	time.Sleep(time.Second)
	return who, done, nil
}

// wrongTokens is a flood by a stranger who guesses tokens, in 64 concurrent calls.
func wrongTokens(ctx context.Context, s *Server) ([]string, func() string, error) {
	config, err := s.Anonymous()
	if err != nil {
		return nil, nil, err
	}
	_, csr, err := request()
	if err != nil {
		return nil, nil, err
	}
	t := mtls.AgentTransport(config)
	t.MaxIdleConnsPerHost, t.MaxIdleConns = 64, 64
	service := v1.NewAgentServiceClient(mtls.Client(t), "https://"+s.Host, protocol.Client())
	done := loop(ctx, 64, func(ctx context.Context, _ int) error {
		_, err := service.Join(ctx, &v1.JoinRequest{Secret: make([]byte, 20), Csr: csr})
		return err
	})
	time.Sleep(time.Second)
	return []string{attackersFrom}, done, nil
}

// trickling is a flood by 16 agents with two messages each. The messages announce 8 MB and then
// send a byte every two seconds.
func trickling(ctx context.Context, s *Server) ([]string, func() string, error) {
	all, who, err := hosts(ctx, s, 16)
	if err != nil {
		return nil, nil, err
	}
	h := newHolder(ctx, s)
	for _, a := range all {
		for range 12 { // the server reads eight messages at a time
			h.hold(a.TLS, func(c io.ReadWriter) error {
				return slowly(ctx, c, v1.AgentServiceExchangeProcedure, 8<<20, 1)
			})
		}
	}
	return who, h.done, h.wait(2 * len(all))
}

// slowJoins is a flood by strangers who each send a join request slowly.
func slowJoins(ctx context.Context, s *Server) ([]string, func() string, error) {
	config, err := s.Anonymous()
	if err != nil {
		return nil, nil, err
	}
	h := newHolder(ctx, s)
	for range 300 {
		h.hold(config, func(c io.ReadWriter) error {
			return slowly(ctx, c, v1.AgentServiceJoinProcedure, 1000, 1)
		})
	}
	return []string{attackersFrom}, h.done, h.wait(64)
}

// slowly posts a message, sending some bytes at once and then a byte every two seconds. It
// returns when the server has answered or closed the connection.
func slowly(ctx context.Context, c io.ReadWriter, procedure string, length, first int) error {
	if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nConnect-Protocol-Version: 1\r\nContent-Length: %d\r\n\r\n", procedure, length); err != nil {
		return err
	}
	answered := make(chan struct{})
	go func() {
		_, _ = c.Read(make([]byte, 1)) // an answer or an error, which both end the message
		close(answered)
	}()
	if _, err := c.Write(make([]byte, first)); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-answered:
			return nil
		case <-time.After(2 * time.Second):
		}
		if _, err := c.Write([]byte{0}); err != nil {
			return err
		}
	}
}
