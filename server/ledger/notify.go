package ledger

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"loadstar/internal/backoff"
)

// notifications tells listeners that something happened in a run: those of this process by a
// channel, and those of other processes by PostgreSQL. They are not stored, so listeners must
// also poll.
type notifications struct {
	mu        sync.Mutex
	listeners map[chan string]string // the value is what the texts that a listener gets begin with
	waiting   map[string]bool        // texts that other processes are told next
	sending   bool
}

// Texts of notifications: a kind and a run.
const (
	ofRun    = "run "
	ofLeases = "leases "
)

// notifyChannel is PostgreSQL's name of our notifications.
const notifyChannel = "loadstar"

const (
	// notifyWithin is how long PostgreSQL may take to pass on a notification.
	notifyWithin = 5 * time.Second
	// listenFor is how long a listener waits before it checks that PostgreSQL is still there.
	listenFor = 20 * time.Second
)

// Wake notifies the listeners in all processes that something happened in a run. It does not
// wait.
func (l *Ledger) Wake(run string) { l.notify(ofRun + run) }

// WakeAgents notifies gateways in all processes that a run has new leases. It does not wait.
func (l *Ledger) WakeAgents(run string) { l.notify(ofLeases + run) }

func (l *Ledger) notify(text string) {
	l.notified.tell(text)
	if l.sqlite {
		return
	}
	n := &l.notified
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = map[string]bool{}
	}
	n.waiting[text] = true
	if !n.sending && l.open.Err() == nil {
		n.sending = true
		l.answering.Go(l.sendNotifications)
	}
}

// tell notifies the listeners of this process. An empty text is for all of them.
func (n *notifications) tell(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for ch, kind := range n.listeners {
		run, ok := strings.CutPrefix(text, kind)
		if !ok && text != "" {
			continue
		}
		select {
		case ch <- run:
		default: // it has enough to do
		}
	}
}

// sendNotifications passes notifications to other processes. Equal ones that come meanwhile are
// sent once. It does not do so in the transaction that counts: PostgreSQL
// commits transactions with notifications one after the other.
func (l *Ledger) sendNotifications() {
	n := &l.notified
	for {
		n.mu.Lock()
		var texts []string
		for text := range n.waiting {
			texts = append(texts, text)
		}
		clear(n.waiting)
		n.sending = len(texts) > 0 && l.open.Err() == nil
		n.mu.Unlock()
		if len(texts) == 0 || l.open.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(l.open, notifyWithin)
		for _, text := range texts {
			if _, err := l.db.ExecContext(ctx, "SELECT pg_notify($1, $2)", notifyChannel, text); err != nil {
				break // others poll
			}
		}
		cancel()
	}
}

// Woken returns a channel with the runs that Wake was called for, in this process or another
// one. The channel gets an empty text if notifications may have been lost. Notifications are
// dropped while it is full.
func (l *Ledger) Woken(ctx context.Context) <-chan string { return l.woken(ctx, ofRun) }

// AgentsWoken is Woken for WakeAgents.
func (l *Ledger) AgentsWoken(ctx context.Context) <-chan string { return l.woken(ctx, ofLeases) }

func (l *Ledger) woken(ctx context.Context, kind string) <-chan string {
	ch := make(chan string, 64)
	n := &l.notified
	n.mu.Lock()
	if n.listeners == nil {
		n.listeners = map[chan string]string{}
	}
	n.listeners[ch] = kind
	first := len(n.listeners) == 1 && !l.sqlite
	n.mu.Unlock()
	if first {
		l.answering.Go(l.listen)
	}
	context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, ch)
	})
	return ch
}

// listen receives the notifications of other processes until the ledger is closed.
func (l *Ledger) listen() {
	retry := backoff.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second}
	for l.open.Err() == nil {
		if err := l.listenOnce(l.open, retry.Reset); l.open.Err() == nil {
			l.notified.tell("") // some may be lost
			if err != nil {
				_ = retry.Wait(l.open) // fails only if the ledger is closed, which ends the loop
			}
		}
	}
}

func (l *Ledger) listenOnce(ctx context.Context, connected func()) error {
	config := l.listener.Copy()
	if err := l.hosts.order(ctx, config); err != nil {
		return err
	}
	c, err := pgx.ConnectConfig(context.WithValue(ctx, opening{}, true), config)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }() // nothing was written
	if _, err := c.Exec(ctx, "LISTEN "+notifyChannel); err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	connected()
	l.notified.tell("") // what happened before
	for {
		wait, cancel := context.WithTimeout(ctx, listenFor)
		n, err := c.WaitForNotification(wait)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			l.notified.tell(n.Payload)
		case late:
			return nil // connect anew: a dead link would stay silent
		default:
			return err
		}
	}
}
