package ledger

import (
	"context"
	"database/sql"
	"sync"
)

// prepared parses a question once for each connection: SQLite takes longer for that
// than to answer most of them. It is for texts of which there are few.
type prepared struct {
	db *sql.DB

	mu sync.Mutex
	of map[string]*sql.Stmt // closed with the database
}

var _ querier = (*prepared)(nil)

func (p *prepared) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	p.mu.Lock()
	s := p.of[text]
	p.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := p.db.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if other := p.of[text]; other != nil {
		return other, s.Close()
	}
	p.of[text] = s
	return s, nil
}

func (p *prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	s, err := p.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}
