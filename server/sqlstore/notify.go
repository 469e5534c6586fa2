package sqlstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"loadstar/internal/backoff"
)

// notifications tells listeners about events. It uses a channel for this process's listeners,
// and PostgreSQL for those of other processes. They are not stored, so listeners must also
// poll.
type notifications struct {
	mu        sync.Mutex
	listeners map[chan string]string // the prefix of the texts that a listener gets
	waiting   map[string]bool        // texts for the next notification of other processes
	sending   bool
}

// notifyChannel is PostgreSQL's name of our notifications.
const notifyChannel = "loadstar"

const (
	// notifyWithin is PostgreSQL's time limit for a notification.
	notifyWithin = 5 * time.Second
	// listenFor is the time for which a listener waits before it checks that PostgreSQL still
	// responds.
	listenFor = 20 * time.Second
)

// Notify passes a text to the listeners in all processes. It does not wait.
func (s *Store) Notify(text string) {
	s.notified.tell(text)
	if s.SQLite {
		return
	}
	n := &s.notified
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.waiting == nil {
		n.waiting = map[string]bool{}
	}
	n.waiting[text] = true
	if !n.sending && s.open.Err() == nil {
		n.sending = true
		s.answering.Go(s.sendNotifications)
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
		default: // the listener has enough to do
		}
	}
}

// sendNotifications passes notifications to other processes. Equal notifications that arrive in
// the meantime are sent once. It does not do so in the counting transaction, because PostgreSQL
// commits transactions with notifications one after the other.
func (s *Store) sendNotifications() {
	n := &s.notified
	for {
		n.mu.Lock()
		texts := slices.Collect(maps.Keys(n.waiting))
		clear(n.waiting)
		n.sending = len(texts) > 0 && s.open.Err() == nil
		n.mu.Unlock()
		if len(texts) == 0 || s.open.Err() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(s.open, notifyWithin)
		for _, text := range texts {
			if _, err := s.DB.ExecContext(ctx, "SELECT pg_notify($1, $2)", notifyChannel, text); err != nil {
				break // others poll
			}
		}
		cancel()
	}
}

// Notified returns a channel with the texts of a kind from this process and others. The texts
// do not include the kind. The channel gets an empty text if some may have been lost. Texts are
// dropped while the channel is full.
func (s *Store) Notified(ctx context.Context, kind string) <-chan string {
	ch := make(chan string, 64)
	n := &s.notified
	n.mu.Lock()
	if n.listeners == nil {
		n.listeners = map[chan string]string{}
	}
	n.listeners[ch] = kind
	first := len(n.listeners) == 1 && !s.SQLite
	n.mu.Unlock()
	if first {
		s.answering.Go(s.listen)
	}
	context.AfterFunc(ctx, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, ch)
	})
	return ch
}

// listen receives the notifications of other processes until the store is closed.
func (s *Store) listen() {
	retry := backoff.Backoff{Base: 100 * time.Millisecond, Cap: 2 * time.Second}
	for s.open.Err() == nil {
		if err := s.listenOnce(s.open, retry.Reset); s.open.Err() == nil {
			s.notified.tell("") // some may be lost
			if err != nil {
				_ = retry.Wait(s.open) // fails only if the store is closed, which ends the loop
			}
		}
	}
}

func (s *Store) listenOnce(ctx context.Context, connected func()) error {
	config := s.listener.Copy()
	if err := s.hosts.order(ctx, config); err != nil {
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
	s.notified.tell("") // there may have been events before the connection
	for {
		wait, cancel := context.WithTimeout(ctx, listenFor)
		n, err := c.WaitForNotification(wait)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			s.notified.tell(n.Payload)
		case late:
			return nil // reconnect, because a dead link would stay silent
		default:
			return err
		}
	}
}
