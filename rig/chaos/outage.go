package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"loadstar/rig/product"
)

// newOutage returns an injector that kills PostgreSQL and starts it again after a while.
func newOutage(t *trial, log io.Writer) injector {
	r := newRepeated(t, log, kindPostgres)
	r.once = func(ctx context.Context, i int) error {
		r.record(kindPostgres, "for %s", t.away)
		for _, p := range t.system.servers {
			if p.Kind() != kindPostgres {
				continue
			}
			if err := p.Kill(); err != nil {
				return err
			}
			_ = product.Sleep(ctx, t.away) // the code below ends with the context too
			r.watcher.killed(kindPostgres) // measure from the end of the outage
			begun := time.Now()
			if err := p.Start(); err != nil {
				return err
			}
			r.note("outage %d of %s: PostgreSQL answered after %.2f s", i+1, t.away, time.Since(begun).Seconds())
		}
		return r.told()
	}
	return r
}

// told checks that agents with a result got an answer that tells them what to do, and did
// not wait in vain until they gave up.
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
				return fmt.Errorf("%s received no answer: %s", p.name, line)
			}
		}
	}
	r.note("answers that asked agents to keep a result and try again, so far: %d", clear)
	return nil
}
