package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"loadstar/internal/freeport"
)

const kindOutage = "all nodes"

// newOutage returns an injector that kills all NATS nodes at once and restarts them after a
// while. Every second time a node starts so late that the others are up without it.
func newOutage(t *trial, log io.Writer) injector {
	r := newRepeated(t, log, kindOutage)
	r.once = func(ctx context.Context, i int) error {
		r.record(kindOutage, "for %s", t.away)
		var nodes []part
		for _, p := range t.system.servers {
			if p.Kind() == kindNATS {
				nodes = append(nodes, p)
			}
		}
		for _, p := range nodes {
			if err := p.Kill(); err != nil {
				return err
			}
		}
		sleep(ctx, t.away)
		r.watcher.killed(kindOutage) // measure from the end of the outage
		for k, p := range nodes {
			if i%2 == 1 && k == 2 {
				sleep(ctx, 3*time.Second)
			}
			if err := p.Start(); err != nil {
				return err
			}
		}
		begun := time.Now()
		if err := t.system.whole(ctx, time.Minute); err != nil {
			return err
		}
		r.note("outage %d of %s: all nodes had all messages after %.2f s", i+1, t.away, time.Since(begun).Seconds())
		return r.told()
	}
	return r
}

// told checks that agents with a result got an answer that says what to do, and did not
// wait for nothing until they gave up.
func (r *repeated) told() error {
	clear := 0
	for _, p := range r.system.hosts {
		text, err := os.ReadFile(p.log)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			switch {
			case strings.Contains(line, "cannot send to the server") && strings.Contains(line, "unavailable: "):
				clear++
			case strings.Contains(line, "timeout awaiting response") || strings.Contains(line, "deadline_exceeded"):
				return fmt.Errorf("%s got no answer: %s", p.name, line)
			}
		}
	}
	r.note("answers that asked agents to keep a result and try again, so far: %d", clear)
	return nil
}

const kindLost = "lost node"

// newLostNode returns an injector that kills a NATS node, deletes its folder, starts a node
// with another name and port, and removes the lost one from the cluster, as documented.
func newLostNode(t *trial, log io.Writer) injector {
	r := newRepeated(t, log, kindLost)
	r.once = func(ctx context.Context, i int) error {
		s := t.system
		var old *process
		at := i % 2 // servers that restart need an address that is still valid, that of the third node
		for _, p := range s.servers {
			if x, ok := p.(*process); ok && x.kind == kindNATS && slices.Contains(x.args, strings.TrimPrefix(s.nats[at], "nats://")) {
				old = x
			}
		}
		if old == nil {
			return fmt.Errorf("there is no node at %s", s.nats[at])
		}
		name := fmt.Sprintf("nats-%d", i+4)
		r.begin(kindLost, "%s, replaced by %s", old.name, name)
		if err := errors.Join(old.Kill(), os.RemoveAll(s.serverDir(old.name))); err != nil {
			return err
		}
		s.servers = slices.DeleteFunc(s.servers, func(p part) bool { return p == part(old) })
		port, err := freeport.Take()
		if err != nil {
			return err
		}
		s.routes[at] = loopback(port)
		p, address, err := s.natsNode(name, s.routes[at])
		if err != nil {
			return err
		}
		s.servers, s.nats[at] = append(s.servers, p), address
		if err := p.Start(); err != nil {
			return err
		}
		begun := time.Now()
		if err := s.removeNode(ctx, old.name); err != nil {
			return err
		}
		if err := s.whole(ctx, time.Minute); err != nil {
			return err
		}
		r.note("%s replaced %s: the stream had three replicas again after %.2f s", name, old.name, time.Since(begun).Seconds())
		return nil
	}
	return r
}

// removeNode removes a lost node from JetStream's group, as nats server raft peer-remove
// does. JetStream then gives its streams to other nodes.
func (s *system) removeNode(ctx context.Context, name string) error {
	conn, err := nats.Connect(strings.Join(s.nats, ","), nats.UserInfo("system", systemPassword), nats.Timeout(2*time.Second))
	if err != nil {
		return err
	}
	defer conn.Close()
	request, err := json.Marshal(map[string]string{"peer": name})
	if err != nil {
		return err
	}
	last := errors.New("no answer")
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		m, err := conn.RequestWithContext(call, "$JS.API.SERVER.REMOVE", request)
		cancel()
		if err == nil {
			var answer struct {
				Success bool
				Error   *struct{ Description string }
			}
			if err = json.Unmarshal(m.Data, &answer); err == nil && answer.Success {
				return nil
			} else if answer.Error != nil {
				err = errors.New(answer.Error.Description)
			}
		}
		last = err
		if !sleep(ctx, 300*time.Millisecond) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("cannot remove %s from the cluster: %w", name, last)
}
