package sqlstore

import (
	"context"
	"database/sql"
	"sync"
)

// prepared caches prepared statements, because SQLite takes longer to parse most queries
// than to run them. It never evicts a statement, so use it only for a small number of
// different queries.
type prepared struct {
	db   *sql.DB
	work *work

	mu     sync.Mutex
	byText map[string]*sql.Stmt // statements by query text; closing the database closes them
}

var _ Querier = (*prepared)(nil)

func (p *prepared) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	p.mu.Lock()
	s := p.byText[text]
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
	if other := p.byText[text]; other != nil {
		return other, s.Close()
	}
	p.byText[text] = s
	return s, nil
}

func (p *prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	s, err := p.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	p.work.statements.Add(1)
	return s.QueryContext(ctx, args...)
}
