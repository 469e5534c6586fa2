package simulation

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"loadstar/server/blob"
	"loadstar/server/sqlstore"
)

// callKey is the context key of the agent's call that a gateway serves.
type callKey struct{}

// forCall adds to a name the agent's call that is being served, because a gateway serves many
// calls at a time.
func forCall(ctx context.Context, what string) string {
	if of, ok := ctx.Value(callKey{}).(string); ok {
		return what + " for " + of
	}
	return what
}

// ledgerGate makes calls to a site's ledger wait at the gate. SQLite allows one writer at a
// time and would sleep in real time, so the schedule manages the write lock instead.
func (at *site) ledgerGate(ctx context.Context, step sqlstore.Step, what string) error {
	p := partOf(ctx)
	if p == nil {
		return nil
	}
	s := p.s
	switch step {
	case sqlstore.RolledBack, sqlstore.Committed:
		s.mu.Lock()
		if at.writer == p {
			at.writer = nil
		}
		s.mu.Unlock()
		if step == sqlstore.RolledBack {
			return nil
		}
		at.committed(p)
	}
	var ready func() bool
	if step == sqlstore.Begin || strings.HasPrefix(what, "INSERT") { // an INSERT that is not in a transaction
		ready = func() bool { return at.writer == nil }
	}
	name := fmt.Sprintf("ledger %s %s", step, at.w.queryName(what))
	if err := p.ask(ctx, forCall(ctx, name), ready); err != nil {
		return err
	}
	if step == sqlstore.Begin {
		s.mu.Lock()
		at.writer = p
		s.mu.Unlock()
	}
	return nil
}

func (w *world) queryName(query string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	name, ok := w.queries[query]
	if !ok {
		name = shorten(query)
		w.queries[query] = name
	}
	return name
}

// shorten makes the name of a query from its text.
func shorten(query string) string {
	query = strings.Join(strings.Fields(query), " ")
	if len(query) <= 60 {
		return query
	}
	sum := sha256.Sum256([]byte(query))
	return fmt.Sprintf("%s… %x", query[:50], sum[:2])
}

// blobs is a site's store of blobs as a part sees it. Like the product's stores, it contains
// each blob completely or not at all.
type blobs struct{ at *site }

var _ blob.Store = blobs{}

func (b blobs) ask(ctx context.Context, what, hash string) error {
	p := partOf(ctx)
	if p == nil {
		return nil
	}
	return p.ask(ctx, forCall(ctx, fmt.Sprintf("blob %s %.8s", what, hash)), nil)
}

func (b blobs) Put(ctx context.Context, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	hash := hex.EncodeToString(sum[:])
	if err := b.ask(ctx, "put", hash); err != nil {
		return "", err
	}
	b.at.w.mu.Lock()
	b.at.blobs[hash] = bytes.Clone(data)
	b.at.w.mu.Unlock()
	return hash, b.ask(ctx, "was put", hash)
}

func (b blobs) Get(ctx context.Context, hash string) ([]byte, error) {
	if err := b.ask(ctx, "get", hash); err != nil {
		return nil, err
	}
	b.at.w.mu.Lock()
	defer b.at.w.mu.Unlock()
	data, ok := b.at.blobs[hash]
	if !ok {
		return nil, blob.ErrNotFound
	}
	return data, nil
}

func (b blobs) Delete(ctx context.Context, hash string) error {
	if err := b.ask(ctx, "delete", hash); err != nil {
		return err
	}
	b.at.w.mu.Lock()
	defer b.at.w.mu.Unlock()
	delete(b.at.blobs, hash)
	return nil
}
