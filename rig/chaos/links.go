package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"loadstar/internal/testkit"
	"loadstar/rig/product"
)

// The links that can be bad.
const (
	linkAgents   = "agents"
	linkPostgres = "postgres"
)

// via returns an address that leads to the given one over a link that can be bad, or the
// address itself if the layout has no such links.
func (s *system) via(name, to string) (string, error) {
	if !s.links {
		return to, nil
	}
	port, err := testkit.FreePort()
	if err != nil {
		return "", err
	}
	f, err := forward(loopback(port), to)
	if err != nil {
		return "", err
	}
	s.closers = append(s.closers, f)
	s.bad[name] = append(s.bad[name], f)
	return loopback(port), nil
}

// badLink is a fault of a link.
type badLink struct {
	kind, link string
	lasts      time.Duration
	// begin makes the link bad, repeatedly at the interval every, and end repairs it.
	begin func(*forwarder)
	every time.Duration
}

// badLinks lists the faults, with the longest at the end. A cut hits connections in the middle
// of a request or an answer. Agents and servers then repeat requests that the peer may already
// have carried out. A connection that dies stays open and carries no more data in one
// direction, so only timeouts detect it.
func badLinks() []badLink {
	all := []badLink{
		{kind: "64 kbit/s", link: linkAgents, lasts: 15 * time.Second, begin: func(f *forwarder) { f.set(line{rate: 8000}) }},
	}
	for _, link := range []string{linkAgents, linkPostgres} {
		all = append(all, badLink{kind: "cut in requests", link: link, lasts: 4 * time.Second, every: 300 * time.Millisecond, begin: func(f *forwarder) { f.cut(up, 20_000) }},
			badLink{kind: "cut in answers", link: link, lasts: 4 * time.Second, every: 300 * time.Millisecond, begin: func(f *forwarder) { f.cut(down, 20_000) }})
	}
	for _, link := range []string{linkAgents, linkPostgres} {
		most := 400 * time.Millisecond
		if link != linkAgents {
			most = 40 * time.Millisecond // the database is near
		}
		all = append(all, badLink{kind: "latency", link: link, lasts: 8 * time.Second, begin: func(f *forwarder) { f.set(line{delay: most / 2, jitter: most}) }},
			badLink{kind: "away", link: link, lasts: 8 * time.Second, begin: func(f *forwarder) { f.leave(true) }})
	}
	for _, link := range []string{linkAgents, linkPostgres} {
		all = append(all, badLink{kind: "dead requests", link: link, begin: func(f *forwarder) { f.kill(up) }},
			badLink{kind: "dead answers", link: link, begin: func(f *forwarder) { f.kill(down) }})
	}
	return all
}

func (b badLink) name() string { return b.link + ", " + b.kind }

// newBadLinks returns an injector that makes the links bad one after the other.
func newBadLinks(t *trial, log io.Writer) injector {
	all := badLinks()
	var names []string
	for _, b := range all {
		names = append(names, b.name())
	}
	r := newRepeated(t, log, names...)
	r.once = func(ctx context.Context, i int) error {
		b := all[i%len(all)]
		links := t.system.bad[b.link]
		if len(links) == 0 {
			return fmt.Errorf("there is no link to %s", b.link)
		}
		r.begin(b.name(), "for %s", b.lasts)
		for end := time.Now().Add(b.lasts); ; {
			for _, f := range links {
				b.begin(f)
			}
			rest := time.Until(end)
			if b.every > 0 {
				rest = min(rest, b.every)
			}
			if product.Sleep(ctx, rest) != nil || !time.Now().Before(end) {
				break
			}
		}
		for _, f := range links {
			f.set(line{})
			f.leave(false)
		}
		return nil
	}
	return &linkReport{r}
}

// linkReport prints the number of connections that were hit, in addition to the usual table.
type linkReport struct{ *repeated }

func (l *linkReport) print(out io.Writer) {
	for _, name := range []string{linkAgents, linkPostgres} {
		n := 0
		for _, f := range l.system.bad[name] {
			n += f.cuts()
		}
		l.note("connections to %s that were cut or died: %d", name, n)
	}
	l.repeated.print(out)
}
