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

// notifications delivers notifications to listeners. It uses channels for listeners in this
// process, and PostgreSQL for those in other processes. Notifications are not stored, so
// listeners must also poll.
type notifications struct {
	mu        sync.Mutex
	listeners map[chan string]string // the prefix of the notifications that a listener gets
	waiting   map[string]bool        // notifications that are sent to other processes next
	sending   bool
}

// notifyChannel is the name of the channel for our notifications in PostgreSQL.
const notifyChannel = "loadstar"

const (
	// notifyWithin is the time limit for sending notifications through PostgreSQL.
	notifyWithin = 5 * time.Second
	// listenFor is the time for which a listener waits before it checks that PostgreSQL still
	// responds.
	listenFor = 20 * time.Second
)

// Notify passes a string to the listeners in all processes. It does not wait.
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

// tell notifies the listeners of this process. An empty string is for all of them.
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
		default: // the listener's channel is full
		}
	}
}

// sendNotifications passes notifications to other processes. Equal notifications that arrive in
// the meantime are sent once. Notifications are not sent in the counting transaction, because
// PostgreSQL commits transactions with notifications one at a time.
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
				break // other processes poll
			}
		}
		cancel()
	}
}

// Notified returns a channel with the notifications of a kind from this process and others,
// without the kind. The channel gets an empty string if notifications may have been lost.
// Notifications are dropped while the channel is full.
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
